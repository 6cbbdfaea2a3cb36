"""Listeners of one event stream, each with a connection of its own: `python -m tests.bench.listeners_crowd`.

The first line on stdin says where, what and as whom: a `Place` as JSON. Each line after it is a number: so many more
come. Lines on stdout are JSON: `{"listening": 500}` when all of them have heard the beginning, and for each chunk that
changes `{"change": 17, "last": 1234.5}` when all of them have heard of it, with the moment at which the last one did,
on the monotonic clock, which all processes of a machine share. At the end of stdin they leave.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

AT_ONCE = 10  # that come at the same time


class Place(NamedTuple):
    host: str
    port: int
    path: str
    tokens: list[str]  # taken in turn


class Listener:
    def __init__(self, crowd: "Crowd", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.crowd, self.reader, self.writer = crowd, reader, writer
        self.heard = 0

    async def begin(self, token: str) -> None:
        """Ask, and return when the snapshot is here."""
        place = self.crowd.place
        self.writer.write(
            f"GET {place.path} HTTP/1.1\r\nHost: {place.host}:{place.port}\r\nUser-Agent: bench\r\n"
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
                    self.hear(number)
        except (OSError, EOFError, AssertionError) as error:
            tell(lost=repr(error))

    def hear(self, number: int) -> None:
        assert number > self.heard, f"{number} after {self.heard}"
        self.heard = number
        self.crowd.hear(number)

    async def event(self) -> tuple[int, bytes]:
        """Return the number and the name of the next event, when all of it is here.

        What HTTP puts between parts of a body, their lengths, are lines too, which begin like none of an event.
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


class Crowd:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.count = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.heard: Counter[int] = Counter()
        self.door = asyncio.Semaphore(AT_ONCE)

    async def grow(self, more: int) -> None:
        numbers = range(self.count, self.count + more)
        come = await asyncio.gather(*(self.enter(number) for number in numbers))
        self.count += more
        self.tasks += [asyncio.create_task(listener.listen()) for listener in come]
        tell(listening=self.count)

    async def enter(self, number: int) -> Listener:
        async with self.door:
            listener = Listener(self, *await asyncio.open_connection(self.place.host, self.place.port))
            await listener.begin(self.place.tokens[number % len(self.place.tokens)])
            return listener

    def hear(self, number: int) -> None:
        self.heard[number] += 1
        if self.heard[number] == self.count:
            tell(change=number, last=time.monotonic())


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def main() -> None:
    crowd = Crowd(Place(**json.loads(sys.stdin.readline())))
    while line := await asyncio.to_thread(sys.stdin.readline):
        await crowd.grow(int(line))


if __name__ == "__main__":
    asyncio.run(main())
