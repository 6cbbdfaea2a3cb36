"""API tokens: create, list, and revoke, for the API, the account page, and the command line."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, NotRequired, TypedDict
from uuid import UUID

import structlog
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import Error, transaction
from django.db.models import QuerySet
from django.db.models.functions import MD5
from django.utils import timezone
from knox.models import AuthToken

from config.platform.db.locks import lock_user
from config.platform.http import scopes
from config.platform.http.openapi.response_schemas import Uuid, choices
from config.platform.http.problems import NotFound, Problem, require_first
from config.platform.models import TokenDetails
from config.platform.observability import logs

log = structlog.get_logger(__name__)

MAX_PER_USER = 50
DAYS, MAX_DAYS = 90, 3650
MAX_NAME = 100  # characters
PREFIX_LENGTH = 8  # characters of a token that identify it
RECORD_USE_EVERY = timedelta(minutes=1)


class TooManyTokens(Problem):
    status = 409
    code = "too_many_tokens"
    detail = f"You have {MAX_PER_USER} tokens, which is the limit. Revoke one to create another."


class NoSuchToken(NotFound):
    detail = "Token not found."


class Token(TypedDict):
    id: Uuid
    name: Annotated[str, "Empty for tokens that were created without a name."]
    scopes: Annotated[list[Annotated[str, choices(scopes.ALL)]], "What the token permits, within your permissions."]
    prefix: Annotated[str, "The first characters of the token, which identify it."]
    createdAt: datetime
    expiresAt: Annotated[datetime | None, "Null: never."]
    lastUsedAt: Annotated[datetime | None, "To the minute. Null: not used yet."]
    token: NotRequired[Annotated[str, "The token. Only the response that creates it has this member."]]


class Tokens(TypedDict):
    """All tokens of a user, on a single page."""

    results: list[Token]
    next: Annotated[str | None, "Always null."]
    previous: Annotated[str | None, "Always null."]


def create(
    user: User, *, name: str = "", scopes: Sequence[str] = (), days: int = DAYS, maximum: int | None = MAX_PER_USER
) -> tuple[AuthToken, str]:
    """Create a token, and return its row and its text, which is not stored. `scopes`: empty for all.

    Raises TooManyTokens if the user has `maximum` tokens; None for no limit.
    """
    with transaction.atomic():
        lock_user(user.pk)
        if maximum is not None and AuthToken.objects.filter(user=user).count() >= maximum:
            raise TooManyTokens
        token, text = AuthToken.objects.create(user=user, expiry=timedelta(days=days))
        token.details = TokenDetails.objects.create(token=token, name=name, scopes=list(scopes))
        record(user, f"Created token {label(token)}.")
    return token, text


def revoke(user: User, token_id: UUID) -> AuthToken:
    """Delete a token of the user, and return the deleted row. Raises NoSuchToken."""
    with transaction.atomic():
        token = require_first(of_user(user.pk).filter(handle=token_id.hex), NoSuchToken)
        name = label(token)
        AuthToken.objects.filter(pk=token.pk).delete()
        record(user, f"Revoked token {name}.")
    return token


def of_user(user_id: int) -> QuerySet[AuthToken]:
    """Return the tokens of a user, the newest first."""
    tokens: QuerySet[AuthToken] = AuthToken.objects.filter(user_id=user_id).annotate(handle=MD5("digest"))
    return tokens.select_related("details").order_by("-created", "digest")


def id_of(token: AuthToken) -> UUID:
    """Return the public ID, a digest of the token's digest: the digest itself is the stored credential."""
    return UUID(hashlib.md5(token.digest.encode(), usedforsecurity=False).hexdigest())


def label(token: AuthToken) -> str:
    """Return the name and the first characters of a token."""
    details = getattr(token, "details", None)
    prefix = f"{token.token_key[:PREFIX_LENGTH]}…"
    return f"{details.name} ({prefix})" if details and details.name else prefix


def represent(token: AuthToken) -> Token:
    details = getattr(token, "details", None) or TokenDetails()
    return {
        "id": str(id_of(token)),
        "name": details.name,
        "scopes": details.scopes or list(scopes.ALL),
        "prefix": token.token_key[:PREFIX_LENGTH],
        "createdAt": token.created,
        "expiresAt": token.expiry,
        "lastUsedAt": details.last_used_at,
    }


def record_use(token: AuthToken) -> None:
    """Record that a token was used, at most once a minute. A read-only database does not fail the request."""
    now, details = timezone.now(), getattr(token, "details", None)
    if details and details.last_used_at and now - details.last_used_at < RECORD_USE_EVERY:
        return
    used = TokenDetails(token_id=token.pk, last_used_at=now)  # not `token=`, which would replace `token.details`
    try:
        with transaction.atomic():
            TokenDetails.objects.bulk_create(
                [used], update_conflicts=True, unique_fields=["token"], update_fields=["last_used_at"]
            )
    except Error as error:
        log.warning("token_use_not_recorded", error=logs.describe(error))


class RevokedWithPassword:
    """A password validator that revokes the user's tokens whenever the password is changed.

    Django calls `password_changed` when a person changes the password, but not when it upgrades a hash.
    """

    def validate(self, password: str, user: User | None = None) -> None:
        """Accept every password."""

    def get_help_text(self) -> str:
        return "A new password revokes all API tokens of the account."

    def password_changed(self, password: str, user: User) -> None:
        revoked, _ = AuthToken.objects.filter(user=user).delete()
        if revoked:
            record(user, "API tokens revoked, because the password was changed.")


def record(user: User, message: str) -> None:
    """Record a change in the user's history in the admin."""
    LogEntry.objects.log_actions(user.pk, [user], CHANGE, change_message=message, single_object=True)
