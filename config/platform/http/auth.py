"""Authentication: bearer tokens, and browser sessions with CSRF protection."""

from hmac import compare_digest
from importlib import import_module
from io import BytesIO
from typing import Any, cast

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import HttpRequest
from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from knox.models import AuthToken
from knox.settings import CONSTANTS
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from config.platform.http.problems import DATABASE_ERRORS, CSRFFailed, NotAuthenticated, Problem, of_exception


class BearerAuthentication(TokenAuthentication):
    """`Authorization: Bearer slc_…`, looked up by hash in one query. All errors are the same 401.

    Knox itself reads all tokens of the user and deletes expired ones at each request. This class only reads, and
    rejects an expired token.
    """

    def authenticate_credentials(self, token: bytes) -> tuple[User, AuthToken]:
        text = printable(token)
        digest = hash_token(text)
        for candidate in candidates(text):
            if compare_digest(candidate.digest, digest) and is_live(candidate):
                return candidate.user, candidate
        raise AuthenticationFailed


class SessionAuthentication(authentication.SessionAuthentication):
    """The browser's session. A failed CSRF check has its own error code, different from a missing permission."""

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied:
            raise CSRFFailed from None


def user_of(request: Request) -> User:
    """Return the user, in a view whose permission classes require authentication."""
    return cast("User", request.user)


# ---- Before the body ------------------------------------------------------------------------------------------------


def refusal_by_headers(scope: dict[str, Any]) -> Problem | None:
    """Return the authentication error of an ASGI request before its body is read, or None.

    The views check again, by the same means. The database connection of this check is returned to the pool.
    """
    try:
        request = ASGIRequest(scope, BytesIO())
        known = BearerAuthentication().authenticate(Request(request)) or session_user(request).is_authenticated
    except UnicodeDecodeError:
        return None  # Django rejects this path with an error of its own
    except (AuthenticationFailed, *DATABASE_ERRORS) as error:
        return of_exception(error)
    finally:
        connection.close()
    return None if known else NotAuthenticated()


def session_user(request: HttpRequest) -> Any:
    """Return the user of the session cookie, like Django's middleware for sessions and authentication."""
    sessions, key = import_module(settings.SESSION_ENGINE), request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    request.session = sessions.SessionStore(None if "\0" in key else key)
    return get_user(request)


# ---- Tokens ---------------------------------------------------------------------------------------------------------


def printable(token: bytes) -> str:
    """Return the token as text. Knox tokens are ASCII; NUL or invalid UTF-8 would be an error 500 in the query."""
    try:
        text = token.decode("ascii")
    except UnicodeDecodeError:
        raise AuthenticationFailed from None
    if not text.isprintable():
        raise AuthenticationFailed
    return text


def candidates(text: str) -> Any:
    """Return the tokens with the same prefix, nearly always none or one, with their users."""
    return AuthToken.objects.filter(token_key=text[: CONSTANTS.TOKEN_KEY_LENGTH]).select_related("user")


def is_live(token: AuthToken) -> bool:
    return token.user.is_active and (token.expiry is None or token.expiry > timezone.now())
