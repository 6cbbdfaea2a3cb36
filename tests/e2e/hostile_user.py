"""Clients of a load test, each in a separate process: a hostile user, and another user whose response times are
measured.
"""

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
CHUNK_BYTES = 65_536
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Attack:
    """An expensive request."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    is_chunked: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path} {len(self.body)}"


@dataclass
class AttackResults:
    """The number of responses with each status, and the longest response time of each attack and status, in seconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    def add(self, attack: Attack, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        name = f"{attack} {status}"
        self.slowest[name] = max(seconds, self.slowest.get(name, 0))


def process() -> ProcessPoolExecutor:
    """Return an executor with one new process, which shares no GIL with its caller."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def attack(port: int, attacks: Sequence[Attack], headers: dict[str, str], seconds: float) -> AttackResults:
    """Send the attacks from THREADS clients for this number of seconds."""
    until, results = time.monotonic() + seconds, AttackResults()

    def client(number: int) -> None:
        while True:
            for each in attacks[number::THREADS]:
                began = time.monotonic()
                results.add(each, send(port, each, headers), time.monotonic() - began)
                if time.monotonic() > until:
                    return

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(client, range(THREADS)))
    return results


def measure(port: int, paths: Sequence[str], headers: dict[str, str], seconds: float) -> dict[str, list[float]]:
    """Return the response times of GET requests. One client for each path sends them one after another."""
    until = time.monotonic() + seconds

    def client(path: str) -> list[float]:
        durations = []
        while time.monotonic() < until:
            began = time.monotonic()
            status = send(port, Attack("GET", path), headers)
            durations.append(time.monotonic() - began)
            if status != http.HTTPStatus.OK:
                raise AssertionError(f"GET {path}: status {status}")
            time.sleep(PAUSE_SECONDS)
        return durations

    with ThreadPoolExecutor(len(paths)) as threads:
        return dict(zip(paths, threads.map(client, paths), strict=True))


def send(port: int, attack: Attack, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        body: Any = attack.body or None
        if attack.is_chunked:
            body = (attack.body[start : start + CHUNK_BYTES] for start in range(0, len(attack.body), CHUNK_BYTES))
        connection.request(
            attack.method, attack.path, body, {**headers, "Content-Type": attack.content_type}, encode_chunked=True
        )
        response = connection.getresponse()
        if response.headers.get_content_type() != "text/event-stream":
            response.read(1_000_000)
        return response.status
    finally:
        connection.close()
