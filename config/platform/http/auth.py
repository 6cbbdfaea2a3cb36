"""Authentication: bearer tokens, and browser sessions with CSRF protection."""

from collections.abc import Collection
from hmac import compare_digest
from importlib import import_module
from io import BytesIO
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from knox.models import AuthToken
from knox.settings import CONSTANTS
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from config.platform.http import second_factor, single_sign_on, staff, tokens
from config.platform.http.problems import DATABASE_ERRORS, CSRFFailed, NotAuthenticated, Problem, of_exception


class BearerAuthentication(TokenAuthentication):
    """Authentication by `Authorization: Bearer slc_…`. Every token that is not accepted causes the same 401.

    Knox would delete the user's expired tokens at each request. This class reads a token with its user in one query,
    and rejects an expired token without deleting it. It records the use of a token at most once a minute.
    """

    def authenticate_credentials(self, token: bytes) -> tuple[User, AuthToken]:
        text = decode_token(token)
        digest = hash_token(text)
        for candidate in find_candidates(text):
            if compare_digest(candidate.digest, digest) and is_live(candidate):
                tokens.record_use(candidate)
                return candidate.user, candidate
        raise AuthenticationFailed


class SessionAuthentication(authentication.SessionAuthentication):
    """Authentication by the browser's session.

    A failed CSRF check has a different error code than a missing permission.
    """

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        """Raise SecondFactorRequired if the session requires a second factor and has none."""
        found: tuple[User, None] | None = super().authenticate(request)
        if found and second_factor.is_missing(request._request):
            raise second_factor.SecondFactorRequired
        return found

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied:
            raise CSRFFailed from None


def user_of(request: Request) -> User:
    """Return the user, in a view whose permission classes require authentication."""
    return cast("User", request.user)


# ---- During a long response -----------------------------------------------------------------------------------------


class Credential(NamedTuple):
    """The authentication of a request, for repeated checks during a long response."""

    user_id: int
    permission: str = ""  # required of staff who follow another user's object
    token: str = ""  # the token's digest
    session: str = ""  # the session's key
    session_hash: str = ""  # changes with the password


def credential_of(request: Request, *, owner_id: int, model: type[Model]) -> Credential:
    """Return the credential of an authenticated request that views a user's object."""
    user = user_of(request)
    permission = "" if owner_id == user.pk else staff.permission_of(model)
    if isinstance(request.auth, AuthToken):
        return Credential(user.pk, permission, token=request.auth.digest)
    return Credential(
        user.pk,
        permission,
        session=request.session.session_key or "",
        session_hash=user.get_session_auth_hash(),
    )


def valid_credentials(credentials: Collection[Credential]) -> set[Credential]:
    """Return the credentials whose user is active and has the permission, and whose token or session still exists.

    Runs three queries for any number of credentials, and two for each staff user who is not a superuser. Users of
    single sign-on are checked at the provider if a check is due, until one check gets no response.
    """
    now = timezone.now()
    users = single_sign_on.users().filter(is_active=True).in_bulk({each.user_id for each in credentials})
    current = single_sign_on.current_user_ids(users.values())
    digests = {each.token for each in credentials if each.token}
    live_tokens = AuthToken.objects.filter(Q(expiry=None) | Q(expiry__gt=now), digest__in=digests)
    keys = {each.session for each in credentials if each.session}
    sessions = Session.objects.filter(session_key__in=keys, expire_date__gt=now)
    known = {*live_tokens.values_list("digest", flat=True), *sessions.values_list("session_key", flat=True)}
    return {
        each
        for each in credentials
        if each.user_id in current
        and (user := users[each.user_id])
        and (not each.permission or (user.is_staff and user.has_perm(each.permission)))
        and (each.token or each.session) in known
        and (not each.session or user.get_session_auth_hash() == each.session_hash)
    }


# ---- Before the body ------------------------------------------------------------------------------------------------


def refusal_by_headers(scope: dict[str, Any]) -> Problem | None:
    """Return the authentication error of an ASGI request before its body is read, or None.

    The views check again in the same way. The database connection of this check is returned to the pool.
    """
    try:
        request = ASGIRequest(scope, BytesIO())
        known = BearerAuthentication().authenticate(Request(request)) or session_user(request).is_authenticated
    except UnicodeDecodeError:
        return None  # Django rejects this path with another error
    except (AuthenticationFailed, Problem, *DATABASE_ERRORS) as error:
        return of_exception(error)
    finally:
        connection.close()
    return None if known else NotAuthenticated()


def session_user(request: HttpRequest) -> Any:
    """Return the user of the session cookie, as Django's session and authentication middleware would."""
    sessions, key = import_module(settings.SESSION_ENGINE), request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    request.session = sessions.SessionStore(None if "\0" in key else key)
    return get_user(request)


# ---- Tokens ---------------------------------------------------------------------------------------------------------


def decode_token(token: bytes) -> str:
    """Return the token as text. Knox tokens are ASCII; NUL or invalid UTF-8 would cause an error 500 in the query."""
    try:
        text = token.decode("ascii")
    except UnicodeDecodeError:
        raise AuthenticationFailed from None
    if not text.isprintable():
        raise AuthenticationFailed
    return text


def find_candidates(text: str) -> Any:
    """Return the tokens with the same prefix, nearly always none or one, with their users."""
    same_prefix = AuthToken.objects.filter(token_key=text[: CONSTANTS.TOKEN_KEY_LENGTH])
    return same_prefix.select_related("user__identity", "details").defer("user__identity__tokens")


def is_live(token: AuthToken) -> bool:
    return (token.expiry is None or token.expiry > timezone.now()) and single_sign_on.is_current(token.user)
