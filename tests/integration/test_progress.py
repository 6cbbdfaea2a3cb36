"""Progress of exports: consistent counters, and the estimate of the remaining time. A35."""

import re
from collections import Counter
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection
from django.db.models.functions import Now
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from config.platform.db.snapshots import one_snapshot
from exports.core.errors import PermanentSourceError
from exports.jobs import actions, representation
from exports.models import Chunk, Dataset, Job
from exports.worker import leases
from tests.integration import outcomes
from tests.integration.factories import claim_one, end_chunk, make_job, result_of
from tests.integration.test_exports_pages import as_user
from tests.integration.test_leases import in_threads

STEPS = st.lists(st.sampled_from(["claim", "batch", "finish", "fail", "release", "retry"]), min_size=1, max_size=25)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_counters_equal_the_counts_of_chunks(dataset: Dataset, alice: User, steps: list[str]) -> None:
    """A35: after any sequence of steps, the counters of a job equal a count of its chunks."""
    Job.objects.all().delete()
    job = make_job(dataset, alice, 8)
    held: list[leases.Claim] = []
    for step in steps:
        perform(step, job, held)
        shown = representation.find(job.pk, user_id=alice.pk)
        assert shown
        progress = representation.progress(shown, shown.created_at)
        counted = Counter(Chunk.objects.filter(job=job).values_list("status", flat=True))
        for status in ("pending", "running", "retrying", "done", "failed", "cancelled"):
            assert progress[status] == counted[status], (status, steps)
        listed = representation.with_details(Job.objects.filter(pk=job.pk)).get()
        assert representation.progress(listed, shown.created_at) == progress
    outcomes.release(held)


def perform(step: str, job: Job, held: list[leases.Claim]) -> None:
    if step == "claim" and (claim := claim_one(backend="test")):
        held.append(claim)
    elif step == "batch":
        held += leases.claim_batch(backend="test", sizes={job.dataset.name: 3})
    elif step == "retry" and Job.objects.filter(pk=job.pk, status="failed").exists():
        actions.retry(job)
    elif held and step == "finish":
        claim = held.pop()
        outcomes.finish([(claim, result_of(claim))])
    elif held and step == "fail":
        outcomes.fail(held.pop(), PermanentSourceError("22012"), delay=None)
    elif held and step == "release":
        outcomes.release([held.pop()])


def test_the_estimate_counts_from_the_retry(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A35: the time before the retry does not affect the estimate."""
    job = make_job(dataset, alice, 4)
    for _ in range(4):
        claim = claim_one(backend="test")
        assert claim
        outcomes.fail(claim, PermanentSourceError("22012"), delay=None)
    Job.objects.update(started_at=Now() - timedelta(hours=1))
    actions.retry(job)
    assert api.get(f"/exports/{job.pk}").json()["progress"]["etaSeconds"] is None
    end_chunk()
    Job.objects.update(resumed_at=Now() - timedelta(seconds=400))
    assert api.get(f"/exports/{job.pk}").json()["progress"]["etaSeconds"] == pytest.approx(1200, abs=60)


def test_a_page_shows_a_consistent_snapshot(dataset: Dataset, alice: User) -> None:
    """A35: if a chunk ends between two queries of a page, all parts of the page show it with the same status."""
    job = make_job(dataset, alice, 3)
    end_chunk()
    seen: list[int] = []

    def end_another_chunk(execute, statement, *args):  # noqa: ANN001, ANN002, ANN202
        result = execute(statement, *args)
        if "exports_chunk" in statement and not seen:
            seen.append(1)
            in_threads(1, lambda _: end_chunk())
        return result

    with connection.execute_wrapper(end_another_chunk):
        page = as_user(alice).get(f"/app/exports/{job.pk}").content.decode()
    assert seen
    assert re.search(r"<dt>Done</dt><dd>1 <small>of 3", page)
    assert "Done 1</a>" in page
    assert page.count('class="state done"') <= 1
    assert Chunk.objects.filter(status="done").count() == 2


def test_the_filters_are_refreshed_with_the_progress(dataset: Dataset, alice: User) -> None:
    """A35: the counts in the table's filters equal the counts above the table."""
    job = make_job(dataset, alice, 3)
    end_chunk()
    url = f"/app/exports/{job.pk}"
    now = as_user(alice).get(
        f"{url}/now", headers={"HX-Request": "true", "HX-Current-URL": f"http://x{url}?status=done"}
    )
    text = now.content.decode()
    assert re.search(r"<dt>Done</dt><dd>1 <small>of 3", text)
    assert 'id="chunk-tabs"' in text
    assert "Done 1</a>" in text
    assert re.search(r'id="tab-Done"[^>]*aria-current="true"', text)
    assert as_user(alice).get(url).content.decode().count('id="chunk-tabs"') == 1


def test_a_stale_prepared_statement_fails_only_one_request(dataset: Dataset, alice: User) -> None:
    """The connection is discarded. Otherwise, each page that uses it would fail until it is closed."""
    page, visitor = f"/app/exports/{make_job(dataset, alice, 1).pk}", as_user(alice)
    assert visitor.get(page).status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")  # like a pooler that switches sessions
    with pytest.raises(ProgrammingError, match="prepared statement"):
        visitor.get(page)
    assert visitor.get(page).status_code == 200


def test_a_snapshot_only_reads(dataset: Dataset) -> None:
    with pytest.raises(Exception, match="read-only"), one_snapshot():
        dataset.save()
