"""Daily quotas of users: display, atomic debits, and refunds (A2). Previews (A5)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.errors import PermanentSourceError
from exports.delivery import packs
from exports.jobs import actions, quotas
from exports.maintenance import periodic
from exports.models import Allowance, Chunk, Dataset, File, Job, Usage
from exports.worker import completion, execution
from tests.conftest import change_settings, client_of
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job
from tests.integration.locks import waits_for_a_lock
from tests.integration.test_execution import calls, count_calls
from tests.integration.test_leases import in_threads
from tests.waiting import avoid_midnight, wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

FILTERS = {"keys": ["JFK", "EWR"], "dateFrom": "2024-02-28", "dateTo": "2024-03-01"}  # 6 chunks


@pytest.fixture(autouse=True)
def _one_day() -> None:
    avoid_midnight()


@pytest.fixture
def small_quota(settings: LazySettings) -> None:
    """A quota of 3 jobs and 10 chunks a day."""
    limits = {"export_daily_jobs": 3, "export_daily_chunks": 10}
    change_settings(settings, **limits)


def submit(api: APIClient, **changes: Any) -> Any:
    return api.post("/exports", {"dataset": "things", "filters": FILTERS, **changes})


def used(user: User) -> tuple[int, int]:
    usage = Usage.objects.get(user=user)
    return usage.jobs, usage.chunks


def rows() -> list[Any]:
    return [list(model.objects.values()) for model in (Job, Chunk, Usage)]


def test_it_shows_limits_and_remaining_quota(api: APIClient, dataset: Dataset, small_quota: None) -> None:
    """A2: GET /exports/limits."""
    before = api.get("/exports/limits").json()
    assert submit(api).status_code == 202

    limits = api.get("/exports/limits").json()
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    resets_at = midnight.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert before["chunksPerDay"] == {"limit": 10, "used": 0, "remaining": 10, "resetsAt": resets_at}
    assert limits == {
        "jobsPerDay": {"limit": 3, "used": 1, "remaining": 2, "resetsAt": resets_at},
        "chunksPerDay": {"limit": 10, "used": 6, "remaining": 4, "resetsAt": resets_at},
        "maxChunksPerJob": 10000,
        "rate": "60/min",
    }


def test_a_request_over_the_chunk_quota_is_refused_and_changes_nothing(
    api: APIClient, dataset: Dataset, alice: User, small_quota: None
) -> None:
    """A2."""
    submit(api)
    before = rows()
    response = submit(api)

    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert response["Content-Type"] == "application/problem+json"
    assert 0 < int(response["Retry-After"]) <= 86400
    assert response.json()["detail"].startswith("This needs 6 chunks, and 4 of today's 10 are left.")
    assert rows() == before


def test_messages_use_the_singular_for_one_chunk() -> None:
    full = quotas.Quota(daily_jobs=9, daily_chunks=9, jobs=1, chunks=9, resets_at=timezone.now())
    assert quotas.exceeded(full, jobs=1, chunks=1).detail.startswith("This needs 1 chunk, and 0 of today's 9 are left.")


def test_a_request_over_the_job_quota_is_refused(
    api: APIClient, dataset: Dataset, alice: User, small_quota: None
) -> None:
    """A2."""
    one = {"filters": {**FILTERS, "keys": ["JFK"], "dateTo": "2024-02-28"}}
    assert [submit(api, **one).status_code for _ in range(4)] == [202, 202, 202, 429]
    assert used(alice) == (3, 3)


def test_refused_input_does_not_count(api: APIClient, dataset: Dataset, small_quota: None) -> None:
    """A2, A3."""
    assert submit(api, format="xml").status_code == 400
    assert not Usage.objects.exists()


def test_parallel_requests_cannot_exceed_the_quota(dataset: Dataset, alice: User, small_quota: None) -> None:
    """A2: three of eight concurrent requests are accepted, which is as many as the quota allows."""

    clients = [client_of(alice) for _ in range(8)]
    three = {**FILTERS, "keys": ["A"]}
    statuses = in_threads(8, lambda n: submit(clients[n], filters=three).status_code)

    assert sorted(statuses) == [202] * 3 + [429] * 5
    assert used(alice) == (3, 9)
    assert Job.objects.count() == 3


def test_quota_that_another_request_has_used_is_unavailable(dataset: Dataset, alice: User, small_quota: None) -> None:
    """A2: a request waits for the open transaction of another request that debits the quota."""
    assert submit(client_of(alice)).status_code == 202

    def submit_late() -> Any:
        try:
            return submit(client_of(alice), filters={**FILTERS, "keys": ["A"]})
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            quotas.debit(user_id=alice.pk, jobs=1, chunks=4)
            late = pool.submit(submit_late)
            wait_until(lambda: late.done() or waits_for_a_lock())
        assert late.result().status_code == 429
    assert used(alice) == (2, 10)


def test_each_user_has_a_separate_quota(api: APIClient, dataset: Dataset, bob: User, small_quota: None) -> None:
    """A2, A7."""
    submit(api)
    assert submit(client_of(bob)).status_code == 202


def test_staff_can_give_a_user_other_limits(api: APIClient, dataset: Dataset, alice: User, small_quota: None) -> None:
    """A2."""
    Allowance.objects.create(user=alice, daily_chunks=20)

    assert [submit(api).status_code for _ in range(4)] == [202, 202, 202, 429]
    limits = api.get("/exports/limits").json()
    assert (limits["jobsPerDay"]["limit"], limits["chunksPerDay"]["limit"]) == (3, 20)
    assert used(alice) == (3, 18)


def test_a_job_larger_than_the_daily_quota_is_refused(api: APIClient, dataset: Dataset, small_quota: None) -> None:
    """A2: also if it is the first job of the day, when the user has no usage row yet."""
    assert submit(api, filters={**FILTERS, "dateTo": "2024-03-10"}).status_code == 429
    assert not Usage.objects.exists()


# ---- Refunds --------------------------------------------------------------------------------------------------------


def test_reused_chunks_are_refunded(dataset: Dataset, alice: User) -> None:
    """A2."""
    make_job(dataset, alice, 3)
    execution.drain()
    assert used(alice) == (1, 3)
    make_job(dataset, alice, 4)
    assert used(alice) == (2, 7)
    execution.drain()
    assert used(alice) == (2, 4)


def test_failed_chunks_are_refunded_and_charged_again_by_a_retry(dataset: Dataset, alice: User) -> None:
    """A2, A19."""
    job = make_job(dataset, alice, 2)
    for _ in range(2):
        claim = claim_one(backend="test")
        assert claim
        outcomes.fail(claim, PermanentSourceError(), delay=None)
    assert used(alice) == (1, 0)

    job.refresh_from_db()
    actions.retry(job)
    assert used(alice) == (1, 2)


def test_a_retry_over_the_quota_changes_nothing(
    api: APIClient, dataset: Dataset, alice: User, small_quota: None
) -> None:
    """A2, A19."""
    job = make_job(dataset, alice, 1)
    claim = claim_one(backend="test")
    assert claim
    outcomes.fail(claim, PermanentSourceError(), delay=None)
    Usage.objects.update(chunks=10)
    before = rows()

    response = api.post(f"/exports/{job.pk}/retry")
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert rows() == before


def test_cancelled_chunks_are_refunded(dataset: Dataset, alice: User) -> None:
    """A2, A19: done chunks stay charged."""
    job = make_job(dataset, alice, 3)
    claim = claim_one(backend="test")
    assert claim
    execution.drain()
    actions.cancel(job)
    assert used(alice) == (1, 2)


def test_no_chunk_is_refunded_twice(dataset: Dataset, alice: User) -> None:
    """A2: even if a stale worker writes the same end again."""
    make_job(dataset, alice, 2)
    claim = claim_one(backend="test")
    assert claim
    for _ in range(2):
        outcomes.fail(claim, PermanentSourceError(), delay=None)
    assert used(alice) == (1, 1)


@pytest.mark.slow
def test_a_reused_chunk_that_is_exported_again_is_refunded_once(dataset: Dataset, alice: User) -> None:
    """A2: the file is missing when the delivery is created, so the chunk has to be exported.

    Then the job is cancelled.
    """
    make_job(dataset, alice, 2)
    execution.drain()
    again = make_job(dataset, alice, 2)
    execution.drain()
    assert used(alice) == (2, 2)
    storage.delete(again.chunks.get(seq=0).path)
    storage.delete_many(item.key for item in storage.list_objects(f"{packs.folder_of_batches(again.pk)}/"))
    completion.complete(again.pk)
    actions.cancel(again)

    assert used(alice) == (2, 2)


def pass_midnight() -> None:
    """Date everything that was charged to the day before."""
    yesterday = F("charged_on") - timedelta(days=1)
    Usage.objects.update(day=F("day") - timedelta(days=1))
    Job.objects.update(charged_on=yesterday)
    Chunk.objects.update(charged_on=yesterday)


def chunks_by_day() -> list[int]:
    return list(Usage.objects.order_by("day").values_list("chunks", flat=True))


def retried_on_the_next_day(dataset: Dataset, alice: User) -> tuple[Job, Chunk]:
    """Make a job with one chunk that was charged and done yesterday, and one that failed and is charged again today.

    Return the job and the first chunk.
    """
    job = make_job(dataset, alice, 2)
    claim = claim_one(backend="test")
    assert claim
    outcomes.fail(claim, PermanentSourceError(), delay=None)
    execution.drain()
    pass_midnight()
    actions.retry(job)
    assert chunks_by_day() == [1, 1]
    return job, job.chunks.get(status="done")


def test_a_refund_goes_to_the_charged_day(dataset: Dataset, alice: User) -> None:
    """A2: also if the job runs past midnight."""
    job = make_job(dataset, alice, 3)
    pass_midnight()
    make_job(dataset, alice, 2)
    actions.cancel(job)

    assert chunks_by_day() == [0, 2]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_each_chunk_is_refunded_to_the_day_on_which_it_was_charged(dataset: Dataset, alice: User, end: str) -> None:
    """A2: also if its job was retried on another day, and then its file was missing, so that it is exported again."""
    job, early = retried_on_the_next_day(dataset, alice)
    execution.drain()
    storage.delete(early.path)
    completion.complete(job.pk)
    assert chunks_by_day() == [1, 1]
    if end == "cancelled":
        actions.cancel(job)
    else:
        claim = claim_one(backend="test")
        assert claim
        outcomes.fail(claim, PermanentSourceError(), delay=None)

    assert chunks_by_day() == [0, 1]


@pytest.mark.slow
def test_one_end_refunds_chunks_of_two_days(dataset: Dataset, alice: User) -> None:
    """A2: the job is cancelled while both chunks wait."""
    job, _ = retried_on_the_next_day(dataset, alice)
    execution.drain()
    for chunk in job.chunks.all():
        storage.delete(chunk.path)
    completion.complete(job.pk)
    assert set(job.chunks.values_list("status", flat=True)) == {"pending"}
    actions.cancel(job)

    assert chunks_by_day() == [0, 0]


def test_a_chunk_without_a_day_is_refunded_to_the_day_of_its_job(dataset: Dataset, alice: User) -> None:
    """A2: an earlier release, which may run beside this one, wrote the chunks."""
    job = make_job(dataset, alice, 3)
    pass_midnight()
    Chunk.objects.update(charged_on=None)
    make_job(dataset, alice, 2)
    actions.cancel(job)

    assert chunks_by_day() == [0, 2]


def test_usage_is_kept_for_a_month(dataset: Dataset, alice: User) -> None:
    today = quotas.debit(user_id=alice.pk, jobs=1, chunks=1)
    for days in (1, 31, 32, 100):
        Usage.objects.create(user=alice, day=today - timedelta(days=days))
    periodic.purge()

    assert {(today - usage.day).days for usage in Usage.objects.all()} == {0, 1, 31}


# ---- Preview --------------------------------------------------------------------------------------------------------


def test_a_preview_describes_a_request_and_changes_nothing(
    api: APIClient, dataset: Dataset, alice: User, source_db: psycopg.Connection
) -> None:
    """A5: it has the numbers of chunks, duplicates, and reusable files, and the cost."""
    count_calls(source_db, dataset)
    make_job(dataset, alice, 2)  # JFK on 28 and 29 February
    execution.drain()
    before = rows()

    body = {"dataset": "things", "filters": {**FILTERS, "keys": ["JFK", "EWR", "JFK"]}}
    response = api.post("/exports/preview", body)
    assert response.status_code == 200
    assert response.json() == {"totalChunks": 6, "duplicates": 3, "reusable": 2, "quotaCost": 4}
    assert api.post("/exports/preview", {**body, "reuse": "never"}).json()["quotaCost"] == 6
    assert rows() == before
    assert calls(source_db) == 2, "only the job calls the source"


def test_a_preview_counts_no_file_of_another_dataset(api: APIClient, dataset: Dataset, alice: User) -> None:
    """The path belonged to that dataset before its base path was changed."""
    make_job(dataset, alice, 2)
    execution.drain()
    File.objects.update(dataset=Dataset.objects.create(name="other", function="data.other", base_path="elsewhere"))
    body = {"dataset": "things", "filters": FILTERS}
    assert api.post("/exports/preview", body).json()["reusable"] == 0


def test_a_preview_refuses_the_same_requests_as_a_submission(api: APIClient, dataset: Dataset) -> None:
    """A5: with the same error messages."""
    bad = {"dataset": "nothing", "filters": {**FILTERS, "dateTo": "2024-01-01"}, "surprise": 1}
    preview, submission = api.post("/exports/preview", bad), api.post("/exports", bad)

    assert preview.status_code == submission.status_code == 400
    assert preview.json()["errors"] == submission.json()["errors"]


def test_previews_and_limits_require_a_user(client: Any) -> None:
    """A2, A5."""
    assert client.get("/exports/limits").status_code == 401
    assert client.post("/exports/preview").status_code == 401
