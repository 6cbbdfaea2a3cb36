"""Single sign-on by OpenID Connect: the sign-in, and regular checks that the provider still confirms the user.

The provider controls its users: who has an account, their groups, and the end of their access. A user with an Identity
is checked again at the first request, with any session or token, after RECHECK has passed since the last check.
"""

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from typing import Any

import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client import DjangoIntegration, DjangoOAuth2App
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from joserfc.errors import JoseError
from knox.models import AuthToken
from requests import ConnectionError as NoConnection
from requests import HTTPError, RequestException, Timeout

from config.platform.http import audit, roles, tokens
from config.platform.http.problems import Problem
from config.platform.models import AuditEntry, Identity
from config.platform.observability import logs
from config.platform.observability.counters import counter

log = structlog.get_logger(__name__)

RECHECK = timedelta(seconds=30)
MAX_AGE = timedelta(minutes=1)  # of a check; a later request waits for a new check
RETRY = timedelta(seconds=15)  # between attempts; also the assumed maximum duration of a check
PATIENCE = timedelta(minutes=15)  # how long a user stays confirmed without a response from the provider
TIMEOUT = 5  # seconds to connect, and for each response
SCOPES = ("openid", "profile", "email")
OPTIONAL_SCOPES = ("groups", "offline_access")  # requested if the provider lists them
# Unsigned tokens, and tokens signed with a shared secret, must not be accepted.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
CHECK_FIELDS = ("checked_at", "attempted_at", "failed_at", "ended_at")
MAX_GROUPS = 500
MAX_NAME = 150  # characters, of Django's users and groups
STORED_TOKENS = ("access_token", "refresh_token", "expires_at", "token_type")
# ValueError and TypeError: a response that is not JSON, or is not an object.
FAILURES = (AuthlibBaseError, JoseError, RequestException, ValueError, TypeError)
NO_RESPONSE = (NoConnection, Timeout)

CHECKS = counter(
    "sluice_identity_checks_total", "Checks of users at the OpenID provider.", outcome=["confirmed", "ended", "failed"]
)


class SignInRefused(Exception):
    """The provider or Sluice refused a sign-in. The text is for the user."""


class AccessEnded(Exception):
    """The provider no longer confirms a user. The text is for the change history.

    `revoke`: whether to revoke the user's tokens. If not, they are suspended until the next sign-in. A refused refresh
    token, for example, may only have expired.
    """

    revoke = False


class NotAdmitted(AccessEnded):
    revoke = True

    def __init__(self) -> None:
        super().__init__("not in a group that may use Sluice")


class ProviderUnavailable(Problem):
    status = 503
    code = "identity_provider_unavailable"
    detail = "The identity provider does not respond, so your sign-in cannot be checked. Try again later."
    retry_after = 15


# ---- The provider ---------------------------------------------------------------------------------------------------


def is_on() -> bool:
    return settings.SLUICE.oidc_issuer is not None


def provider() -> DjangoOAuth2App:
    """Return the client of the provider. Raises one of FAILURES if its metadata cannot be read."""
    env = settings.SLUICE
    secret = env.oidc_client_secret.get_secret_value() if env.oidc_client_secret else ""
    return provider_of(env.oidc_issuer or "", env.oidc_client_id or "", secret)


