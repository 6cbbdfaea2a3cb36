"""Server-sent events of an export or document."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2

from sluice import exact_json
from sluice.api import Api
from sluice.errors import Problem

SILENCE_SECONDS = 25.0  # time without a byte: the server sends a comment at least every 15 seconds
NO_MORE_EVENTS = 204  # HTTP status


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event. `number`: its id, to resume after a disconnect. `kind`: newer servers may send unknown kinds."""

    number: str
    kind: str
    data: Any


class StreamLost(Exception):
    """The stream does not exist or was disconnected. `wait`: the seconds of the header Retry-After."""

    def __init__(self, *, wait: float = 0.0) -> None:
        super().__init__()
        self.wait = wait


async def listen(api: Api, path: str, *, after: str = "") -> AsyncGenerator[Event | None, None]:
    """Yield events until the stream ends, and None for each keep-alive comment. Raises StreamLost.

    `after`: the number of the last received event. Without it, the stream begins with a `snapshot`.
    """
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    try:
        async with api.stream(f"{path}/events", headers=headers, read=SILENCE_SECONDS) as response:
            if response.status_code == NO_MORE_EVENTS:
                return
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise StreamLost
            async for event in parsed(lines(api.network.blocks(response))):
                yield event
    except (httpx2.TransportError, ValueError):  # disconnected, or not a stream of this server
        raise StreamLost from None
    except Problem as problem:
        raise StreamLost(wait=problem.retry_after or 0.0) from None


async def parsed(received: AsyncIterator[str]) -> AsyncGenerator[Event | None, None]:
    """Parse lines into events. An incomplete last event is dropped."""
    fields: dict[str, str] = {}
    async for line in received:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
            if line == ":":
                yield None
        elif "data" in fields:
            data = exact_json.loads(fields["data"])
            yield Event(number=fields.get("id", ""), kind=fields.get("event", ""), data=data)
            fields = {}


async def lines(blocks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Split into lines at LF only. httpx2 would also split at U+2028, which JSON may contain unescaped."""
    rest = b""
    async for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.decode()
