"""Clients of a soak test that submit documents continuously, and retry until they are accepted."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread
from typing import Any
from uuid import UUID

import httpx2

ACCEPTED = 202
LIMIT = 120.0  # seconds within which a request must be accepted


@dataclass
class Load:
    """The clients and their results.

    `accepted` maps each Idempotency-Key to a task ID. `failures` are responses that must not occur.
    """

    url: Callable[[], str]
    token: str
    seed: str
    rule_id: int
    accepted: dict[str, str] = field(default_factory=dict)
    refused: int = 0  # responses other than 202, and requests without a response
    failures: list[str] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)
    threads: list[Thread] = field(default_factory=list)

    def start(self, clients: int) -> None:
        for number in range(clients):
            thread = Thread(target=self.submit_continuously, args=(Random(f"{self.seed}:{number}"),), daemon=True)
            thread.start()
            self.threads.append(thread)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(LIMIT + 40)  # the last attempt may begin at the limit, and has a timeout of 30 s

    def submit_continuously(self, random: Random) -> None:
        while not self.stopped.wait(random.uniform(1, 4)):
            key = str(UUID(int=random.getrandbits(128)))
            self.repeat_until_accepted(key, self.document(random))

    def repeat_until_accepted(self, key: str, request: dict[str, Any]) -> None:
        """Repeat a request until it is accepted, as the API documents."""
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": key}
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            try:
                response = httpx2.post(
                    self.url() + request["path"], headers=headers, timeout=30, trust_env=False, **request["body"]
                )
            except httpx2.TransportError:
                self.refused += 1
                time.sleep(0.5)
                continue
            if response.status_code == ACCEPTED:
                self.accepted[key] = str(response.json()["task_id"])
                return
            self.record_response(response)
            self.refused += 1
            time.sleep(0.5)
        self.failures.append(f"{request['path']} was not accepted in {LIMIT:g} s")

    def record_response(self, response: httpx2.Response) -> None:
        """Record a response that must not occur: any refusal of a valid request, except 429 and 503 as problem+json."""
        kind = response.headers.get("content-type", "")
        if response.status_code not in (429, 503) or "problem+json" not in kind:
            self.failures.append(f"{response.status_code} {kind} {response.text[:200]}")

    def document(self, random: Random) -> dict[str, Any]:
        text = f"wait {random.uniform(0, 1.5):.2f}\npost:wait {random.uniform(0, 1.5):.2f}\n{random.getrandbits(64)}\n"
        files = {"file": ("notes.txt", text.encode(), "text/plain")}
        return {"path": "/api/v1/etl/submit", "body": {"files": files, "data": {"rule_id": str(self.rule_id)}}}
