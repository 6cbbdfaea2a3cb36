"""The clients of the status quo: each reads slice by slice and page by page, over a persistent connection."""

import http.client
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import orjson

from config.dev.stack.ports import LOOPBACK
from exports.core.planning import Pair

CLIENTS = 16
TIMEOUT_SECONDS = 60


def read(ports: Sequence[int], token: str, pairs: Iterable[Pair]) -> int:
    """Read these slices with all clients together, at these ports. Returns the number of rows."""
    waiting = iter(list(pairs))  # an iterator over a list yields each item once, also to threads
    with ThreadPoolExecutor(CLIENTS) as threads:
        return sum(threads.map(lambda n: client(ports[n % len(ports)], token, waiting), range(CLIENTS)))


def client(port: int, token: str, waiting: Iterator[Pair]) -> int:
    with connected(port) as connection:
        return sum(len(page) for pair in waiting for page in pages(connection, token, pair))


def connected(port: int) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS))


def pages(connection: http.client.HTTPConnection, token: str, pair: Pair) -> Iterator[list[dict[str, Any]]]:
    place: dict[str, str] = {}
    while True:
        query = urlencode({"origin": pair.key, "date": pair.effective_date.isoformat(), **place})
        connection.request("GET", f"/flights?{query}", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        content = response.read()
        assert response.status == HTTPStatus.OK, content
        page = orjson.loads(content)
        yield page["results"]
        if page["next"] is None:
            return
        place = {"after": page["next"]}
