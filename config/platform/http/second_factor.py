"""Second factors of local users: authenticator apps (TOTP, RFC 6238), security keys (WebAuthn), and recovery codes.

REQUIRE_MFA determines which users must have one. Requests with a bearer token need none. With single sign-on, the
identity provider is responsible for second factors.
"""

import base64
import secrets
import struct
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.totp import TOTP
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from fido2.server import Fido2Server
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialUserEntity,
    UserVerificationRequirement,
)

from config.platform.db.locks import lock_user
from config.platform.http import staff, tokens
from config.platform.http.problems import NotFound, Problem, require_first
from config.platform.models import RecoveryCode, SecondFactor
from config.platform.observability import logs
from config.platform.plurals import counted

log = structlog.get_logger(__name__)

# Keys of the session
VERIFIED = "second_factor"  # true after a second factor was verified
SINGLE_SIGN_ON = "single_sign_on"  # true after single sign-on

PERIOD, DIGITS = 30, 6  # the only values that all apps support
DRIFT = 1  # periods by which a clock may be off
MAX_FACTORS = 10
RECOVERY_CODES, RECOVERY_CODE_BYTES = 10, 10
# Errors of fido2 for a response that it cannot parse or verify.
INVALID_RESPONSE_ERRORS = (
    ValueError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError, struct.error,
)  # fmt: skip


class SecondFactorRequired(Problem):
    status = 403
    code = "second_factor_required"
    detail = "Your account needs a second factor. Set it up on the page /app/account/second-factors."


class TooManyFactors(Problem):
    status = 409
    code = "too_many_second_factors"
    detail = f"You have {MAX_FACTORS} second factors, which is the limit. Remove one to add another."


class LastFactor(Problem):
    status = 409
    code = "last_second_factor"
    detail = "Your account needs a second factor. Add another one before you remove this one."


class NoSuchFactor(NotFound):
    detail = "Second factor not found."


# ---- Requirement ----------------------------------------------------------------------------------------------------


def is_required(user: User) -> bool:
    match settings.SLUICE.require_mfa:
        case "all":
            return True
        case "staff":
            return user.is_staff or user.is_superuser
    return False


def is_missing(request: HttpRequest) -> bool:
    """Return whether the user must set up a second factor before using the session."""
    session = request.session
    return not session.get(VERIFIED) and not session.get(SINGLE_SIGN_ON) and is_required(request.user)  # type: ignore[arg-type]


def is_enabled(user: User) -> bool:
    return SecondFactor.objects.filter(user=user).exists()


# ---- Authenticator apps ---------------------------------------------------------------------------------------------


def new_secret() -> str:
    """Return a random 160-bit secret in base32, the format that apps expect."""
    return base64.b32encode(secrets.token_bytes(20)).decode()


def totp(secret: bytes) -> TOTP:
    return TOTP(secret, DIGITS, SHA1(), PERIOD)  # noqa: S303 - HMAC-SHA1 of RFC 6238


def provisioning_uri(user: User, secret: str) -> str:
    """Return the otpauth URI that apps read from a QR code."""
    return totp(base64.b32decode(secret)).get_provisioning_uri(user.get_username(), "Sluice")


def step_of(secret: bytes, code: str) -> int | None:
    """Return the time step of a code, or None for a wrong code."""
    generator, now = totp(secret), int(time.time()) // PERIOD
    for step in range(now - DRIFT, now + DRIFT + 1):
        if constant_time_compare(generator.generate(step * PERIOD).decode(), code):
            return step
    return None


def add_app(user: User, secret: str, code: str, name: str) -> bool:
    """Add an authenticator app if the code is correct, and return whether it is. Raises TooManyFactors."""
    raw = base64.b32decode(secret)
    step = step_of(raw, code)
    if step is None:
        return False
    add(user, SecondFactor(kind=SecondFactor.Kind.TOTP, name=name, secret=raw, counter=step))
    return True


def normalize(code: str) -> str:
    """Return a code in upper case, without spaces, hyphens, and other separators."""
    return "".join(character for character in code.upper() if character.isalnum())


def is_app_code(code: str) -> bool:
    """Return whether a code is one of an authenticator app, and not a recovery code."""
    return len(normalize(code)) == DIGITS


def use_code(user: User, text: str) -> bool:
    """Use a code of an authenticator app or a recovery code, and return whether it is valid. Each works only once."""
    code = normalize(text)
    if is_app_code(code):
        return any(use_app_code(factor, code) for factor in user.second_factors.filter(kind=SecondFactor.Kind.TOTP))
    deleted, _ = RecoveryCode.objects.filter(user=user, digest=digest_of(code)).delete()
    if deleted:
        tokens.record(user, "Used a recovery code.")
    return bool(deleted)


def use_app_code(factor: SecondFactor, code: str) -> bool:
    step = step_of(bytes(factor.secret), code)
    if step is None:
        return False
    # A code is accepted only once, also by concurrent requests (RFC 6238, section 5.2).
    unused = SecondFactor.objects.filter(pk=factor.pk, counter__lt=step)
    return unused.update(counter=step, last_used_at=timezone.now()) == 1


# ---- Security keys --------------------------------------------------------------------------------------------------


def relying_party(request: HttpRequest) -> Fido2Server:
    """Return the WebAuthn relying party of this host. Keys that were registered for it do not work on other hosts."""
    return Fido2Server(PublicKeyCredentialRpEntity(id=urlsplit(f"//{request.get_host()}").hostname, name="Sluice"))


def credentials_of(user: User) -> dict[int, AttestedCredentialData]:
    keys = user.second_factors.filter(kind=SecondFactor.Kind.WEBAUTHN)
    return {key.pk: AttestedCredentialData(bytes(key.secret)) for key in keys}


