"""Connections with a deadline, to permitted addresses only.

A host is resolved once per connection, and the guard checks the addresses that are used for the connection. An earlier
check would not be safe, because DNS may return other addresses later (DNS rebinding). TLS and the Host header still use
the name.
"""

import ssl
import time
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from config.platform.http.outbound.deadline import Deadline
from config.platform.http.outbound.ssrf_guard import SsrfGuard, resolve

BLOCK = 16 * 1024
POLL_SECONDS = 0.25  # interval at which a blocked read checks whether the call was aborted


class Transport(httpx2.HTTPTransport):
    """httpx2's transport on these connections. None is kept alive, because peers close idle connections."""

    def __init__(self, deadline: Deadline, *, guard: SsrfGuard | None = None, proxy: str | None = None) -> None:
        if guard and proxy:
            raise ValueError("A proxy resolves names itself, so the guard could not check addresses.")
        super().__init__(verify=tls_context(), proxy=proxy, limits=httpx2.Limits(max_keepalive_connections=0))
        self._backend = BoundedBackend(deadline, guard)
        self._pool._network_backend = self._backend  # the transport has no parameter for it

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self._backend.scheme = request.url.scheme
        return super().handle_request(request)


class BoundedBackend(httpcore2.SyncBackend):
    def __init__(self, deadline: Deadline, guard: SsrfGuard | None) -> None:
        self._deadline, self._guard = deadline, guard
        self.scheme = "https"

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that responds. May raise AddressBlocked."""
        failure: Exception = httpcore2.ConnectError("The host has no address.")
        for address in self._addresses(host, port, timeout):
            limit = self._deadline.limit(timeout, httpcore2.ConnectTimeout)
            try:
                stream = super().connect_tcp(address, port, limit, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return BoundedStream(stream, self._deadline)
        raise failure

    def _addresses(self, host: str, port: int, timeout: float | None) -> list[str]:
        try:
            found = resolve(host, port, seconds=self._deadline.limit(timeout, httpcore2.ConnectTimeout))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout from error
        except (OSError, ValueError) as error:  # ValueError: a label of more than 63 characters
            raise httpcore2.ConnectError(str(error)) from error
        return self._guard.check(found, scheme=self.scheme) if self._guard else found


class BoundedStream(httpcore2.NetworkStream):
    """A connection that checks the deadline before each wait."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        began = time.monotonic()
        while True:
            limit = self._deadline.limit(timeout, httpcore2.ReadTimeout)
            try:
                return self._stream.read(max_bytes, min(limit, POLL_SECONDS))
            except httpcore2.ReadTimeout:
                if timeout is not None and time.monotonic() - began >= timeout:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), BLOCK):
            self._stream.write(buffer[at : at + BLOCK], self._deadline.limit(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        limit = self._deadline.limit(timeout, httpcore2.ConnectTimeout)
        return BoundedStream(self._stream.start_tls(ssl_context, server_hostname, limit), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context with the trusted authorities. It is cached, because loading them is slow."""
    return httpx2.create_ssl_context()


def environment_proxy(url: str) -> str | None:
    """Return the proxy for a URL from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, and NO_PROXY."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
