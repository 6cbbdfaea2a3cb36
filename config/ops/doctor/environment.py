"""The settings themselves: Django's own checks for deployments, ours, and what is well-formed and unwise."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import run_checks

from config.env import IN_FILE, Environment
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from etl.providers.local import sandbox


def check_django(_env: Environment) -> Iterator[Finding]:
    """What `manage.py check --deploy` says."""
    found = [message for message in run_checks(include_deployment_checks=True) if not message.is_silenced()]
    for message in found:
        says = f"{str(message.msg).split(' If ')[0]} ({message.id})".replace("\n", " ")
        do = str(message.hint or f"Look up {message.id} in Django's system check framework.")
        yield failure(says, do) if message.is_serious() else warning(says, do)
    if not found:
        yield ok("Django's checks for deployments, and ours, have nothing to say.")


def check_secret_key(env: Environment) -> Iterator[Finding]:
    keys = [env.secret_key, *env.secret_key_fallbacks]
    if len({key.get_secret_value() for key in keys}) < len(keys):
        yield warning(
            "SECRET_KEY_FALLBACKS repeats a key: nothing was rotated.",
            "Put the new key into SECRET_KEY and the old one into SECRET_KEY_FALLBACKS: "
            "docs/runbook.md#keys-are-rotated.",
        )
    elif any(len(key.get_secret_value()) < 32 for key in env.secret_key_fallbacks):  # noqa: PLR2004  as in config.env
        yield warning(
            "A key in SECRET_KEY_FALLBACKS is shorter than 32 characters, and still opens sessions and links.",
            "Take it out of SECRET_KEY_FALLBACKS.",
        )
    else:
        old = len(env.secret_key_fallbacks)
        yield ok(f"One key signs, and {old} more are believed." if old else "One key signs and is believed.")


def check_proxies(env: Environment) -> Iterator[Finding]:
    """Who is trusted to say where a request came from; with everybody in it, anybody is anybody."""
    if any(network.prefixlen == 0 for network in env.trusted_proxy_cidrs):
        yield failure(
            "TRUSTED_PROXY_CIDRS holds every address: "
            "a client may choose its own, and links bound to a network are not.",
            "Name the network that the proxy connects from, such as 10.0.0.0/24.",
        )
    elif not env.trusted_proxy_cidrs and not settings.DEBUG:
        yield warning(
            "TRUSTED_PROXY_CIDRS is empty: "
            "behind a proxy all clients have its address, and https is not known as such.",
            "Name the network that the proxy connects from, such as 10.0.0.0/24.",
        )
    else:
        yield ok("The proxies that are believed are named.")


def check_metrics(env: Environment) -> Iterator[Finding]:
    if any(network.prefixlen == 0 for network in env.metrics_allow_cidrs):
        yield warning(
            "METRICS_ALLOW_CIDRS holds every address: anybody may read /metrics.",
            "Name the network of Prometheus in METRICS_ALLOW_CIDRS.",
        )
    else:
        yield ok("/metrics is for named networks.")


def check_transport(env: Environment) -> Iterator[Finding]:
    """What goes to clients in plain text over a network: presigned URLs, and what they lead to."""
    url = str(env.s3_public_endpoint_url or env.s3_endpoint_url or "https://")
    if urlsplit(url).scheme == "http" and not is_loopback(urlsplit(url).hostname or ""):
        yield warning(
            "S3_PUBLIC_ENDPOINT_URL is http: whoever listens on the way reads exports.",
            "Put a proxy with TLS before the object storage, and set S3_PUBLIC_ENDPOINT_URL to its https address.",
        )
    else:
        yield ok("Clients reach the object storage by https, or on this host.")


def check_confinement(env: Environment) -> Iterator[Finding]:
    """Whoever takes over the process that reads a document must not find keys there."""
    in_files = any(os.environ.get(f"{name.upper()}{IN_FILE}") for name in env.secrets())
    if env.etl_ocr_provider == "local" and in_files and not sandbox.hides_files():
        yield warning(
            "The kernel has no Landlock: a document that takes over its reader could open the files of our secrets.",
            "Read documents on Linux 5.13 or newer with Landlock, or give that worker its secrets as variables.",
        )
    else:
        yield ok("The process that reads documents sees no secret, or there is none here.")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_environment() -> AbstractContextManager[Environment]:
    return nullcontext(settings.SLUICE)


AWAY = "See that the settings can be read: python manage.py check."


SUBJECT = Subject(
    name="settings",
    open=open_environment,
    checks=(check_django, check_secret_key, check_proxies, check_metrics, check_transport, check_confinement),
    away=AWAY,
)
