"""Server-sent events: what happens to an export or document, as the server tells it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from sluice.api import Api
from sluice.errors import Problem

SILENCE_SECONDS = 25.0  # the server sends a comment every 15 at the latest
NOTHING_MORE = 204


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `number` is its id, to go on from after a break."""

    number: str
    kind: str
    data: Any


class Lost(Exception):
    """There is no stream, or it broke. `wait`: the seconds that the server asks for."""

    def __init__(self, *, wait: float = 0.0) -> None:
        super().__init__()
        self.wait = wait


def listen(api: Api, path: str, *, after: str = "") -> Iterator[Event | None]:
    """Yield events until the stream ends; None for each sign of life in between. Raises Lost.

    `after`: the number of the last event that is known. Without it the stream begins with a `snapshot`.
    """
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    try:
        with api.stream(f"{path}/events", headers=headers, read=SILENCE_SECONDS) as response:
            if response.status_code == NOTHING_MORE:
                return
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise Lost
            yield from parsed(response)
    except (httpx2.TransportError, ValueError):  # broken, or something else came in between
        raise Lost from None
    except Problem as problem:
        raise Lost(wait=problem.retry_after or 0.0) from None


def parsed(response: httpx2.Response) -> Iterator[Event | None]:
    """Yield what the lines say. One that was cut in the middle of an event is not told.

    Lines end with LF alone here: httpx2 would also break them at U+2028, which JSON may hold as it is.
    """
    fields: dict[str, str] = {}
    for line in lines(response):
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
            if line == ":":
                yield None
        elif "data" in fields:
            yield Event(number=fields.get("id", ""), kind=fields.get("event", ""), data=json.loads(fields["data"]))
            fields = {}


def lines(response: httpx2.Response) -> Iterator[str]:
    rest = b""
    for block in response.iter_bytes():
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.decode()