def creation_options(request: HttpRequest, user: User) -> tuple[dict[str, Any], Any]:
    """Return the browser's options for a new key, and the state to verify its response."""
    entity = PublicKeyCredentialUserEntity(
        id=str(user.pk).encode(), name=user.get_username(), display_name=user.get_username()
    )
    options, state = relying_party(request).register_begin(
        entity, list(credentials_of(user).values()), user_verification=UserVerificationRequirement.DISCOURAGED
    )
    return dict(options)["publicKey"], state


def add_key(request: HttpRequest, user: User, state: Any, response: Mapping[str, Any], name: str) -> bool:
    """Add a security key if its response is valid, and return whether it is. Raises TooManyFactors."""
    try:
        data = relying_party(request).register_complete(state, response)
    except INVALID_RESPONSE_ERRORS as error:
        log.warning("security_key_refused", error=logs.describe(error))
        return False
    if data.credential_data is None:
        return False
    add(
        user,
        SecondFactor(
            kind=SecondFactor.Kind.WEBAUTHN, name=name, secret=bytes(data.credential_data), counter=data.counter
        ),
    )
    return True


def request_options(request: HttpRequest, user: User) -> tuple[dict[str, Any], Any] | None:
    """Return the options with which the browser uses a key, and the state to verify its response.

    Return None if the user has no keys.
    """
    if not (keys := credentials_of(user)):
        return None
    options, state = relying_party(request).authenticate_begin(
        list(keys.values()), user_verification=UserVerificationRequirement.DISCOURAGED
    )
    return dict(options)["publicKey"], state


def use_key(request: HttpRequest, user: User, state: Any, response: Mapping[str, Any]) -> bool:
    """Verify the response of a security key, and return whether it is valid.

    A signature counter that does not increase indicates a cloned authenticator (WebAuthn, section 6.1.1).
    """
    keys = credentials_of(user)
    try:
        used = relying_party(request).authenticate_complete(state, list(keys.values()), response)
        counter = AuthenticationResponse.from_dict(response).response.authenticator_data.counter
    except INVALID_RESPONSE_ERRORS as error:
        log.warning("security_key_refused", error=logs.describe(error))
        return False
    factor_id = next(pk for pk, each in keys.items() if each.credential_id == used.credential_id)
    factor = SecondFactor.objects.filter(pk=factor_id)
    # Keys without a counter always send 0.
    accepted = factor.filter(counter__lt=counter) if counter else factor.filter(counter=0)
    if accepted.update(counter=counter, last_used_at=timezone.now()):
        return True
    log.warning("security_key_counter_not_increased", factor=factor_id)
    return False


# ---- Changes --------------------------------------------------------------------------------------------------------


def add(user: User, factor: SecondFactor) -> None:
    """Save a new factor. Raises TooManyFactors."""
    with transaction.atomic():
        lock_user(user.pk)
        if user.second_factors.count() >= MAX_FACTORS:
            raise TooManyFactors
        factor.user = user
        factor.save()
        tokens.record(user, f"Added a second factor: {factor.get_kind_display()} {factor.name}.")


def remove(user: User, factor_id: int) -> SecondFactor:
    """Remove a second factor and, with the last one, the recovery codes. Raises NoSuchFactor or LastFactor."""
    with transaction.atomic():
        lock_user(user.pk)  # parallel requests must not remove the last two
        factor = require_first(user.second_factors.filter(pk=factor_id), NoSuchFactor)
        is_last = user.second_factors.count() == 1
        if is_last and is_required(user):
            raise LastFactor
        if is_last:
            RecoveryCode.objects.filter(user=user).delete()
        SecondFactor.objects.filter(pk=factor_id).delete()
        tokens.record(user, f"Removed a second factor: {factor.get_kind_display()} {factor.name}.")
    return factor


def replace_recovery_codes(user: User) -> list[str]:
    """Replace the user's recovery codes, and return the new ones. Only their digests are stored."""
    codes = [base64.b32encode(secrets.token_bytes(RECOVERY_CODE_BYTES)).decode() for _ in range(RECOVERY_CODES)]
    with transaction.atomic():
        lock_user(user.pk)  # parallel requests must not leave two sets of codes
        RecoveryCode.objects.filter(user=user).delete()
        RecoveryCode.objects.bulk_create([RecoveryCode(user=user, digest=digest_of(code)) for code in codes])
        tokens.record(user, "Created recovery codes.")
    return ["-".join(code[start : start + 4] for start in range(0, len(code), 4)) for code in codes]


def digest_of(code: str) -> str:
    """Return the digest of a code. A code has 80 random bits, so a fast hash is enough."""
    return sha256(code.encode()).hexdigest()


def reset(user: User) -> tuple[int, int]:
    """Remove all second factors and recovery codes of a user, and delete the user's sessions.

    Return the number of factors and the number of sessions.
    """
    with transaction.atomic():
        removed, _ = SecondFactor.objects.filter(user=user).delete()
        RecoveryCode.objects.filter(user=user).delete()
        # Last, so that sessions that were completed with a removed code in the meantime are deleted too.
        ended, _ = Session.objects.filter(session_key__in=sessions_of(user)).delete()
        factors, sessions = counted(removed, "second factor"), counted(ended, "session")
        staff.record_command(user, f"Removed {factors} and all recovery codes, and ended {sessions}.")
    return removed, ended


def sessions_of(user: User) -> list[str]:
    """Return the keys of the user's sessions. Reads all sessions, because only a session's data contains its user."""
    every = Session.objects.filter(expire_date__gt=timezone.now()).iterator()
    return [each.session_key for each in every if each.get_decoded().get(SESSION_KEY) == str(user.pk)]
