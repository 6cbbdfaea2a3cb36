"""Clients of a soak test: they use all operations on export jobs as three users, and record each response.

The random choices of a client depend only on its seed. The jobs among which it can choose depend on the run.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx2

from tests.chaos.history.record import ENDED, Line, Record, body_facts, file_facts, path_of
from tests.chaos.history.source import KEYS
from tests.integration.factories import FIRST_DAY

LIMIT = 120.0  # seconds within which a submission must be accepted
MAX_STREAMS = 3  # concurrent streams of a client


@dataclass
class Account:
    """A user, and the state that its clients have seen. `token`: its label, which is recorded, and its secret."""

    name: str
    token: tuple[str, str]
    old_tokens: list[tuple[str, str]] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)  # last seen status by ID
    items: dict[str, list[Any]] = field(default_factory=dict)  # key and date of files, by job
    links: list[str] = field(default_factory=list)

    @property
    def agent(self) -> str:
        return f"soak/{self.name}"


class Client:
    def __init__(self, account: Account, seed: str, url: Callable[[], str], record: Record, stopped: Event) -> None:
        self.account, self.url, self.record, self.stopped = account, url, record, stopped
        self.random = Random(seed)
        self.http = httpx2.Client(trust_env=False, timeout=30, verify=False)
        self.streams: list[Thread] = []
        self.retried: set[str] = set()
        self.thread = Thread(target=self.run, daemon=True)

    def run(self) -> None:
        actions, weights = list(ACTIONS), list(ACTIONS.values())
        while not self.stopped.wait(self.random.uniform(0.05, 0.6)):
            (action,) = self.random.choices(actions, weights)
            action(self)

    def stop(self) -> None:
        for thread in (self.thread, *self.streams):
            thread.join(LIMIT + 40)

    # ---- Requests ---------------------------------------------------------------------------------------------------

    def send(self, op: str, method: str, path: str, *, token: tuple[str, str] | None = None, **facts: Any) -> Line:
        """Send a request, and record the response. Its status is 0 if there was none."""
        label, secret = token or self.account.token
        agent = facts.setdefault("agent", self.account.agent)
        headers = {"User-Agent": agent, **({"Idempotency-Key": facts["key"]} if "key" in facts else {})}
        if op != "download":
            headers["Authorization"] = f"Bearer {secret}"
            facts["token"] = label
        began = time.monotonic()
        try:
            response = self.http.request(method, self.url() + path, headers=headers, json=facts.get("request"))
        except httpx2.TransportError as error:
            result: Line = {"status": 0, "error": repr(error), "body": None}
        else:
            result = {"status": response.status_code, **body_facts(response.content)}
            result["problem"] = "problem+json" in response.headers.get("content-type", "")
            if location := response.headers.get("location"):
                result["location"] = location
        facts.setdefault("job", job_in(path))
        line = self.record.add(
            "response", began, op=op, user=self.account.name, method=method, path=path, **result, **facts
        )
        self.remember_job(line)
        return line

    def remember_job(self, line: Line) -> None:
        body = line["body"]
        if line["status"] in (200, 202) and isinstance(body, dict) and "jobId" in body:
            self.account.jobs[body["jobId"]] = body["status"]
            if url := (body.get("receipt") or {}).get("signedUrl"):
                self.account.links.append(path_of(url))

    def fetch(self, redirect: Line, *, item: list[str] | None = None) -> Line | None:
        """Follow a redirect to the object storage, and record the facts of the object."""
        if redirect["status"] != 302:
            return None
        began, facts = time.monotonic(), {}
        try:
            response = self.http.get(redirect["location"])
            status = response.status_code
            if status == 200:
                facts = file_facts(response.content)
        except httpx2.TransportError:
            status = 0
        return self.record.add(
            "object", began, user=self.account.name, job=redirect["job"], item=item, status=status, **facts
        )

    def job(self, *statuses: str) -> str | None:
        """Choose a job of this user, preferably with one of these statuses."""
        jobs = list(self.account.jobs.items())
        candidates = [job for job, status in jobs if status in statuses] or [job for job, _ in jobs]
        return self.random.choice(candidates) if candidates else None

    # ---- Actions ----------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit a request repeatedly with its key until it is accepted, and sometimes once more."""
        key, request, again = str(UUID(int=self.random.getrandbits(128))), self.request(), self.random.random() < 0.2
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            line = self.send("submit", "POST", "/exports", request=request, key=key)
            if line["status"] == 202:
                if not again:
                    return
                again = False
            time.sleep(0.3)
        self.record.add("action", deadline - LIMIT, what="never accepted", key=key)

    def request(self) -> Line:
        random = self.random
        last = FIRST_DAY + timedelta(days=random.choice([0, 0, 0, 2, 5]))
        keys = random.sample(KEYS, random.choice([1, 1, 2, 3]))
        return {
            "dataset": random.choice(["clean", "clean", "rude", "rude", "things"]),
            "filters": {"keys": keys, "dateFrom": FIRST_DAY.isoformat(), "dateTo": last.isoformat()},
            "reuse": random.choice(["if-present", "never"]),
            "allowDegraded": random.random() < 0.5,
            "compression": random.choice(["none", "gzip"]),
            "delivery": random.choice(["auto", "single", "zip", "manifest", "manifest"]),
            "format": random.choice(["csv", "csv", "jsonl"]),
        }

    def poll(self) -> None:
        if job := self.job("pending", "running", "retrying"):
            self.send("poll", "GET", f"/exports/{job}")

    def cancel(self) -> None:
        if job := self.job("pending", "running", "retrying"):
            self.send("cancel", "POST", f"/exports/{job}/cancel")

    def retry(self) -> None:
        if job := self.job("failed"):
            self.retried.add(job)
            self.send("retry", "POST", f"/exports/{job}/retry")

    def replay(self) -> None:
        if job := self.job(*ENDED):
            self.send("replay", "POST", f"/exports/{job}/replay")

    def create_link(self) -> None:
        if job := self.job("success"):
            body = self.send("link", "POST", f"/exports/{job}/link")["body"] or {}
            if "signedUrl" in body:
                self.account.links.append(path_of(body["signedUrl"]))

    def redeem(self) -> None:
        """Request a link, often a recent one, three times in parallel, sometimes with another User-Agent."""
        if not self.account.links:
            return
        path = self.random.choice(self.account.links[-self.random.choice([1, 3, 1000]) :])
        agents = [self.account.agent, self.account.agent, self.random.choice([self.account.agent, "other/1"])]
        with ThreadPoolExecutor(len(agents)) as pool:
            responses = list(pool.map(lambda agent: self.send("download", "GET", path, agent=agent), agents))
        for each in responses:
            self.remember_files(self.fetch(each))

    def remember_files(self, line: Line | None) -> None:
        if line and "manifest" in line:
            entries = line["manifest"]["files"]
            self.account.items[line["job"]] = [[each["key"], each["effectiveDate"]] for each in entries]

    def download_files(self) -> None:
        """Download some files of a delivery, each up to three times."""
        if not self.account.items:
            return
        job = self.random.choice(list(self.account.items))
        items = self.account.items[job]
        for key, day in self.random.sample(items, min(3, len(items))):
            for _ in range(self.random.randint(1, 3)):
                self.fetch(self.send("file", "GET", f"/exports/{job}/files/{key}/{day}"), item=[key, day])

    def read_limits(self) -> None:
        self.send("limits", "GET", "/exports/limits")

    def use_old_token(self) -> None:
        if self.account.old_tokens:
            self.send("limits", "GET", "/exports/limits", token=self.random.choice(self.account.old_tokens))

    def stream(self) -> None:
        job = self.job("pending", "running", "retrying")
        self.streams = [thread for thread in self.streams if thread.is_alive()]
        if job and len(self.streams) < MAX_STREAMS:
            cuts = self.random.choices([0, 1, 2, 4], k=4)
            thread = Thread(target=self.follow, args=(job, cuts), daemon=True)
            thread.start()
            self.streams.append(thread)

    def follow(self, job: str, cuts: list[int]) -> None:
        """Read a stream to its end. Disconnect and resume after each of these numbers of events (0: never)."""
        after = None
        for cut in cuts:
            line = self.read_stream(job, after, cut)
            after = line["events"][-1][1] if line["events"] else after
            if self.stopped.is_set() or (line["how"] == "ended" and line["status"] != 429):
                return
            time.sleep(0.5)

    def read_stream(self, job: str, after: int | None, cut: int) -> Line:
        label, secret = self.account.token
        headers = {"Authorization": f"Bearer {secret}"} | ({"Last-Event-ID": str(after)} if after is not None else {})
        began, events, how, status = time.monotonic(), [], "ended", 0
        try:
            with self.http.stream("GET", f"{self.url()}/exports/{job}/events", headers=headers) as response:
                status = response.status_code
                for event in events_of(response.iter_lines()) if status == 200 else ():
                    events.append([time.monotonic(), *event])
                    if self.stopped.is_set() or len(events) == cut:
                        how = "left"
                        break
        except httpx2.TransportError:
            how = "broken"
        return self.record.add(
            "stream", began, user=self.account.name, token=label, job=job, after=after, status=status, how=how,
            events=events,
        )  # fmt: skip

    # ---- Final audit ------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Read the final state of all jobs, and download all remaining deliveries and files."""
        path: str | None = "/exports?limit=200"
        jobs: list[str] = []
        while path:
            body = self.send("list", "GET", path)["body"]
            jobs += [each["jobId"] for each in body["results"]]
            path = body["next"] and path_of(body["next"])
        for job in jobs:
            status = self.send("poll", "GET", f"/exports/{job}")["body"]["status"]
            page: str | None = f"/exports/{job}/chunks?limit=200"
            while page:
                body = self.send("chunks", "GET", page)["body"]
                page = body["next"] and path_of(body["next"])
            if status == "success":
                link = path_of(self.send("link", "POST", f"/exports/{job}/link")["body"]["signedUrl"])
                self.remember_files(self.fetch(self.send("download", "GET", link)))
                for key, day in self.account.items.get(job, []):
                    self.fetch(self.send("file", "GET", f"/exports/{job}/files/{key}/{day}"), item=[key, day])
        self.read_limits()


ACTIONS: dict[Callable[[Client], None], int] = {
    Client.submit: 10,
    Client.poll: 15,
    Client.cancel: 2,
    Client.retry: 3,
    Client.replay: 2,
    Client.create_link: 5,
    Client.redeem: 8,
    Client.download_files: 6,
    Client.stream: 6,
    Client.read_limits: 2,
    Client.use_old_token: 3,
}


def events_of(lines: Iterator[str]) -> Iterator[tuple[int, str, Any]]:
    """Yield ID, name, and data of each event of a stream."""
    number, name = 0, ""
    for line in lines:
        label, _, value = line.partition(": ")
        if label == "id":
            number = int(value)
        elif label == "event":
            name = value
        elif label == "data":
            yield number, name, body_facts(value.encode())["body"]


def job_in(path: str) -> str | None:
    """Return the job's ID in a path, or None."""
    with suppress(ValueError, IndexError):
        return str(UUID(urlsplit(path).path.split("/")[2]))
    return None
