"""A TCP proxy with fault injection, between Sluice's processes and their servers.

`Proxy(host, port)` listens on its own port, in its own thread, and forwards bytes. Its faults: `stall` (connections
are accepted, and no bytes are forwarded), `refuse` (all connections are reset, new ones included), `slow` (a limit in
bytes per second), `lose_reply_to` (the server executes a request, and the client gets no reply), and `get_stuck_at` (a
request stalls, while others continue).
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
class Wire:
    """A proxied connection, with both its ends."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_mute: bool = False

    def reset(self) -> None:
        for end in (self.client, self.server):
            line: socket.socket = end.get_extra_info("socket")
            with suppress(OSError):
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.wires: set[Wire] = set()
        self.refuses = False
        self.bytes_per_second = 0.0
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

    def pass_on(self) -> None:
        """Remove all faults."""
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

    def lose_reply_to(self, text: str, *, times: int = 1) -> None:
        """Forward the next `times` requests with this text, and reset their connections when the server replies.

        For a prepared statement, its executions count, and not its Parse message.
        """
        self.text, self.times, self.lost = text.encode(), times, 0

    def get_stuck_at(self, pattern: str, *, times: int = 1) -> None:
        """Stall the next `times` requests that match the regular expression: their connections forward no bytes."""
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
        for wire in list(self.wires):
            wire.reset()

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
            answers, server = await asyncio.open_connection(*self.upstream)
        except OSError:
            Wire(writer, writer).reset()
            return
        wire = Wire(writer, server)
        self.wires.add(wire)
        try:
            await self.carry(wire, reader, answers)
        except asyncio.CancelledError:
            wire.reset()  # otherwise asyncio would log it as an error
        finally:
            self.wires.discard(wire)
            wire.client.close()
            wire.server.close()

    async def carry(self, wire: Wire, requests: asyncio.StreamReader, answers: asyncio.StreamReader) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self.ask(wire, requests))
                both.create_task(self.answer(wire, answers))
        except* OSError:
            wire.reset()

    async def ask(self, wire: Wire, requests: asyncio.StreamReader) -> None:
        while block := await requests.read(BLOCK):
            await self.flowing.wait()
            if self.is_selected(block) and self.times > 0:
                self.times -= 1
                wire.is_mute = True
            await self.send(wire.server, block)
            if pattern := next((pattern for pattern in self.stuck if re.search(pattern, block)), None):
                self.stuck.remove(pattern)
                await asyncio.Event().wait()  # until the end
        wire.server.write_eof()

    def is_selected(self, block: bytes) -> bool:
        if prepare := PREPARE.match(block):
            self.prepared[prepare[1]] = prepare[2]
            return False
        return self.text in block or any(
            name in block for name, statement in self.prepared.items() if self.text in statement
        )

    async def answer(self, wire: Wire, answers: asyncio.StreamReader) -> None:
        while block := await answers.read(BLOCK):
            await self.flowing.wait()
            if wire.is_mute:
                self.lost += 1
                raise ConnectionError
            await self.send(wire.client, block)
        wire.client.write_eof()

    async def send(self, to: asyncio.StreamWriter, block: bytes) -> None:
        if self.bytes_per_second:
            await asyncio.sleep(len(block) / self.bytes_per_second)
        to.write(block)
        await to.drain()
