"""Blocking I/O, and I/O in the event loop of asyncio, behind one interface.

The client is written once, in coroutines that do all I/O here. The methods of `Blocking` never suspend, so
`sluice.blocking` runs these coroutines without an event loop. See ADR 53.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import IO, Any, Protocol, TypeVar

import httpx2

BLOCK_BYTES = 256 * 1024
T = TypeVar("T")


class Network(Protocol):
    """The I/O of the client. `http`: an HTTP client from `client`."""

    def client(self, **options: Any) -> Any: ...

    async def send(self, http: Any, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Return the response before its body is read."""
        ...

    async def read(self, response: httpx2.Response) -> bytes: ...

    def blocks(self, response: httpx2.Response, *, raw: bool = False) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, in blocks of any size. `raw`: without decompression."""
        ...

    async def close(self, opened: Any) -> None:
        """Close a response or a client."""
        ...

    def upload(self, file: IO[bytes]) -> Any:
        """Return the content of a request that sends a file."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that reads or writes files."""
        ...


class Blocking:
    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(**options)

    async def send(self, http: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
        return http.send(request, stream=True)

    async def read(self, response: httpx2.Response) -> bytes:
        return response.read()

    async def blocks(self, response: httpx2.Response, *, raw: bool = False) -> AsyncIterator[bytes]:
        for block in response.iter_raw() if raw else response.iter_bytes():
            yield block

    async def close(self, opened: Any) -> None:
        opened.close()

    def upload(self, file: IO[bytes]) -> Iterator[bytes]:
        return iter(lambda: file.read(BLOCK_BYTES), b"")

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - all methods of this class block

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)


class Asynchronous:
    def client(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**options)

    async def send(self, http: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        return await http.send(request, stream=True)

    async def read(self, response: httpx2.Response) -> bytes:
        return await response.aread()

    async def blocks(self, response: httpx2.Response, *, raw: bool = False) -> AsyncIterator[bytes]:
        async for block in response.aiter_raw() if raw else response.aiter_bytes():
            yield block

    async def close(self, opened: Any) -> None:
        await opened.aclose()

    async def upload(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        while block := await self.call(file.read, BLOCK_BYTES):
            yield block

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(function, *arguments)
