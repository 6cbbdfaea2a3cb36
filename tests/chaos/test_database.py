"""The main database: restarts, closed connections, lost replies, and concurrent ends.

Rows 8 and 15 of docs/reliability.md.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Event as Flag
from threading import Thread

import httpx2
import pytest
from django.db import connection, transaction

from exports.models import Chunk, Delivery, Job, Receipt, Usage
from tests.chaos.site import Site
from tests.integration.receiver import receiver
from tests.waiting import wait_until

SUCCESS = (200, "application/json", None)
UNAVAILABLE = (503, "application/problem+json", "database_unavailable")
Outcome = tuple[int, str, str | None]


class PollingClient:
    """A client that polls one job continuously, and records the responses."""

    def __init__(self, site: Site, job: Job) -> None:
        self.client = httpx2.Client(
            base_url=site.client.base_url, headers=site.client.headers, trust_env=False, timeout=30
        )
        self.path = f"/exports/{job.pk}"
        self.responses: Counter[Outcome] = Counter()
        self.stopped = Flag()
        self.thread = Thread(target=self.poll, daemon=True)

    def poll(self) -> None:
        with self.client:
            while not self.stopped.wait(0.05):
                self.responses[outcome_of(self.client.get(self.path))] += 1


def outcome_of(response: httpx2.Response) -> Outcome:
    code = response.json().get("code") if response.status_code >= 400 else None
    return response.status_code, response.headers["Content-Type"].partition(";")[0], code


@contextmanager
def polling(site: Site, job: Job) -> Iterator[PollingClient]:
    client = PollingClient(site, job)
    client.thread.start()
    try:
        yield client
    finally:
        client.stopped.set()
        client.thread.join(60)


def done(job: Job) -> int:
    return Chunk.objects.filter(job=job, status="done").count()


def has_done(job: Job, number: int) -> bool:
    return done(job) >= number


# ---- 8: restarts and closed connections -----------------------------------------------------------------------------


def test_it_survives_an_immediate_database_restart(site: Site) -> None:
    """8: as with `pg_ctl stop -m immediate`, which sends SIGQUIT.

    The source is on the same server here, and restarts too.
    """
    site.source.behave("SLOW", pause=0.5)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", days=12)
    wait_until(lambda: done(job) >= 2)

    server = site.servers.postgres
    with polling(site, job) as client:
        wait_until(lambda: client.responses[SUCCESS])
        connection.close()
        os.kill(server.pid, signal.SIGQUIT)
        wait_until(lambda: not server.started().alive)
        wait_until(lambda: client.responses[UNAVAILABLE])
        body = {"dataset": "things", "items": [{"key": "A", "effectiveDate": "2024-01-01"}]}
        assert outcome_of(site.client.post("/exports", json=body)) == UNAVAILABLE
        assert site.client.get("/exports").headers["Retry-After"]
        server.start()
        back_at = time.monotonic()
        successes = client.responses[SUCCESS]
        wait_until(lambda: client.responses[SUCCESS] > successes)
        site.record_duration("API recovery after the database restart", time.monotonic() - back_at)
        remaining = 12 - done(job)
        site.settle(job)
        site.record_duration(
            "job recovery after the database restart", time.monotonic() - back_at, chunks_left=remaining
        )

    assert job.status == "success"
    assert set(client.responses) == {SUCCESS, UNAVAILABLE}


def test_terminated_database_connections_are_reopened(site: Site) -> None:
    """8: all connections of web, workers, and source calls, three times."""
    site.source.behave("SLOW", pause=0.5)
    site.start_worker()
    site.start_beat()
    site.start_web()
    job = site.submit("SLOW", days=12)
    with polling(site, job) as client:
        for _ in range(3):
            before = done(job)
            wait_until(partial(has_done, job, before + 1))
            assert site.end_sessions() >= 3
            connection.close()
        site.settle(job)
        successes = client.responses[SUCCESS]
        wait_until(lambda: client.responses[SUCCESS] > successes)

    assert job.status == "success"
    assert set(client.responses) <= {SUCCESS, UNAVAILABLE}


# ---- 8: lost replies ------------------------------------------------------------------------------------------------

# A part of each statement's text, and the resulting number of attempts of the chunk. Outside of a transaction, the
# reply to a statement is the reply to its COMMIT.
STATEMENTS = {
    "the claim of a chunk": ("SET token = fence.token", 2),
    "the renewal of a lease": ("UPDATE exports_chunk SET lease_until", 1),
    "the end of a chunk": ("SET status = 'done'", 1),
    "the claim of a bundle": ("SET completion_token = nextval", 1),
    "a tick of the reaper": ("INSERT INTO exports_tick", 1),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_with_a_lost_reply_takes_effect_once(site: Site, statement: str) -> None:
    """8: the statement is executed, but the connection is reset before the reply."""
    text, attempts = STATEMENTS[statement]
    site.source.behave("SLOW", pause=1.5)
    site.start_worker()
    site.start_beat()
    site.start_web()
    site.postgres.lose_reply_to(text)
    job = site.submit("SLOW")
    site.settle(job)

    assert job.started_at
    assert job.finished_at
    site.record_duration(f"lost reply: {statement}", (job.finished_at - job.created_at).total_seconds())
    assert site.postgres.lost == 1
    assert (job.status, job.chunks.get().attempts, site.source.calls()) == ("success", attempts, 1)


def test_a_receipt_with_a_lost_commit_reply_is_issued_once(site: Site) -> None:
    """8: and its webhook is delivered once."""
    site.start_worker("exports,bundles", children=1)
    site.start_web()
    site.points.arm("receipt inserted", "wait")
    with receiver() as receiving:
        site.receivers.append(receiving)
        site.subscribe(receiving.url)
        job = site.submit("A", "B")
        wait_until(lambda: not site.points.armed("receipt inserted"))
        site.postgres.lose_reply_to("COMMIT")
        site.points.release("receipt inserted")
        wait_until(lambda: site.postgres.lost == 1)
        site.start_worker("webhooks,maintenance", children=1)
        site.start_beat()
        site.settle(job)
        wait_until(lambda: receiving.ids)

    assert job.status == "success"
    assert Receipt.objects.count() == Delivery.objects.count() == len(set(receiving.ids)) == 1
    assert job.completion_attempts == 1


@pytest.mark.parametrize(
    ("text", "was_made"), [("COMMIT", True), ("COPY exports_chunk", False)], ids=["commit", "before it"]
)
def test_a_request_with_a_lost_reply_can_be_repeated(site: Site, text: str, *, was_made: bool) -> None:
    """8: the client gets 503, and its Idempotency-Key returns the same job."""
    site.start_web()
    body = {"dataset": "things", "items": [{"key": "A", "effectiveDate": "2024-01-01"}]}
    headers = {"Idempotency-Key": "once"}
    site.client.get("/exports").raise_for_status()  # recording the first use of a token has another COMMIT
    site.postgres.lose_reply_to(text)
    first = site.client.post("/exports", json=body, headers=headers)
    assert (outcome_of(first), site.postgres.lost) == (UNAVAILABLE, 1)
    assert first.headers["Retry-After"]
    assert Job.objects.count() == was_made

    second = site.client.post("/exports", json=body, headers=headers)
    assert second.status_code == 202
    assert (second.headers.get("Idempotency-Replayed") == "true") == was_made
    job = Job.objects.get()
    assert second.json()["jobId"] == str(job.pk)
    assert Usage.objects.get().jobs == 1
    site.start_worker()
    site.start_beat()
    site.settle(job)
    assert (job.status, site.source.calls()) == ("success", 1)


def test_it_survives_random_lost_replies(site: Site) -> None:
    """8: thirty times, at random times, for any statement."""
    for key in "ABC":
        site.source.behave(key, pause=0.2)
    site.start_worker(children=3, EXPORT_MAX_ATTEMPTS=10)
    site.start_beat()
    site.start_web()
    job = site.submit("A", "B", "C", days=8)
    with polling(site, job) as client:
        wait_until(lambda: done(job) > 0)
        for _ in range(30):
            site.postgres.lose_reply_to("")
            wait_until(lambda: site.postgres.times == 0)
            Flag().wait(site.random.uniform(0, 0.3))
        site.settle(job)

    assert job.status == "success"
    assert set(client.responses) <= {SUCCESS, UNAVAILABLE}


# ---- 15: concurrent ends --------------------------------------------------------------------------------------------

# The number of blocked statements that complete a chunk. Statements of the reaper do not count.
BLOCKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%SET status = ''done''%'
"""
ROUNDS, JOBS_PER_ROUND = 25, 2


