"""Clients of a web process. Each has a persistent connection, and sends the next request right after each response.

`python -m tests.bench.reads_clients` reads an `Order` as JSON from stdin, and writes JSON to stdout. It is a separate
process, so that the measurement does not slow down the server.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

WARM_UP = 2  # uncounted requests of each client, for connections, threads, and other one-time setup
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Order(NamedTuple):
    host: str
    port: int
    path: str
    token: str
    expected: str  # in every response
    clients: int
    requests: int  # total counted requests of all clients


class Client:
    def __init__(self, order: Order, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.expected = order.expected.encode()
        self.request = (
            f"GET {order.path} HTTP/1.1\r\nHost: {order.host}:{order.port}\r\nUser-Agent: bench\r\n"
            f"Accept: application/json\r\nAuthorization: Bearer {order.token}\r\n\r\n"
        ).encode()

    async def ask(self) -> float:
        """Return the seconds from the request to the last byte of the response."""
        began = time.perf_counter()
        self.writer.write(self.request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        seconds = time.perf_counter() - began
        assert head.startswith(b"HTTP/1.1 200 ") and self.expected in body, (head + body).decode()  # noqa: PT018
        return seconds

    async def request_until_exhausted(self, remaining: Iterator[int]) -> list[float]:
        """Send requests until the shared iterator is exhausted. Return their latencies."""
        return [await self.ask() for _ in remaining]


async def connected(order: Order) -> Client:
    return Client(order, *await asyncio.open_connection(order.host, order.port))


async def load(order: Order) -> dict[str, Any]:
    clients = await asyncio.gather(*(connected(order) for _ in range(order.clients)))
    await asyncio.gather(*(client.request_until_exhausted(iter(range(WARM_UP))) for client in clients))
    remaining = iter(range(order.requests))
    began = time.perf_counter()
    latencies = await asyncio.gather(*(client.request_until_exhausted(remaining) for client in clients))
    seconds = time.perf_counter() - began
    for client in clients:
        client.writer.close()
    return {
        "latencies": [each for of_client in latencies for each in of_client],
        "seconds": seconds,
        "total_requests": order.requests + order.clients * WARM_UP,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(load(Order(**json.load(sys.stdin)))), sys.stdout)
