"""Receivers of webhooks: where one may be, and the one way there.

Users choose these URLs, so a request must never become theirs inside our network. What a name leads to is decided at
each attempt, on the very address that is connected to: an answer of the DNS that was good a moment ago proves nothing.
Redirects are not followed, proxies and credentials of the environment are not used, and no answer is waited for, or
read, without end.
"""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
import structlog
from django.conf import settings
from requests.adapters import HTTPAdapter
from requests_hardened import Config, HTTPSession
from requests_hardened.ip_filter import EXTRA_BLOCKED_NET_RANGES, InvalidIPAddress
from requests_hardened.ip_filter_adapter import IPFilterAdapter
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from config.platform.http import retry_header
from config.platform.http.addresses import Address, parse, within

log = structlog.get_logger(__name__)
T = TypeVar("T")

ATTEMPT_SECONDS = 15  # for all of it: name, connection, TLS, request and answer
CONNECT_SECONDS = 5
RESOLVE_SECONDS = 4  # while a client waits for its webhook to be made
MAX_ANSWER_BYTES = 64 * 1024
MAX_RETRY_AFTER = 24 * 3600
MAX_URL = 2000
PORTS = {"https": 443, "http": 80}

# All of IPv6 that is given out to anybody. NAT64, 6to4 and Teredo lead on to IPv4, and private addresses with it; those
# of them that lie in here are among the library's.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# A public address that is the inside of every Azure network.
CLOUD = (ip_network("168.63.129.16/32"),)


class Refused(Exception):
    """A webhook may not lead there."""

    def __init__(self, detail: str, *, code: str = "invalid") -> None:
        super().__init__(detail)
        self.detail, self.code = detail, code


class NotAURL(Refused):
    def __init__(self) -> None:
        super().__init__("Must be a URL such as https://example.com/hooks.")


class NotHTTPS(Refused):
    def __init__(self) -> None:
        super().__init__("Must begin with https://.", code="not_https")


# ---- Where a webhook may lead ---------------------------------------------------------------------------------------


def is_public(address: Address) -> bool:
    if within(address, (*EXTRA_BLOCKED_NET_RANGES, *CLOUD)) or address.is_multicast:
        return False
    if isinstance(address, IPv6Address):
        return address in GLOBAL_UNICAST and not address.is_private
    return address.is_global and not address.is_reserved


def may_reach(address: Address | None, *, scheme: str) -> bool:
    """Inner networks that the operator allowed, also in plain text; otherwise public addresses, over TLS alone."""
    if address is None:
        return False
    return within(address, settings.SLUICE.export_webhook_allow_cidrs) or (scheme == "https" and is_public(address))


def check(url: str) -> None:
    """Raise Refused unless this is a URL that webhooks may lead to, by what the DNS says now.

    When it says nothing, https is taken: each attempt looks again, and a DNS that is away for a moment must not cost
    owners their webhook. Plain http is not: nothing shows that it leads to a network where it is allowed.
    """
    place = read(url)
    scheme = str(place.scheme)
    found = resolve(str(place.host).strip("[]"), place.port or PORTS[scheme])
    if scheme == "http" and not found:
        raise NotHTTPS
    if not all(may_reach(address, scheme=scheme) for address in found):
        if scheme == "http" and all(address and is_public(address) for address in found):
            raise NotHTTPS
        raise Refused("Must not lead to a private address.", code="private_address")


def read(url: str) -> Url:
    """Return the parts of a URL, read as the client that will post to it reads it. Raises Refused."""
    if len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise NotAURL
    try:
        given = parse_url(url)
        sent = parse_url(str(requests.Request("POST", url).prepare().url))
        has_credentials = "@" in urlsplit(url).netloc
    except (requests.RequestException, LocationParseError, ValueError):
        raise NotAURL from None
    if given.scheme not in PORTS or not sent.host or given.port == 0:
        raise NotAURL
    if has_credentials:
        raise Refused("Must not hold credentials: requests are signed instead.")
    if given.fragment is not None:
        raise Refused("Must not have a fragment: it is never sent.")
    if given.scheme == "http" and not settings.SLUICE.export_webhook_allow_cidrs:
        raise NotHTTPS
    return sent


