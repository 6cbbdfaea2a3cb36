"""Listeners of one event stream, each with a separate connection: `python -m tests.bench.listeners_clients`.

The first line on stdin is a `Target` as JSON. Each later line is the number of additional listeners. Lines on stdout
are JSON: `{"listening": 500}` when all listeners have received the snapshot, and `{"change": 17, "last": 1234.5}` for
each changed chunk that all listeners have received. `last` is the time at which the last listener received it, on the
monotonic clock, which all processes of a machine share. If a listener fails, `{"lost": "…"}` has its error. The
listeners disconnect at the end of stdin.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

AT_ONCE = 10  # concurrent connection attempts


class Target(NamedTuple):
    host: str
    port: int
    path: str
    tokens: list[str]  # used in rotation


class Listener:
    def __init__(self, listeners: "Listeners", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.listeners, self.reader, self.writer = listeners, reader, writer
        self.received = 0

    async def begin(self, token: str) -> None:
        """Send the request, and wait for the snapshot."""
        target = self.listeners.target
        self.writer.write(
            f"GET {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nUser-Agent: bench\r\n"
            f"Accept: text/event-stream\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head.decode()
        number, name = await self.event()
        assert name == b"snapshot", (number, name)

    async def listen(self) -> None:
        try:
            while True:
                number, name = await self.event()
                if name == b"chunk":
                    self.record(number)
        except (OSError, EOFError, AssertionError) as error:
            print_progress(lost=repr(error))

    def record(self, number: int) -> None:
        assert number > self.received, f"{number} after {self.received}"
        self.received = number
        self.listeners.record(number)

    async def event(self) -> tuple[int, bytes]:
        """Return the number and the name of the next complete event.

        Chunk lengths of the HTTP body are also lines. They are skipped, because they do not start like lines of events.
        """
        number, name = 0, b""
        while line := await self.reader.readline():
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"event: "):
                name = line[7:].strip()
            elif line == b"\n" and name:
                return number, name
        raise EOFError


class Listeners:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.count = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.received: Counter[int] = Counter()
        self.connecting = asyncio.Semaphore(AT_ONCE)

    async def add(self, more: int) -> None:
        numbers = range(self.count, self.count + more)
        added = await asyncio.gather(*(self.connect(number) for number in numbers))
        self.count += more
        self.tasks += [asyncio.create_task(listener.listen()) for listener in added]
        print_progress(listening=self.count)

    async def connect(self, number: int) -> Listener:
        async with self.connecting:
            listener = Listener(self, *await asyncio.open_connection(self.target.host, self.target.port))
            await listener.begin(self.target.tokens[number % len(self.target.tokens)])
            return listener

    def record(self, number: int) -> None:
        self.received[number] += 1
        if self.received[number] == self.count:
            print_progress(change=number, last=time.monotonic())


def print_progress(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def main() -> None:
    listeners = Listeners(Target(**json.loads(sys.stdin.readline())))
    while line := await asyncio.to_thread(sys.stdin.readline):
        await listeners.add(int(line))


if __name__ == "__main__":
    asyncio.run(main())
