"""Connections that end in time, however slowly bytes come or go."""

import ssl
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import httpcore2
import httpx2

from etl.core.stage_context import StageContext

STALL_SECONDS = 60.0  # without a byte either way
BLOCK = 16 * 1024


class Clock:
    """How long the call at hand may still take."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.until = float("inf")

    def start(self, seconds: float | None) -> None:
        self.until = time.monotonic() + seconds if seconds is not None else float("inf")

    def bound(self, timeout: float | None, late: type[Exception]) -> float:
        """Return how long one wait may last. Raises `late`, and what `context.check()` raises."""
        left = min(self.until - time.monotonic(), self.context.remaining())
        if left <= 0:
            raise late
        return min(left, STALL_SECONDS if timeout is None else timeout)


class Stream(httpcore2.NetworkStream):
    """A connection on which the clock is looked at before each wait: a server that sends a byte a second would keep
    any timeout of a single read from ever coming.
    """

    def __init__(self, stream: httpcore2.NetworkStream, clock: Clock) -> None:
        self._stream, self._clock = stream, clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._clock.bound(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), BLOCK):
            self._stream.write(buffer[at : at + BLOCK], self._clock.bound(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        limit = self._clock.bound(timeout, httpcore2.ConnectTimeout)
        return Stream(self._stream.start_tls(ssl_context, server_hostname, limit), self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Backend(httpcore2.SyncBackend):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        limit = self._clock.bound(timeout, httpcore2.ConnectTimeout)
        return Stream(super().connect_tcp(host, port, limit, local_address, socket_options), self._clock)


class Transport(httpx2.HTTPTransport):
    """httpx2's transport on our connections. None is kept for the next call: servers close them while we pause."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(verify=tls())
        self._pool = httpcore2.ConnectionPool(
            ssl_context=tls(), network_backend=Backend(clock), max_keepalive_connections=0
        )


@cache
def tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
