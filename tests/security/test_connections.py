"""Tests of a real web process with clients that send too much data, invalid data, or data too slowly."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from knox.models import AuthToken

from config import connections
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from etl.models import Task
from tests.waiting import expect_within, wait_until

SUBMIT, PAGE = "/api/v1/etl/submit", "/app/documents/submit"
FORM = "multipart/form-data; boundary=b"
CROWD = 200
LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROMPT = 5.0  # maximum seconds for requests of other clients
LISTENING = "0A"  # the state in /proc/net/tcp
OPENINGS = {
    "headers": b"POST /exports HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "a body": b"POST /exports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100000\r\n\r\n{",
    "a file": b"POST /api/v1/etl/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM.encode() + b"\r\n"
    b"Content-Length: 100000\r\nAuthorization: Bearer %s\r\n\r\n--b\r\n",
}


def ask(web: Web, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    peer = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    peer.request(method, path, body, named)
    response = peer.getresponse()
    answer = response.status, response.read(), dict(response.headers)
    peer.close()
    return answer


def send_headers_only(web: Web, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Send the headers of a large form without its body, and read the response."""
    peer = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
    peer.putrequest("POST", path)
    for name, value in ({"Content-Type": FORM, "Content-Length": "40000000"} | headers).items():
        peer.putheader(name, value)
    peer.endheaders()
    response = peer.getresponse()
    answer = response.status, response.read(), dict(response.headers)
    peer.close()
    return answer


def memory(web: Web) -> int:
    """Return the memory of the process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{web.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def accepted(web: Web) -> int:
    """Return the number of accepted and open client connections of the process."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in rows if row[1].endswith(f":{web.port:04X}") and row[3] != LISTENING]
    return sum(row[9] != "0" for row in ours)  # no inode: not accepted yet, or closed


# ---- Unauthenticated large bodies -----------------------------------------------------------------------------------
@pytest.fixture
def unauthenticated_headers(alice: User) -> dict[str, dict[str, str]]:
    """Return headers that do not authenticate, by reason."""
    signed_out = Client()
    signed_out.force_login(alice)
    ended = signed_out.cookies["sessionid"].value
    signed_out.logout()
    revoked, token = AuthToken.objects.create(alice)
    revoked.delete()
    return {
        "nothing": {},
        "a revoked token": {"Authorization": f"Bearer {token}"},
        "an empty token": {"Authorization": "Bearer"},
        "another scheme": {"Authorization": "Basic YTpi"},
        "a signed-out session": {"Cookie": f"sessionid={ended}"},
        "an unknown session": {"Cookie": f"sessionid={'a' * 32}"},
        "a malformed session": {"Cookie": 'sessionid="\\000aaaaaaaaaaaa"'},
    }


def test_unauthenticated_uploads_are_not_read(web: Web, unauthenticated_headers: dict[str, dict[str, str]]) -> None:
    """Otherwise, each request would write up to ETL_MAX_FILE_BYTES to disk before Django authenticates it."""
    for reason, headers in unauthenticated_headers.items():
        status, body, received = send_headers_only(web, SUBMIT, **headers)
        expected = "authentication_failed" if "Bearer" in headers.get("Authorization", "") else "not_authenticated"
        assert (status, json.loads(body)["code"]) == (401, expected), reason
        assert received["www-authenticate"].startswith("Bearer"), reason
        assert received["content-type"] == "application/problem+json", reason
        status, _, received = send_headers_only(web, PAGE, **headers)
        assert (status, received["location"]) == (303, "/app/sign-in?next=%2Fapp%2Fdocuments"), reason


def test_unauthenticated_uploads_get_401_even_if_the_body_is_sent(web: Web) -> None:
    status, body, _ = ask(web, "POST", SUBMIT, b"x" * 20_000_000, Content_Type=FORM)
    assert (status, json.loads(body)["code"]) == (401, "not_authenticated")


def test_authenticated_uploads_are_read(web: Web, alice: User, token: str) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nHello.\r\n--b--\r\n'
    assert ask(web, "POST", SUBMIT, form, Content_Type=FORM, Authorization=f"Bearer {token}")[0] == 202
    browser = Client()
    browser.force_login(alice)
    browser.get("/app/account")
    cookies = {name: morsel.value for name, morsel in browser.cookies.items()}
    sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()), "Content_Type": FORM}
    assert ask(web, "POST", SUBMIT, form, **sent, X_CSRFToken=cookies["csrftoken"])[0] == 202
    assert ask(web, "POST", PAGE, form, **sent, X_CSRFToken=cookies["csrftoken"])[0] == 302
    assert ask(web, "POST", SUBMIT, form, **sent)[0] == 403  # the CSRF token is still required
    assert Task.objects.count() == 3


@pytest.mark.slow
def test_uploads_are_not_read_while_the_database_is_unavailable(web: Web, token: str) -> None:
    """Tokens cannot be checked without the database."""
    name = connection.settings_dict["NAME"]
    with without_database(str(name)):
        status, body, received = send_headers_only(web, SUBMIT, Authorization=f"Bearer {token}")
    assert (status, json.loads(body)["code"]) == (503, "database_unavailable")
    assert received["retry-after"]


@contextmanager
def without_database(name: str) -> Iterator[None]:
    """Disconnect all clients from the test database, and refuse new connections."""
    connection.close()
    with psycopg.connect(settings.SLUICE.database_url.get_secret_value(), autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        other.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


# ---- Headers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "endless", [b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"GET /livez?", b"GET /livez HTTP/1.1\r\n"]
)
def test_endless_headers_are_cut_off(web: Web, endless: bytes) -> None:
    """uvicorn alone would buffer all data, and copy it again for each received piece."""
    piece = b"x" * 16_384 if not endless.endswith(b"1.1\r\n") else b"X-Many: 1\r\n" * 1_500
    sent, before = 0, memory(web)
    with socket.create_connection((LOOPBACK, web.port), timeout=20) as peer:
        peer.sendall(endless)
        try:
            while sent < 50_000_000:
                peer.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    assert sent < 20_000_000  # the kernel buffers some data
    assert memory(web) - before < 20_000_000
    assert ask(web, "GET", "/livez")[0] == 200


