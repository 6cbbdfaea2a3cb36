"""Clients of a load test, each kind in a process of its own: a hostile user, and another user who is measured."""

import http.client
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

LOOPBACK = "127.0.0.1"
THREADS = 12
PAUSE_SECONDS = 0.05
PIECE = 65_536
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Attack:
    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    is_chunked: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path} {len(self.body)}"


@dataclass
class Attacked:
    """Counts of the statuses, and the longest response times of the attacks."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    def add(self, attack: Attack, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        name = f"{attack} {status}"
        self.slowest[name] = max(seconds, self.slowest.get(name, 0))


def process() -> ProcessPoolExecutor:
    """Return an executor with one new process, which shares no GIL with its caller."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def attack(port: int, attacks: Sequence[Attack], headers: dict[str, str], seconds: float) -> Attacked:
    """Send attacks from THREADS clients for some seconds."""
    until, attacked = time.monotonic() + seconds, Attacked()

    def client(number: int) -> None:
        while True:
            for each in attacks[number::THREADS]:
                began = time.monotonic()
                attacked.add(each, ask(port, each, headers), time.monotonic() - began)
                if time.monotonic() > until:
                    return

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(client, range(THREADS)))
    return attacked


def measure(port: int, paths: Sequence[str], headers: dict[str, str], seconds: float) -> dict[str, list[float]]:
    """Return the response times of GET requests, sent one after the other by one client for each path."""
    until = time.monotonic() + seconds

    def client(path: str) -> list[float]:
        found = []
        while time.monotonic() < until:
            began = time.monotonic()
            status = ask(port, Attack("GET", path), headers)
            found.append(time.monotonic() - began)
            if status != http.HTTPStatus.OK:
                raise AssertionError(f"GET {path}: status {status}")
            time.sleep(PAUSE_SECONDS)
        return found

    with ThreadPoolExecutor(len(paths)) as threads:
        return dict(zip(paths, threads.map(client, paths), strict=True))


def ask(port: int, attack: Attack, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        body: Any = attack.body or None
        if attack.is_chunked:
            body = (attack.body[start : start + PIECE] for start in range(0, len(attack.body), PIECE))
        connection.request(
            attack.method, attack.path, body, {**headers, "Content-Type": attack.content_type}, encode_chunked=True
        )
        response = connection.getresponse()
        response.read(1_000_000) if response.headers.get_content_type() != "text/event-stream" else None
        return response.status
    finally:
        connection.close()
