"""URL guard: validation of webhook URLs.

Users choose the URLs, so requests to them must not reach the internal network (SSRF). This check gives early feedback.
Each delivery attempt checks again, with the address that it connects to.
"""

import re
from urllib.parse import urlsplit

import httpx2
from django.conf import settings

from config.platform.http import addresses
from config.platform.http.outbound import SsrfGuard
from config.platform.http.outbound.ssrf_guard import is_public, resolve

RESOLVE_SECONDS = 4  # the client that creates the webhook is waiting
MAX_URL = 2000
PORTS = {"https": 443, "http": 80}
MAX_PORT = 65535
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class UrlRefused(Exception):
    """The URL is not allowed for a webhook."""

    def __init__(self, detail: str, *, code: str = "invalid") -> None:
        super().__init__(detail)
        self.detail, self.code = detail, code


class InvalidUrl(UrlRefused):
    def __init__(self) -> None:
        super().__init__("Must be a URL such as https://example.com/hooks.")


class HttpsRequired(UrlRefused):
    def __init__(self) -> None:
        super().__init__("Must begin with https://.", code="not_https")


def configured() -> SsrfGuard:
    return SsrfGuard(tuple(settings.SLUICE.export_webhook_allow_cidrs))


def check(url: str) -> None:
    """Raise UrlRefused if the URL, or a current address of its host, is not allowed for a webhook.

    If DNS does not respond, https is accepted, because each attempt checks again, and users should be able to create
    webhooks during a short DNS outage. Plain http is rejected, because it is only allowed for certain networks.
    """
    parsed = parse(url)
    guard = configured()
    found = [addresses.parse(text) for text in lookup(parsed)]
    if parsed.scheme == "http" and not found:
        raise HttpsRequired
    if not all(guard.permits(address, scheme=parsed.scheme) for address in found):
        if parsed.scheme == "http" and all(address and is_public(address) for address in found):
            raise HttpsRequired
        raise UrlRefused("Must not lead to a private address.", code="private_address")


def parse(url: str) -> httpx2.URL:
    """Return the URL, parsed by the HTTP client that sends the requests. Raises UrlRefused."""
    if len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise InvalidUrl
    try:
        parsed = httpx2.URL(url)
        has_credentials = "@" in urlsplit(url).netloc
    except (httpx2.InvalidURL, ValueError):
        raise InvalidUrl from None
    if parsed.scheme not in PORTS or not is_host(parsed.raw_host.decode()) or not is_port(parsed.port):
        raise InvalidUrl
    if has_credentials:
        raise UrlRefused("Must not contain credentials: verify the signature of each request instead.")
    if "#" in url:
        raise UrlRefused("Must not contain a fragment: it is never sent.")
    if parsed.scheme == "http" and not configured().allowed:
        raise HttpsRequired
    return parsed


def is_host(host: str) -> bool:
    return bool(HOST_NAME.fullmatch(host)) or (":" in host and addresses.parse(f"[{host}]") is not None)


def is_port(port: int | None) -> bool:
    return port is None or 0 < port <= MAX_PORT


def lookup(url: httpx2.URL) -> list[str]:
    """Return the addresses of the host, or [] if it has none or DNS does not respond. Raises InvalidUrl."""
    try:
        return resolve(url.raw_host.decode(), url.port or PORTS[url.scheme], seconds=RESOLVE_SECONDS)
    except ValueError:  # an invalid host name, such as one with a label of 64 characters
        raise InvalidUrl from None
    except OSError:
        return []