def test_too_large_headers_get_a_response(web: Web) -> None:
    answer = raw(web, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * connections.MAX_HEADER_BYTES)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_long_headers_within_the_limit_are_read(web: Web) -> None:
    status, _, _ = ask(web, "GET", "/livez", X_Long="x" * (connections.MAX_HEADER_BYTES - 1000))
    assert status == 200


def test_trailers_are_not_buffered(web: Web, token: str) -> None:
    """Trailers are not used, so they must not take memory."""
    head = f"POST /exports/preview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    body = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    before = memory(web)
    with socket.create_connection((LOOPBACK, web.port), timeout=20) as peer:
        peer.sendall(head.encode() + body)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            peer.sendall((b"X-Trailer: " + b"x" * 16_384 + b"\r\n") * 2_000)
    assert memory(web) - before < 20_000_000


@pytest.mark.parametrize(
    "smuggled",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + LIVE,
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Bad Name: x\r\n\r\n",
        b"X: a\rb\r\n\r\n",
        b"X: a\x00b\r\n\r\n",
    ],
)
def test_ambiguously_framed_requests_are_refused(web: Web, smuggled: bytes) -> None:
    """Otherwise, a proxy and the server could disagree about request boundaries, which allows request smuggling."""
    answer = raw(web, b"POST /exports HTTP/1.1\r\nHost: localhost\r\n" + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def raw(web: Web, request: bytes) -> bytes:
    with socket.create_connection((LOOPBACK, web.port), timeout=20) as peer:
        peer.sendall(request)
        answer = b""
        try:
            while part := peer.recv(65_536):
                answer += part
        except OSError:
            pass
        return answer


# ---- Slow clients ---------------------------------------------------------------------------------------------------
class Crowd:
    """Many connections that each start a request, and then send one byte at a time."""

    def __init__(self, web: Web, opening: bytes, count: int, stack: ExitStack) -> None:
        self.began = time.monotonic()
        self.peers = [
            stack.enter_context(socket.create_connection((LOOPBACK, web.port), timeout=20)) for _ in range(count)
        ]
        for peer in self.peers:
            peer.sendall(opening)
        self.is_over = threading.Event()
        self.sent = 0
        self.thread = threading.Thread(target=self.drip)
        self.thread.start()
        stack.callback(self.thread.join)
        stack.callback(self.is_over.set)

    @property
    def is_late(self) -> bool:
        """Return whether the server may have closed connections because their headers are incomplete."""
        return time.monotonic() - self.began >= connections.HEADER_TIMEOUT_SECONDS

    def drip(self) -> None:
        while not self.is_over.wait(0.2):
            for peer in list(self.peers):
                try:
                    self.sent += peer.send(b"x")
                except OSError:
                    self.peers.remove(peer)


@pytest.mark.slow
@pytest.mark.parametrize("what", OPENINGS)
def test_slow_clients_do_not_block_other_requests(web: Web, token: str, what: str) -> None:
    """A slow client uses a socket, but no thread and no database connection."""
    opening = OPENINGS[what] % token.encode() if b"%s" in OPENINGS[what] else OPENINGS[what]
    asked = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}

    def request(method: str, path: str, expected: int) -> None:
        assert ask(web, method, path, b"{}" if method == "POST" else None, **asked)[0] == expected

    def request_beside_a_crowd() -> None:
        with ExitStack() as stack:
            crowd = Crowd(web, opening, CROWD, stack)
            wait_until(lambda: accepted(web) >= CROWD or crowd.is_late)
            for each in (("GET", "/livez", 200), ("GET", "/exports", 200), ("POST", "/exports", 400)):
                expect_within(PROMPT, partial(request, *each))
            wait_until(lambda: crowd.sent > 2 * CROWD or crowd.is_late)
            assert len(crowd.peers) == CROWD or crowd.is_late
        wait_until(lambda: not accepted(web))

    # A try that takes longer is repeated, because the server closes connections whose headers are incomplete.
    expect_within(connections.HEADER_TIMEOUT_SECONDS, request_beside_a_crowd)


SLOW = [
    (b"", b""),
    (b"", b"\r\n"),
    (b"GET /livez HTTP/1.1\r\nX-Slow: ", b"x"),
    (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
]


@pytest.mark.slow
def test_slow_headers_time_out(web: Web) -> None:
    """With no data, empty lines, or single bytes, and also after a first request."""
    began = time.monotonic()
    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection((LOOPBACK, web.port), timeout=0.2)) for _ in SLOW]
        for peer, (opening, _) in zip(peers, SLOW, strict=True):
            peer.sendall(opening)
        left = list(zip(peers, [drop for _, drop in SLOW], strict=True))
        while left and time.monotonic() - began < 3 * connections.HEADER_TIMEOUT_SECONDS:
            left = [(peer, drop) for peer, drop in left if is_open(peer, drop)]
        took = time.monotonic() - began
    assert not left
    assert took > connections.HEADER_TIMEOUT_SECONDS - 1


def is_open(peer: socket.socket, drop: bytes) -> bool:
    """Send `drop`, and return whether the connection is still open."""
    try:
        peer.sendall(drop)
        while peer.recv(65_536):
            pass
    except TimeoutError:
        return True
    except OSError:
        return False
    return False