def count_blocked() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction would read the same activity again
        cursor.execute(BLOCKED)
        row = cursor.fetchone()
    assert row
    return int(row[0])


def test_the_last_two_chunks_of_a_job_can_end_simultaneously(site: Site) -> None:
    """15: fifty times. Both workers wait before the commit of their file, then compete for the job's row."""
    site.start_worker("exports", children=2 * JOBS_PER_ROUND)
    site.start_worker("bundles,webhooks")
    site.start_worker("maintenance", children=1)
    site.start_beat()
    site.start_web()
    jobs: list[Job] = []
    for number in range(ROUNDS):
        pairs = [(f"A{number}-{each}", f"B{number}-{each}") for each in range(JOBS_PER_ROUND)]
        (site.points.folder / "about to commit.go").unlink(missing_ok=True)
        for key in chain(*pairs):
            site.points.arm("about to commit", "wait", key=key)
        jobs_of_round = [site.submit(*keys) for keys in pairs]
        wait_until(lambda: not site.points.armed("about to commit"))
        with transaction.atomic():
            list(Job.objects.select_for_update().filter(pk__in=[job.pk for job in jobs_of_round]))
            site.points.release("about to commit")
            wait_until(lambda: count_blocked() == 2 * JOBS_PER_ROUND)
        jobs += jobs_of_round
    site.settle(*jobs, limit=120)

    assert {job.status for job in jobs} == {"success"}
    assert len(jobs) == Receipt.objects.count() == ROUNDS * JOBS_PER_ROUND
    assert {job.completion_attempts for job in jobs} == {1}
    assert set(Chunk.objects.values_list("attempts", flat=True)) == {1}
