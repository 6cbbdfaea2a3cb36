"""Clients of the status quo. Each reads chunks page by page, over a persistent connection."""

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
    """Read chunks with all clients, from web processes at these ports. Return the number of rows."""
    remaining = iter(list(pairs))  # an iterator over a list yields each item only once, even to several threads
    with ThreadPoolExecutor(CLIENTS) as threads:
        return sum(threads.map(lambda n: client(ports[n % len(ports)], token, remaining), range(CLIENTS)))


def client(port: int, token: str, remaining: Iterator[Pair]) -> int:
    with connected(port) as connection:
        return sum(len(page) for pair in remaining for page in pages(connection, token, pair))


def connected(port: int) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT_SECONDS))


def pages(connection: http.client.HTTPConnection, token: str, pair: Pair) -> Iterator[list[dict[str, Any]]]:
    cursor: dict[str, str] = {}
    while True:
        query = urlencode({"origin": pair.key, "date": pair.effective_date.isoformat(), **cursor})
        connection.request("GET", f"/flights?{query}", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        content = response.read()
        assert response.status == HTTPStatus.OK, content
        page = orjson.loads(content)
        yield page["results"]
        if page["next"] is None:
            return
        cursor = {"after": page["next"]}
