"""HTTP client for requests to other servers.

It follows no redirects, keeps no cookies, and uses no proxies or credentials of the environment. It requests responses
without compression, because the decompressed size would need another limit.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Self

import httpx2
from django.conf import settings

from config.platform.http.outbound.connections import Transport
from config.platform.http.outbound.deadline import Deadline
from config.platform.http.outbound.ssrf_guard import SsrfGuard

CONNECT_SECONDS = 5.0
STALL_SECONDS = 60.0  # without a byte in either direction


class ResponseTooLarge(Exception):
    """The response body exceeds its limit."""


class Client:
    """HTTP client with a deadline.

    Every call may raise httpx2.TransportError, AddressBlocked, and the errors of `deadline`.
    """

    def __init__(
        self,
        deadline: Deadline,
        *,
        guard: SsrfGuard | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._transport = Transport(deadline, guard=guard)
        self._timeout = httpx2.Timeout(stall_seconds, connect=CONNECT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @contextmanager
    def send(
        self, method: str, url: str | httpx2.URL, *, headers: Mapping[str, Any] | None = None, **content: Any
    ) -> Iterator[httpx2.Response]:
        """Send a request and yield the response, whose body is not read yet. `content`: as for httpx2.Request."""
        request = httpx2.Request(
            method,
            url,
            headers={"Accept-Encoding": "identity", "User-Agent": user_agent(), **(headers or {})},
            extensions={"timeout": self._timeout.as_dict()},
            **content,
        )
        with closing(self._transport.handle_request(request)) as response:
            yield response


def user_agent() -> str:
    return f"Sluice/{settings.SPECTACULAR_SETTINGS['VERSION']}"


def read_chunks(response: httpx2.Response, *, limit: int) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises ResponseTooLarge."""
    for chunk in response.iter_raw():
        limit -= len(chunk)
        if limit < 0:
            raise ResponseTooLarge
        yield chunk


def read_body(response: httpx2.Response, *, limit: int) -> bytes:
    """Return the body. Raises ResponseTooLarge, so that a body is never truncated."""
    return b"".join(read_chunks(response, limit=limit))