def resolve(host: str, port: int) -> list[Address | None]:
    """Return all addresses of a name; none if it has none, or if the DNS takes too long. Raises Refused."""
    try:
        answers = in_time(RESOLVE_SECONDS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except ValueError:  # not a name at all, such as one with a label of 64 characters
        raise NotAURL from None
    except OSError:
        return []
    return [parse(str(answer[4][0])) for answer in answers]


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """Return what the call returns, or raise TimeoutError. Then its thread is left to end by itself: nothing can stop
    a look at the DNS."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name="endpoint", daemon=True).start()
    return outcome.result(seconds)


# ---- The way there --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one attempt: a status, or why there is none, in our words."""

    status: int | None = None
    error: str = ""
    retry_after: float = 0  # seconds; what the receiver wishes, a day at most
    seconds: float = 0

    @property
    def is_success(self) -> bool:
        return self.status is not None and HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


def post(url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
    """Post once. Returns within ATTEMPT_SECONDS whatever the other side does; raises nothing of its own."""
    began = time.monotonic()
    exchange = Exchange(url, body, headers)
    try:
        in_time(ATTEMPT_SECONDS, exchange.run)
        error = exchange.error
    except TimeoutError:
        error = "no answer in time"  # not what the thread says of it, once its connection is cut
    finally:
        exchange.line.cut()
    seconds = time.monotonic() - began
    if exchange.status_code is None:
        return Answer(error=error, seconds=seconds)
    return Answer(status=exchange.status_code, retry_after=exchange.retry_after, seconds=seconds)


class Line:
    """The connection of an attempt, as far as it must be possible to end it from another thread: a receiver that sends
    one byte a second would keep any timeout of a single read from ever coming."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_cut = False

    def hold(self, connected: socket.socket) -> None:
        """Take a socket on, before TLS. A duplicate of it: TLS takes the original over."""
        with self._lock:
            if self.is_cut:
                connected.close()
                raise TimeoutError
            self._socket = connected.dup()

    def cut(self) -> None:
        """Whoever reads or writes on the connection finds it closed; nobody connects any more."""
        with self._lock:
            self.is_cut = True
            if self._socket:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()


class Exchange:
    """One request and its answer, in a thread of its own. `status_code` is there as soon as the answer's head is."""

    def __init__(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        self.url, self.body, self.headers = url, body, headers
        self.line = Line()
        self.status_code: int | None = None
        self.retry_after = 0.0
        self.error = ""

    def run(self) -> None:
        try:
            self.ask()
        except Exception as error:  # strangers' bytes; all that comes of them is written down
            self.error = reason(error)
            if self.error == UNFORESEEN:
                log.exception("unexpected_error")

    def ask(self) -> None:
        with Session(self.line) as session:
            answer = session.post(self.url, data=self.body, headers=self.headers, stream=True)
            if self.line.is_cut:
                raise TimeoutError  # in the middle of its head, of which the beginning looks whole
            self.retry_after = wish(answer)
            self.status_code = answer.status_code
            read_out(answer)


def read_out(answer: requests.Response) -> None:
    """Read the body, so that the receiver need not fail over a closed connection; but nobody wants it."""
    left = MAX_ANSWER_BYTES
    while left > 0 and (block := answer.raw.read1(min(left, 16 * 1024), decode_content=False)):
        left -= len(block)


def wish(answer: requests.Response) -> float:
    if answer.status_code not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return 0
    return retry_header.seconds(answer.headers.get("Retry-After"), most=MAX_RETRY_AFTER) or 0


UNFORESEEN = "the exchange failed"
REASONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (InvalidIPAddress, "refused: it leads to an address that webhooks may not reach"),
    (requests.exceptions.SSLError, "no TLS connection: its certificate or protocol was not accepted"),
    ((requests.Timeout, TimeoutError), "no answer in time"),
    ((requests.exceptions.InvalidURL, ValueError), "not a URL that can be posted to"),
    ((requests.RequestException, HTTPError, OSError), "no connection, or no HTTP on it"),
)


def reason(error: Exception) -> str:
    return next((text for kinds, text in REASONS if isinstance(error, kinds)), UNFORESEEN)


class Session(HTTPSession):
    """A client for one attempt."""

    def __init__(self, line: Line) -> None:
        super().__init__(
            Config(
                ip_filter_enable=True,
                ip_filter_allow_loopback_ips=False,
                never_redirect=True,
                default_timeout=(CONNECT_SECONDS, ATTEMPT_SECONDS),
                user_agent_override=f"Sluice/{settings.SPECTACULAR_SETTINGS['VERSION']}",
            )
        )
        self.trust_env = False  # no proxies, which would resolve names themselves, and no ~/.netrc
        for scheme in PORTS:
            self.mount(f"{scheme}://", Adapter(scheme, line))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """There is none: requests reads the whole body of a redirect, also of one that it does not follow."""


class Adapter(IPFilterAdapter):
    """The library's adapter, which connects to the address that it has checked, by our rules on top of its own."""

    def __init__(self, scheme: str, line: Line) -> None:
        super().__init__(is_https_proto=scheme == "https")
        self.scheme, self.line = scheme, line

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            place, tls = super().build_connection_pool_key_attributes(request, verify, cert)
            address = parse(place["host"])
        except InvalidIPAddress as refused:
            # The library knows no exceptions but loopback. Which address it found it tells, so nothing is asked twice.
            (address,) = refused.args
            place, tls = self.place(request, verify, cert, address)
        if self.line.is_cut:
            raise TimeoutError
        if not may_reach(address, scheme=self.scheme):
            raise InvalidIPAddress(address)
        return place, tls

    def place(
        self, request: requests.PreparedRequest, verify: Any, cert: Any, address: IPv4Address | IPv6Address
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """As the library builds it; the Host header is set by now."""
        parts, options = HTTPAdapter.build_connection_pool_key_attributes(self, request, verify, cert)
        place, tls = dict(parts), dict(options)
        if self.scheme == "https":
            tls |= {"assert_hostname": place["host"], "server_hostname": place["host"]}
        place["host"] = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
        return place, tls

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool = super().get_connection_with_tls_context(*args, **options)
        pool.ConnectionCls = on_line(pool.ConnectionCls, self.line)
        return pool


def on_line(kind: Any, line: Line) -> Any:
    """Return urllib3's kind of connection as one that can be cut as soon as it is made."""

    class Connection(kind):
        def _new_conn(self) -> socket.socket:
            connected: socket.socket = super()._new_conn()
            line.hold(connected)
            return connected

    return Connection
