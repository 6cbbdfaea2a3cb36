"""A19: cancellation, retry, and replay of jobs, and the permissions for them."""

import threading
import time
from collections import Counter
from itertools import count
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from config.platform import storage
from config.platform.db import sql
from config.platform.heartbeat import LeaseLost
from exports.core.errors import PermanentSourceError, SourceError
from exports.jobs import actions, submission
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, Event, Job, Receipt, Slot, Usage
from exports.worker import completion, execution, leases
from tests.conftest import change_settings, client_of
from tests.integration import outcomes
from tests.integration.factories import claim_one, finish, make_job, result_of
from tests.integration.locks import waits_for_a_lock
from tests.integration.test_leases import claim, in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

MISSING_ID = "00000000-0000-0000-0000-000000000000"


def statuses(job: Job) -> Counter[str]:
    return Counter(job.chunks.values_list("status", flat=True))


# ---- Cancel ---------------------------------------------------------------------------------------------------------


def test_it_cancels_every_unfinished_chunk(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A19: pending, running, and retrying chunks are cancelled; done and failed ones do not change."""
    job = make_job(dataset, alice, 5)
    done, failed, retrying, _running = (claim() for _ in range(4))
    outcomes.finish([(done, result_of(done))])
    outcomes.fail(failed, PermanentSourceError(), delay=None)
    outcomes.fail(retrying, SourceError(), delay=60)

    response = api.post(f"/exports/{job.pk}/cancel")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["error"], body["receipt"]) == ("cancelled", None, None)
    assert body["finishedAt"]
    progress = {
        name: body["progress"][name] for name in ("done", "failed", "cancelled", "pending", "retrying", "total")
    }
    assert progress == {"done": 1, "failed": 1, "cancelled": 3, "pending": 0, "retrying": 0, "total": 5}
    assert statuses(job) == {"done": 1, "failed": 1, "cancelled": 3}


def test_a_large_job_is_cancelled_in_parts(dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A19: each statement changes only a part. The job ends once, with all events and the whole refund."""
    job = make_job(dataset, alice, 11)
    done, _running = claim(), claim()
    outcomes.finish([(done, result_of(done))])
    before = job.events.count()
    monkeypatch.setattr(submission, "CHUNKS_AT_ONCE", 4)

    with CaptureQueriesContext(connection) as queries:
        assert actions.cancel(job) == 10
    job.refresh_from_db()
    assert (job.status, job.done, job.cancelled) == ("cancelled", 1, 10)
    assert statuses(job) == {"done": 1, "cancelled": 10}
    assert Usage.objects.get().chunks == 1
    assert sum("INSERT INTO exports_event" in query["sql"] for query in queries) == 3
    events = list(job.events.order_by("seq"))[before:]
    assert [event.status for event in events] == ["cancelled"] * 11
    assert [event.kind for event in events] == ["chunk"] * 10 + ["status"]
    assert events[-1].seq == job.event_seq


def test_the_holder_of_a_cancelled_chunk_is_fenced_and_frees_its_slot(dataset: Dataset, alice: User) -> None:
    """A11, A19."""
    job = make_job(dataset, alice, 1)
    holder = claim()
    actions.cancel(job)

    with pytest.raises(LeaseLost):
        leases.renew(holder)
    assert outcomes.finish([(holder, result_of(holder))]) is None
    assert outcomes.fail(holder, SourceError(), delay=1) is None
    assert statuses(job) == {"cancelled": 1}
    outcomes.release([holder])
    assert not Slot.objects.held().exists()
    job.refresh_from_db()
    assert (job.status, job.cancelled, job.done, job.failed) == ("cancelled", 1, 0, 0)


@pytest.mark.slow
def test_a_running_chunk_stops_at_its_next_part_and_its_upload_is_aborted(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, settings: Any
) -> None:
    """A19: the rows take 15 seconds, and are uploaded in several parts."""
    change_settings(settings, export_lease_seconds=3)
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE sql STABLE AS
        $$ SELECT repeat(key, 300), n, effective_date FROM generate_series(1, 2000000) n $$
    """)
    job = make_job(dataset, alice, 1)

    def cancel_soon() -> None:
        try:
            wait_until(lambda: list(storage.list_uploads("things/")))
            actions.cancel(job)
        finally:
            connection.close()

    canceller = threading.Thread(target=cancel_soon)
    canceller.start()
    started_at = time.monotonic()
    execution.drain()
    canceller.join()
    assert time.monotonic() - started_at < 10

    assert statuses(job) == {"cancelled": 1}
    assert list(storage.list_uploads("things/")) == []
    assert list(storage.list_objects("things/")) == []
    assert not Slot.objects.held().exists()
    calls = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%COPY%%rows_for%%' AND pid <> pg_backend_pid()"
    wait_until(lambda: source_db.execute(calls).fetchone() is None)  # a backend ends a moment after its connection


def test_the_reaper_frees_the_slot_of_a_cancelled_chunk_whose_worker_was_killed(dataset: Dataset, alice: User) -> None:
    """A12, A19."""
    job = make_job(dataset, alice, 1)
    claim()
    actions.cancel(job)
    Slot.objects.held().update(lease_until="2000-01-01T00:00:00Z")

    assert [token for token, _ in lost_leases.expired_slots()] == [Slot.objects.held().get().token]
    assert lost_leases.reclaim_batch(batch=10) == []


def test_a_cancelled_completion_issues_no_receipt(dataset: Dataset, alice: User) -> None:
    """A19, A21: the job is cancelled between its last chunk and its receipt."""
    job = make_job(dataset, alice, 2)
    execution.drain()
    token = completion.claim(job.pk)
    assert token
    assert actions.cancel(job) == 0

    with pytest.raises(LeaseLost):
        completion.renew(job.pk, token)
    completion.complete(job.pk)
    job.refresh_from_db()
    assert (job.status, job.done) == ("cancelled", 2)
    assert not Receipt.objects.exists()


def test_an_ended_job_cannot_be_cancelled(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A19: the response is 409, and nothing changes. This is also true for a second cancellation."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    completion.complete(job.pk)
    before = list(Job.objects.values())

    response = api.post(f"/exports/{job.pk}/cancel")
    assert (response.status_code, response.json()["code"]) == (409, "already_ended")
    assert list(Job.objects.values()) == before

    other = make_job(dataset, alice, 1, reuse="never")
    assert [api.post(f"/exports/{other.pk}/cancel").status_code for _ in range(2)] == [200, 409]


@pytest.mark.parametrize("at_once", [10_000, 5])
def test_counts_add_up_after_concurrent_cancels_and_finishes(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A19: six workers claim, finish, and fail chunks while two clients cancel the job, in one statement or in
    parts."""
    monkeypatch.setattr(submission, "CHUNKS_AT_ONCE", at_once)
    for _ in range(5):
        job = make_job(dataset, alice, 12, reuse="never")

        def work(n: int, job: Job = job) -> bool:
            if n >= 6:
                try:
                    return bool(actions.cancel(job) + 1)
                except actions.AlreadyEnded:
                    return False
            while claimed := claim_one(backend=f"test{n}"):
                if n % 2:
                    outcomes.fail(claimed, PermanentSourceError(), delay=None)
                else:
                    outcomes.finish([(claimed, result_of(claimed))])
                outcomes.release([claimed])
            return False

        cancelled = in_threads(8, work)
        job.refresh_from_db()
        counts = statuses(job)
        assert (job.done, job.failed, job.cancelled) == (counts["done"], counts["failed"], counts["cancelled"])
        assert job.done + job.failed + job.cancelled == job.total
        assert job.status == ("cancelled" if any(cancelled) else "failed")
        assert sum(cancelled) <= 1
        assert not Slot.objects.held().exists()
        ends = Event.objects.filter(job=job, kind="status", status__in=["cancelled", "failed", "success"])
        assert [end.status for end in ends] == [job.status]


@pytest.mark.parametrize("at_once", [10_000, 2])
def test_it_cancels_chunks_that_are_released_at_the_same_time(
    dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A19: the completion returns a chunk to the queue while the cancellation waits for the lock of the job."""
    monkeypatch.setattr(submission, "CHUNKS_AT_ONCE", at_once)
    job = make_job(dataset, alice, 3)
    execution.drain()
    token = completion.claim(job.pk)
    chunks = list(job.chunks.values_list("pk", flat=True))
    returned, cancelling = threading.Event(), threading.Event()

    def redo() -> None:
        try:
            with transaction.atomic():
                limits = {"patience": 3600, "attempts": 4}
                assert sql.scalar(completion.REDO, job=job.pk, token=token, chunks=chunks[:1], **limits) == 1
                returned.set()
                assert cancelling.wait(30)
                wait_until(waits_for_a_lock)
        finally:
            connection.close()

    other = threading.Thread(target=redo)
    other.start()
    assert returned.wait(30)
    cancelling.set()
    assert actions.cancel(job) == 1
    other.join()

    job.refresh_from_db()
    assert (job.status, job.done, job.cancelled) == ("cancelled", 2, 1)
    assert statuses(job) == {"done": 2, "cancelled": 1}


# ---- Retry ----------------------------------------------------------------------------------------------------------


def test_a_retry_runs_only_the_failed_chunks(
    api: APIClient, dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A19: the job runs again with new attempts, and done chunks are not exported again."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE plpgsql AS $$
        BEGIN
            IF effective_date = '2024-02-29' THEN PERFORM * FROM data.missing; END IF;
            RETURN QUERY SELECT key, 1, effective_date;
        END $$
    """)
    job = make_job(dataset, alice, 3)
    execution.drain()
    job.refresh_from_db()
    assert (job.status, statuses(job)) == ("failed", {"done": 2, "failed": 1})
    done = dict(Chunk.objects.filter(status="done").values_list("pk", "finished_at"))

    source_db.execute("CREATE TABLE data.missing (n int)")
    response = api.post(f"/exports/{job.pk}/retry")
    assert (response.status_code, response.json()["status"]) == (202, "running")
    execution.drain()
    completion.complete(job.pk)

    job.refresh_from_db()
    assert (job.status, job.done, job.failed) == ("success", 3, 0)
    assert dict(Chunk.objects.filter(pk__in=done).values_list("pk", "finished_at")) == done


# ---- Replay ---------------------------------------------------------------------------------------------------------


def test_a_replay_creates_a_job_with_the_same_request(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A19: a successful job can be replayed too. Existing files are reused."""
    body = {
        "dataset": "things",
        "items": [{"key": key, "effectiveDate": "2024-02-29"} for key in ("B", "A", "B")],
        "delivery": "manifest",
        "compression": "gzip",
        "csv": {"delimiter": ";"},
        "allowDegraded": False,
    }
    first = Job.objects.get(pk=api.post("/exports", body).json()["jobId"])
    execution.drain()
    completion.complete(first.pk)

    response = api.post(f"/exports/{first.pk}/replay")
    assert response.status_code == 202
    again = Job.objects.get(pk=response.json()["jobId"])
    assert response["Location"] == f"/exports/{again.pk}"
    assert (response.json()["totalChunks"], response.json()["duplicates"]) == (2, 1)
    assert again.pk != first.pk
    same = (
        "dataset_id",
        "format",
        "compression",
        "delivery",
        "dialect",
        "reuse",
        "allow_degraded",
        "filters",
        "user_id",
    )
    assert [getattr(again, name) for name in same] == [getattr(first, name) for name in same]
    pairs = [list(job.chunks.order_by("seq").values_list("key", "path")) for job in (first, again)]
    assert pairs[0] == pairs[1]

    execution.drain()
    again.refresh_from_db()
    assert again.reused == 2


@pytest.mark.parametrize("change", [{"formats": ["json"]}, {"key_pattern": "^[0-9]+$"}])
def test_a_replay_of_an_outdated_request_is_refused(
    api: APIClient, dataset: Dataset, alice: User, change: dict[str, Any]
) -> None:
    """A19."""
    job = make_job(dataset, alice, 1)
    Dataset.objects.of_functions().update(**change)

    response = api.post(f"/exports/{job.pk}/replay")
    assert (response.status_code, response.json()["code"]) == (409, "not_replayable")
    assert Job.objects.count() == 1


def test_a_replay_uses_one_version_of_its_dataset(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A38: the dataset is registered again, with a new version, after each statement that reads it."""
    job = make_job(dataset, alice, 1)
    versions = count(2)

    def register_next(execute: Any, statement: str, *arguments: Any) -> Any:
        result = execute(statement, *arguments)
        if statement.startswith("SELECT") and "exports_dataset" in statement:
            Dataset.objects.of_functions().update(**registration(next(versions)))
        return result

    with connection.execute_wrapper(register_next):
        again = Job.objects.get(pk=api.post(f"/exports/{job.pk}/replay").json()["jobId"])
    assert again.schema_version > 1
    registered = registration(again.schema_version)
    assert (again.function, again.statement_timeout) == (registered["function"], registered["statement_timeout"])
    assert again.chunks.get().path.startswith(f"{registered['base_path']}/")


def registration(version: int) -> dict[str, Any]:
    return {
        "schema_version": version,
        "function": f"data.rows_{version}",
        "base_path": f"things-{version}",
        "statement_timeout": version,
    }


# ---- Permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "retry", "replay", "link"])
def test_actions_on_jobs_of_other_users_return_404(dataset: Dataset, alice: User, bob: User, verb: str) -> None:
    """A7: the response is the same 404 as for a missing job, and nothing changes."""
    job = make_job(dataset, alice, 1)
    before = list(Job.objects.values())
    client = client_of(bob)

    other, missing = client.post(f"/exports/{job.pk}/{verb}"), client.post(f"/exports/{MISSING_ID}/{verb}")
    assert other.status_code == missing.status_code == 404
    assert {**other.json(), "requestId": ""} == {**missing.json(), "requestId": ""}
    assert list(Job.objects.values()) == before


def test_staff_may_cancel_and_replay_for_themselves(dataset: Dataset, alice: User, staff: User) -> None:
    """A7: a replay by staff belongs to them and is charged to them, not to the owner."""
    job = make_job(dataset, alice, 1)

    replayed = client_of(staff).post(f"/exports/{job.pk}/replay").json()["jobId"]
    assert Job.objects.get(pk=replayed).user == staff
    assert Usage.objects.get(user=alice).jobs == 1
    assert client_of(staff).post(f"/exports/{job.pk}/cancel").status_code == 200


def test_staff_do_not_see_the_owner_s_link(api: APIClient, dataset: Dataset, alice: User, staff: User) -> None:
    """A7, A22: they could redeem it."""
    job = finish(make_job(dataset, alice, 1))

    assert api.get(f"/exports/{job.pk}").json()["receipt"]["signedUrl"]
    receipt = client_of(staff).get(f"/exports/{job.pk}").json()["receipt"]
    assert (receipt["signedUrl"], receipt["state"]) == (None, "active")


@pytest.mark.parametrize("verb", ["cancel", "retry", "replay", "link"])
def test_a_body_with_fields_is_refused(api: APIClient, dataset: Dataset, alice: User, verb: str) -> None:
    """A1: unknown fields are refused, and nothing changes."""
    job = make_job(dataset, alice, 1)
    response = api.post(f"/exports/{job.pk}/{verb}", {"bogus": 1})

    assert response.status_code == 400
    assert [(error["pointer"], error["code"]) for error in response.json()["errors"]] == [("/bogus", "unknown_field")]
    assert Job.objects.get().status == "pending"


def test_concurrent_cancels_end_a_job_once(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 50)

    clients = [client_of(alice) for _ in range(6)]
    statuses = in_threads(6, lambda n: clients[n].post(f"/exports/{job.pk}/cancel").status_code)
    assert sorted(statuses) == [200] + [409] * 5
