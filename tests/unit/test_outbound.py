"""Outbound HTTP: deadlines, limits, redirects, and the SSRF guard (A25, B14, B15)."""

import socket
import threading
from ipaddress import ip_network
from typing import Any

import httpx2
import pytest

from config.platform.http import outbound
from config.platform.http.outbound import AddressBlocked, Deadline, ResponseTooLarge, SsrfGuard, environment_proxy
from tests.integration.receiver import answer, receiver, trickle
from tests.waiting import expect_within

LOOPBACK = SsrfGuard((ip_network("127.0.0.0/8"),))


def post(url: str, deadline: Deadline, *, guard: SsrfGuard | None = None, limit: int = 1000) -> tuple[int, bytes]:
    with outbound.Client(deadline, guard=guard) as client, client.send("POST", url, content=b"{}") as response:
        return response.status_code, outbound.read_body(response, limit=limit)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_response_that_trickles_ends_at_the_deadline(head: bytes) -> None:
    may_end = threading.Event()
    with receiver(trickle(may_end, head=head)) as server:

        def call() -> None:
            with pytest.raises(httpx2.TimeoutException):
                post(server.url, Deadline(0.3), limit=10**6)

        expect_within(2, call)
        may_end.set()


def test_a_call_is_aborted_while_it_receives_nothing() -> None:
    """For example, the caller may have lost its lease."""
    may_end, is_lost = threading.Event(), threading.Event()

    def wait(_to: Any) -> None:
        is_lost.set()
        may_end.wait(20)

    def remaining() -> float:
        if is_lost.is_set():
            raise InterruptedError
        return 60

    with receiver(wait) as server:

        def call() -> None:
            with pytest.raises(InterruptedError):
                post(server.url, Deadline(remaining=remaining))

        expect_within(3, call)
        may_end.set()


def test_too_large_bodies_are_refused_and_never_truncated() -> None:
    with receiver(answer(200, b"x" * 1000)) as server:
        assert post(server.url, Deadline(10), limit=1000) == (200, b"x" * 1000)
        with pytest.raises(ResponseTooLarge):
            post(server.url, Deadline(10), limit=999)


def test_redirects_are_not_followed() -> None:
    with receiver() as elsewhere, receiver(answer(307, Location=elsewhere.url)) as server:
        assert post(server.url, Deadline(10))[0] == 307
        assert elsewhere.received == []


def resolve_both(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Make the name both.example resolve to these addresses."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        hosts = addresses if host == "both.example" else (host,)
        return [found for each in hosts for found in real(each, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_the_ssrf_guard_blocks_names_with_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A25: every address of a name must be permitted, because a connection may use any of them."""
    resolve_both(monkeypatch, "127.0.0.1", "10.0.0.1")
    with receiver() as server:
        with pytest.raises(AddressBlocked):
            post(server.url.replace("127.0.0.1", "both.example"), Deadline(10), guard=LOOPBACK)
        assert server.received == []
        assert post(server.url, Deadline(10), guard=LOOPBACK)[0] == 204


def test_it_tries_the_next_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_both(monkeypatch, "127.0.0.2", "127.0.0.1")
    with receiver() as server:
        assert post(server.url.replace("127.0.0.1", "both.example"), Deadline(10), guard=LOOPBACK)[0] == 204
        assert server.received[0].headers["host"].startswith("both.example:")


def test_the_ssrf_guard_requires_direct_connections() -> None:
    with pytest.raises(ValueError, match="proxy"):
        outbound.Transport(Deadline(), guard=LOOPBACK, proxy="http://127.0.0.1:3128")


def test_it_finds_proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert environment_proxy("https://model.example/v1") is None
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inner.example")
    assert environment_proxy("https://model.example/v1") == "http://proxy.example:3128"
    assert environment_proxy("https://a.inner.example/v1") is None
    assert environment_proxy("http://model.example/v1") is None