@cache
def provider_of(issuer: str, client_id: str, secret: str) -> DjangoOAuth2App:
    """Return a client with the provider's metadata, which is read once per process.

    The provider's keys are read again if a token is signed with an unknown one.
    """
    app = DjangoOAuth2App(
        DjangoIntegration("oidc"),
        name="oidc",
        client_id=client_id,
        client_secret=secret,
        server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"code_challenge_method": "S256", "default_timeout": TIMEOUT},
    )
    metadata = app.load_server_metadata()
    if str(metadata.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
        raise ValueError("The provider's metadata has another issuer.")
    supported = metadata.get("scopes_supported") or ()
    app.client_kwargs["scope"] = " ".join([*SCOPES, *(scope for scope in OPTIONAL_SCOPES if scope in supported)])
    offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
    metadata["id_token_signing_alg_values_supported"] = [each for each in offered if each in ALGORITHMS]
    return app


def claims_options(app: DjangoOAuth2App) -> dict[str, Any]:
    return {
        "iss": {"essential": True, "value": app.server_metadata["issuer"]},
        "aud": {"essential": True, "value": app.client_id},
        "sub": {"essential": True},
    }


def userinfo(app: DjangoOAuth2App, token: dict[str, Any], subject: str) -> dict[str, Any]:
    """Return the provider's current claims about a user. Raises AccessEnded if it refuses the token."""
    if "userinfo_endpoint" not in app.server_metadata:
        return {}
    try:
        claims = dict(app.userinfo(token=token))
    except HTTPError as error:
        if error.response is not None and error.response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise AccessEnded("the provider refused the access token") from None
        raise
    if claims.get("sub") != subject:
        raise AccessEnded("the provider returned another user")
    return claims


# ---- Sign-in --------------------------------------------------------------------------------------------------------


def begin(request: HttpRequest, callback: str) -> HttpResponse:
    """Redirect the browser to the provider, with state, nonce, and PKCE. Raises SignInRefused."""
    release_connection()
    try:
        response: HttpResponse = provider().authorize_redirect(request, callback)
    except FAILURES as error:
        raise refusal(error) from None
    return response


def finish(request: HttpRequest) -> User:
    """Return the user that the provider's redirect identifies, created or updated. Raises SignInRefused."""
    release_connection()
    try:
        app = provider()
        token = app.authorize_access_token(request, claims_options=claims_options(app))
        if "userinfo" not in token:
            raise ValueError("The response has no ID token.")
        claims = dict(token["userinfo"])
        claims |= userinfo(app, token, claims["sub"])
    except (*FAILURES, AccessEnded) as error:
        raise refusal(error) from None
    return signed_in(app.server_metadata["issuer"], claims, stored_tokens(token))


def stored_tokens(token: dict[str, Any]) -> dict[str, Any]:
    return {name: token[name] for name in STORED_TOKENS if name in token}


def refusal(error: Exception) -> SignInRefused:
    log.warning("single_sign_on_failed", error=logs.describe(error))
    if isinstance(error, OAuthError) and error.error == "access_denied":
        return SignInRefused("The sign-in was cancelled.")
    if isinstance(error, RequestException):
        return SignInRefused("The identity provider does not respond. Try again later.")
    return SignInRefused("The identity provider's response is invalid. Sign in again.")


def signed_in(issuer: str, claims: dict[str, Any], provider_tokens: dict[str, Any]) -> User:
    """Create or update the user that verified claims identify. Raises SignInRefused."""
    now, names = timezone.now(), groups_of(claims)
    with transaction.atomic():
        locked = Identity.objects.select_for_update(of=("self",)).select_related("user")
        identity = locked.filter(issuer=issuer, subject=claims["sub"]).first()
        if identity and not identity.user.is_active and identity.ended_at is None:
            raise SignInRefused("This account is disabled.")  # by staff
        if identity and not is_admitted(names):
            end(identity, NotAdmitted())
        elif is_admitted(names):
            identity = identity or new_identity(issuer, claims, now)
            user = identity.user
            user.is_active = True
            user.email = str(claims.get("email") or "")[:254]
            user.save(update_fields=["is_active", "email"])
            confirm(identity, names, now)
            Identity.objects.filter(pk=user.pk).update(tokens=provider_tokens, attempted_at=now, ended_at=None)
            return user
    raise SignInRefused("Your account is not in a group that may use Sluice. Ask an administrator.")


def new_identity(issuer: str, claims: dict[str, Any], now: datetime) -> Identity:
    """Create a user with the username in the claims. An existing account is never taken over."""
    user = User(username=str(claims.get("preferred_username") or claims.get("email") or claims["sub"]))
    user.set_unusable_password()
    try:
        user.clean_fields()
        with transaction.atomic():
            user.save()
            return Identity.objects.create(
                user=user, issuer=issuer, subject=claims["sub"], checked_at=now, attempted_at=now
            )
    except ValidationError:
        raise SignInRefused("The identity provider sent an invalid username. Ask an administrator.") from None
    except IntegrityError:
        raise SignInRefused("Another account has your username. Ask an administrator to rename it.") from None


# ---- Groups ---------------------------------------------------------------------------------------------------------


def groups_of(claims: dict[str, Any]) -> set[str]:
    """Return the names of the groups in the claims."""
    env = settings.SLUICE
    value = claims.get(env.oidc_groups_claim) or []
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    # The provider's users may be able to create groups, so a group grants a role only if the settings list it.
    reserved = {*roles.GROUPS.values()} - {*env.oidc_staff_groups, *env.oidc_admin_groups}
    return {
        name
        for name in names[:MAX_GROUPS]
        if isinstance(name, str) and 0 < len(name) <= MAX_NAME and "\0" not in name and name not in reserved
    }


def is_admitted(names: set[str]) -> bool:
    env = settings.SLUICE
    every = {*env.oidc_user_groups, *env.oidc_staff_groups, *env.oidc_admin_groups}
    return not env.oidc_user_groups or bool(names & every)


def confirm(identity: Identity, names: set[str], now: datetime) -> None:
    """Set the user's groups and rights.

    The loss of a group ends the sessions, and the loss of staff rights revokes the tokens.
    """
    user, env = identity.user, settings.SLUICE
    is_admin = bool(names & set(env.oidc_admin_groups))
    is_staff = is_admin or bool(names & set(env.oidc_staff_groups))
    known = set(user.groups.values_list("name", flat=True))
    if lost := known - names:
        user.set_unusable_password()  # another random value, which ends the sessions
    if (user.is_staff and not is_staff) or (user.is_superuser and not is_admin):
        AuthToken.objects.filter(user=user).delete()
    if (known, user.is_staff, user.is_superuser) != (names, is_staff, is_admin):
        user.is_staff, user.is_superuser = is_staff, is_admin
        user.save(update_fields=["is_staff", "is_superuser", "password"])
        Group.objects.bulk_create([Group(name=name) for name in sorted(names - known)], ignore_conflicts=True)
        user.groups.set(Group.objects.filter(name__in=names))
        rights = "superuser" if is_admin else "staff" if is_staff else "no staff"
        note(
            user,
            f"Groups changed by single sign-on, {rights}: {format_changes(names - known, lost)}.",
            "groups changed",
        )
    Identity.objects.filter(pk=user.pk).update(checked_at=now)
    identity.checked_at = now


def note(user: User, message: str, action: str) -> None:
    """Record a change by the provider in an audit entry that is separate from that of the current request."""
    fields = {
        "via": AuditEntry.Via.SIGN_IN,
        "user_id": user.pk,
        "action": f"single sign-on: {action}",
        "object_ids": [],
    }
    with audit.pending(audit.Pending(lambda: dict(fields))):
        tokens.record(user, message)


def format_changes(added: Iterable[str], removed: Iterable[str]) -> str:
    return (
        ", ".join([*(f"+{name}" for name in sorted(added)), *(f"-{name}" for name in sorted(removed))])[:1000] or "none"
    )


def end(identity: Identity, reason: AccessEnded) -> None:
    """Deactivate a user until the next sign-in, which ends all sessions and suspends or revokes all tokens."""
    user = identity.user
    user.is_active = False
    user.set_unusable_password()  # another random value: old sessions stay invalid after the next sign-in
    user.save(update_fields=["is_active", "password"])
    Identity.objects.filter(pk=user.pk).update(ended_at=timezone.now(), tokens={})
    if reason.revoke:
        AuthToken.objects.filter(user=user).delete()
    note(user, f"Ended by single sign-on: {reason}.", "access ended")
    log.info("identity_ended", reason=str(reason))


def users() -> QuerySet[User]:
    """Return all users, with the data that `is_current` needs."""
    return User.objects.select_related("identity").defer("identity__tokens")


# ---- Checks ---------------------------------------------------------------------------------------------------------


class Pause:
    """A pause of optional checks by this process, after a check without a response."""

    until = float("-inf")

    def begin(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until


pause = Pause()


def is_current(user: User, *, waits: bool = True) -> bool:
    """Return whether the user is active. Check at the provider if the last check is older than RECHECK.

    Local users are not checked. While the provider does not respond, users stay confirmed for PATIENCE; then this
    raises ProviderUnavailable. If single sign-on is off, its users are rejected.

    `waits`: if the last check is older than MAX_AGE, check even during a pause, or wait for another request's check.
    """
    identity: Identity | None = getattr(user, "identity", None)
    if identity is None or not user.is_active:
        return user.is_active
    if not is_on():
        return False
    now = timezone.now()
    if now - identity.checked_at >= RECHECK:
        is_outdated = waits and now - identity.checked_at >= MAX_AGE
        if (is_outdated or not pause.is_on) and claim(identity, now):
            check(identity, now)
        elif is_outdated:
            wait_for_check(user, identity)
        if now - identity.checked_at >= PATIENCE and user.is_active:
            raise ProviderUnavailable
    return user.is_active


def current_user_ids(users: Iterable[User]) -> set[int]:
    """Return the IDs of the users who are still current. A single thread checks the users of all event streams.

    It waits for at most one check without a response per RETRY. It starts with the users who were not checked for the
    longest time, so that a user whose checks fail does not delay others.
    """
    return {user.pk for user in sorted(users, key=attempted_at) if is_still_current(user)}


def attempted_at(user: User) -> datetime:
    identity: Identity | None = getattr(user, "identity", None)
    return identity.attempted_at if identity else user.date_joined


def is_still_current(user: User) -> bool:
    try:
        return is_current(user, waits=False)
    except ProviderUnavailable:
        return False


def claim(identity: Identity, now: datetime) -> bool:
    """Return whether this request performs the check. Only one can, because a refresh token may be used only once."""
    due = Identity.objects.filter(pk=identity.pk, attempted_at__lte=now - RETRY, ended_at=None)
    return due.update(attempted_at=now) == 1


def check(identity: Identity, now: datetime) -> None:
    """Check the user at the provider, and confirm the user or end the access. A failure changes nothing."""
    outcome: set[str] | AccessEnded
    try:
        outcome = groups_of(current_claims(identity, now))
        if not is_admitted(outcome):
            outcome = NotAdmitted()
    except AccessEnded as reason:
        outcome = reason
    except FAILURES as error:
        if isinstance(error, NO_RESPONSE):
            pause.begin((now + RETRY - timezone.now()).total_seconds())
        CHECKS.labels("failed").inc()
        log.warning("identity_check_failed", error=logs.describe(error))
        Identity.objects.filter(pk=identity.pk, attempted_at=now).update(failed_at=now)
        return
    CHECKS.labels("ended" if isinstance(outcome, AccessEnded) else "confirmed").inc()
    with transaction.atomic():
        # After a sign-in or check in the meantime, these claims are outdated.
        if not Identity.objects.select_for_update().filter(pk=identity.pk, attempted_at=now, ended_at=None):
            return
        if isinstance(outcome, AccessEnded):
            end(identity, outcome)
        else:
            confirm(identity, outcome, now)


def current_claims(identity: Identity, now: datetime) -> dict[str, Any]:
    """Return the provider's current claims about a user. Raises AccessEnded, or one of FAILURES."""
    # Reading the deferred field from `identity` would replace its `user`, which the caller uses, with another object.
    held = Identity.objects.values_list("tokens", flat=True).get(pk=identity.pk)
    release_connection()
    app, claims = provider(), {}
    if refresh_token := held.get("refresh_token"):
        new = refreshed(app, refresh_token)
        held |= stored_tokens(new)
        # Saved before anything else can fail, because many providers accept a refresh token only once.
        Identity.objects.filter(pk=identity.pk, attempted_at=now).update(tokens=held)
        claims = dict(app.parse_id_token(new, nonce=None, claims_options=claims_options(app)) or {})
        if claims.get("sub", identity.subject) != identity.subject:
            raise AccessEnded("the provider returned another user")
    elif held.get("expires_at", now.timestamp() + 1) <= now.timestamp():
        raise AccessEnded("the access token expired, and the provider issued no refresh token")
    return claims | userinfo(app, held, identity.subject)


def release_connection() -> None:
    """Return the database connection to the pool, so that waiting for a slow provider does not exhaust the pool."""
    if not connection.in_atomic_block:
        connection.close()


def refreshed(app: DjangoOAuth2App, refresh_token: str) -> dict[str, Any]:
    try:
        return dict(app.fetch_access_token(grant_type="refresh_token", refresh_token=refresh_token))
    except OAuthError as error:
        if error.error == "invalid_grant":
            raise AccessEnded("the provider refused the refresh token") from None
        raise


def wait_for_check(user: User, identity: Identity) -> None:
    """Wait until another request has checked the user, and read the outcome."""
    deadline = time.monotonic() + RETRY.total_seconds()
    identity.refresh_from_db(fields=CHECK_FIELDS)
    while identity.is_being_checked and time.monotonic() < deadline:
        release_connection()
        time.sleep(0.1)
        identity.refresh_from_db(fields=CHECK_FIELDS)
    user.refresh_from_db(fields=["is_active", "is_staff", "is_superuser", "password"])
