"""System checks of settings that are well-formed but unsafe in production."""

import os
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from config.env import FILE_SUFFIX
from config.platform.http.addresses import parse
from etl.providers.local import sandbox, system_calls

MIN_KEY_LENGTH = 32  # as in config.env
NAME_THE_PROXY = "Set TRUSTED_PROXY_CIDRS to the network that the proxy connects from, such as 10.0.0.0/24."


@register(deploy=True)
def check_secret_key(**_kwargs: Any) -> list[CheckMessage]:
    env = settings.SLUICE
    fallbacks = [key.get_secret_value() for key in env.secret_key_fallbacks]
    keys = [env.secret_key.get_secret_value(), *fallbacks]
    if len(set(keys)) < len(keys):
        hint = (
            "Put the new key into SECRET_KEY and the old one into SECRET_KEY_FALLBACKS: "
            "docs/runbook.md#keys-are-rotated."
        )
        return [CheckWarning("SECRET_KEY_FALLBACKS repeats a key: no key was rotated.", hint=hint, id="ops.W001")]
    if any(len(key) < MIN_KEY_LENGTH for key in fallbacks):
        message = (
            f"A key in SECRET_KEY_FALLBACKS is shorter than {MIN_KEY_LENGTH} characters "
            "and still validates sessions and links."
        )
        return [CheckWarning(message, hint="Remove it from SECRET_KEY_FALLBACKS.", id="ops.W002")]
    return []


@register(deploy=True)
def check_proxies(**_kwargs: Any) -> list[CheckMessage]:
    """Check the proxies whose headers set the client's address and scheme."""
    networks = settings.SLUICE.trusted_proxy_cidrs
    if any(network.prefixlen == 0 for network in networks):
        message = (
            "TRUSTED_PROXY_CIDRS contains every address: "
            "clients can forge their address and bypass links that are bound to a network."
        )
        return [Error(message, hint=NAME_THE_PROXY, id="ops.E001")]
    if not networks and not settings.DEBUG:
        message = (
            "TRUSTED_PROXY_CIDRS is empty: behind a proxy, "
            "all clients appear to have the proxy's address and https is not detected."
        )
        return [CheckWarning(message, hint=NAME_THE_PROXY, id="ops.W003")]
    return []


@register(deploy=True)
def check_metrics(**_kwargs: Any) -> list[CheckMessage]:
    if any(network.prefixlen == 0 for network in settings.SLUICE.metrics_allow_cidrs):
        message = "METRICS_ALLOW_CIDRS contains every address: anyone can read /metrics."
        return [CheckWarning(message, hint="Set METRICS_ALLOW_CIDRS to the network of Prometheus.", id="ops.W004")]
    return []


@register(deploy=True)
def check_transport(**_kwargs: Any) -> list[CheckMessage]:
    """Check that presigned URLs and the files behind them are encrypted in transit."""
    url = urlsplit(str(settings.SLUICE.s3_public_endpoint_url or settings.SLUICE.s3_endpoint_url or "https://"))
    if url.scheme != "http" or is_loopback(url.hostname or ""):
        return []
    hint = "Put a proxy with TLS in front of the object storage and set S3_PUBLIC_ENDPOINT_URL to its https address."
    return [CheckWarning("The S3 endpoint for clients is http: exports can be intercepted.", hint=hint, id="ops.W005")]


@register(deploy=True)
def check_sandbox(**_kwargs: Any) -> list[CheckMessage]:
    """Check that a malicious document that takes over the parser process cannot read secrets from files."""
    env = settings.SLUICE
    has_secret_files = any(os.environ.get(f"{name}{FILE_SUFFIX}") for name in env.secrets())
    if env.etl_ocr_provider != "local" or not has_secret_files or sandbox.can_deny_files():
        return []
    message = (
        "The kernel does not support Landlock: "
        "a malicious document that takes over the parser process could read secrets from files."
    )
    hint = "Run OCR workers on Linux 5.13 or newer with Landlock, or pass their secrets as environment variables."
    return [CheckWarning(message, hint=hint, id="ops.W006")]


@register(deploy=True)
def check_single_sign_on(**_kwargs: Any) -> list[CheckMessage]:
    env = settings.SLUICE
    found: list[CheckMessage] = []
    if env.oidc_issuer is None and (env.oidc_user_groups or env.oidc_staff_groups or env.oidc_admin_groups):
        message = "OIDC_USER_GROUPS, OIDC_STAFF_GROUPS, or OIDC_ADMIN_GROUPS is set, but single sign-on is off."
        found.append(
            CheckWarning(message, hint="Set OIDC_ISSUER, OIDC_CLIENT_ID, and OIDC_CLIENT_SECRET.", id="ops.W008")
        )
    url = urlsplit(env.oidc_issuer or "https://")
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        message = "OIDC_ISSUER is http: the provider's tokens and the client secret travel unencrypted."
        found.append(CheckWarning(message, hint="Use the provider's https address.", id="ops.W009"))
    return found


@register(deploy=True)
def check_required_sandbox(**_kwargs: Any) -> list[CheckMessage]:
    env = settings.SLUICE
    if env.etl_ocr_provider != "local" or not env.etl_require_sandbox or not (missing := sandbox.missing()):
        return []
    message = (
        f"ETL_REQUIRE_SANDBOX is set, but this system has no {' and no '.join(missing)}: no document is read here."
    )
    hint = "Run OCR workers on Linux 5.13 or newer with Landlock and libseccomp, or unset ETL_REQUIRE_SANDBOX."
    return [Error(message, hint=hint, id="ops.E002")]


@register(deploy=True)
def check_system_calls(**_kwargs: Any) -> list[CheckMessage]:
    if settings.SLUICE.etl_ocr_provider != "local" or system_calls.can_deny():
        return []
    message = (
        "libseccomp is missing, or the kernel does not support seccomp: "
        "a malicious document that takes over the parser process could start processes and connect to sockets."
    )
    hint = "Install libseccomp for OCR workers: the package libseccomp2 of Debian, libseccomp of Fedora."
    return [CheckWarning(message, hint=hint, id="ops.W007")]


def is_loopback(host: str) -> bool:
    address = parse(host)
    return address.is_loopback if address else host == "localhost"
