"""A TCP proxy with fault injection, between Sluice's processes and their servers.

`Proxy(host, port)` listens on a free port, in a separate thread, and forwards bytes. Its faults: `stall` (connections
are accepted, but no bytes are forwarded), `refuse` (open and new connections are reset), `slow` (a limit in bytes per
second), `lose_reply_to` (the server executes a request, but the client gets no reply), and `stall_request` (one request
stalls, while others continue).
"""

import asyncio
import re
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from config.dev.stack.ports import LOOPBACK

BLOCK = 65_536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: do not linger, send RST
# A Parse message, with which Postgres prepares a named statement. Later messages execute it by its name.
PREPARE = re.compile(rb"P.{4}([^\0]+)\0([^\0]+)\0", re.DOTALL)


@dataclass(eq=False)
class ProxiedConnection:
    """A proxied connection: the sockets of the client and the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    loses_reply: bool = False

    def reset(self) -> None:
        for end in (self.client, self.server):
            line: socket.socket = end.get_extra_info("socket")
            with suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.connections: set[ProxiedConnection] = set()
        self.refuses = False
        self.bytes_per_second = 0.0
        # Of `lose_reply_to`: the text of requests, the remaining number of replies to lose, and the lost replies.
        self.text, self.times, self.lost = b"", 0, 0
        self.prepared: dict[bytes, bytes] = {}  # text by name: Sluice uses the same names in all sessions
        self.stuck: list[bytes] = []
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.server: asyncio.Server = self.run(asyncio.start_server(self.serve, LOOPBACK, 0))
        self.port: int = self.server.sockets[0].getsockname()[1]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    # ---- Faults ----------------------------------------------------------------------------------------------------

    def remove_faults(self) -> None:
        """Forward all bytes again. The requests of `lose_reply_to` and `stall_request` stay selected."""
        self.run(self.change(flows=True, refuses=False, rate=0))

    def stall(self) -> None:
        """Accept connections, and forward no bytes in either direction. Open connections stay open."""
        self.run(self.change(flows=False, refuses=False, rate=0))

    def refuse(self) -> None:
        """Reset open and new connections."""
        self.run(self.change(flows=True, refuses=True, rate=0))
        self.reset()

    def slow(self, bytes_per_second: float) -> None:
        self.run(self.change(flows=True, refuses=False, rate=bytes_per_second))

    def reset(self) -> None:
        """Reset open connections once."""
        self.run(self.reset_all())

    def lose_reply_to(self, text: str) -> None:
        """Forward the next request with this text, and reset its connection when the server replies.

        For a prepared statement, executions count, but its Parse message does not.
        """
        self.text, self.times, self.lost = text.encode(), 1, 0

    def stall_request(self, pattern: str, *, times: int = 1) -> None:
        """Stall the next `times` requests that match the regular expression, after the block with the match."""
        self.stuck += [pattern.encode()] * times

    def close(self) -> None:
        self.run(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    # ---- In the event loop -----------------------------------------------------------------------------------------

    async def change(self, *, flows: bool, refuses: bool, rate: float) -> None:
        self.refuses, self.bytes_per_second = refuses, rate
        (self.flowing.set if flows else self.flowing.clear)()

    async def reset_all(self) -> None:
        for connection in list(self.connections):
            connection.reset()

    async def end(self) -> None:
        self.server.close()
        await self.reset_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuses:
                raise ConnectionError
            replies, server = await asyncio.open_connection(*self.upstream)
        except OSError:
            ProxiedConnection(writer, writer).reset()
            return
        connection = ProxiedConnection(writer, server)
        self.connections.add(connection)
        try:
            await self.forward(connection, reader, replies)
        except asyncio.CancelledError:
            connection.reset()  # otherwise asyncio would log it as an error
        finally:
            self.connections.discard(connection)
            connection.client.close()
            connection.server.close()

    async def forward(
        self, connection: ProxiedConnection, requests: asyncio.StreamReader, replies: asyncio.StreamReader
    ) -> None:
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self.forward_requests(connection, requests))
                directions.create_task(self.forward_replies(connection, replies))
        except* OSError:
            connection.reset()

    async def forward_requests(self, connection: ProxiedConnection, requests: asyncio.StreamReader) -> None:
        while block := await requests.read(BLOCK):
            await self.flowing.wait()
            if self.is_selected(block) and self.times > 0:
                self.times -= 1
                connection.loses_reply = True
            await self.send(connection.server, block)
            if pattern := next((pattern for pattern in self.stuck if re.search(pattern, block)), None):
                self.stuck.remove(pattern)
                await asyncio.Event().wait()  # until the proxy is closed
        connection.server.write_eof()

    def is_selected(self, block: bytes) -> bool:
        if prepare := PREPARE.match(block):
            self.prepared[prepare[1]] = prepare[2]
            return False
        return self.text in block or any(
            name in block for name, statement in self.prepared.items() if self.text in statement
        )

    async def forward_replies(self, connection: ProxiedConnection, replies: asyncio.StreamReader) -> None:
        while block := await replies.read(BLOCK):
            await self.flowing.wait()
            if connection.loses_reply:
                self.lost += 1
                raise ConnectionError
            await self.send(connection.client, block)
        connection.client.write_eof()

    async def send(self, to: asyncio.StreamWriter, block: bytes) -> None:
        if self.bytes_per_second:
            await asyncio.sleep(len(block) / self.bytes_per_second)
        to.write(block)
        await to.drain()
