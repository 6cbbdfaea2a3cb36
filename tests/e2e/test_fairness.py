"""The order of claims for small and large jobs of two users. A10, A37.

Waits are counted in claims, which do not depend on the machine. tests/bench/fairness.py measures seconds.
"""

from collections import Counter
from collections.abc import Callable

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Max, Min
from django.db.models.functions import Now

from exports.core.errors import SourceUnavailable
from exports.core.states import Source
from exports.jobs import actions
from exports.models import Chunk, Dataset, File, Job
from exports.worker import leases
from exports.worker.leases import Claim
from tests.e2e.conftest import Workers
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

LARGE, SMALL = 10_000, 5


def claim() -> Claim:
    claimed = claim_one(backend="test")
    assert claimed
    return claimed


def finish(claimed: Claim) -> None:
    outcomes.finish([(claimed, result_of(claimed))])


@pytest.fixture
def large(dataset: Dataset, alice: User, slots: int) -> Job:
    """A job of 10,000 chunks: some are done, and one runs in each slot but one."""
    job = make_job(dataset, alice, LARGE, key="LARGE")
    for _ in range(100):
        finish(claim())
    for _ in range(slots - 1):
        claim()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE exports_chunk")
    return job


def claims_until(condition: Callable[[Counter[object]], bool]) -> Counter[object]:
    """Claim and finish chunks in sequence, and return the number of claims of each job."""
    counts: Counter[object] = Counter()
    while not condition(counts):
        claimed = claim()
        counts[claimed.job_id] += 1
        finish(claimed)
    return counts


def test_a_small_job_alternates_with_a_large_one(large: Job, dataset: Dataset, bob: User, slots: int) -> None:
    """A10, A37: all its chunks are claimed within the next 2 x 5 claims plus the number of slots."""
    small = make_job(dataset, bob, SMALL, key="SMALL")

    counts = claims_until(lambda counts: counts[small.pk] == SMALL)
    assert counts.total() <= 2 * SMALL + slots
    assert counts[large.pk] >= SMALL - 1


def test_a_job_with_only_retries_takes_its_turn(dataset: Dataset, alice: User, bob: User, slots: int) -> None:
    """A10, A17: the source has recovered from an outage, and the retries are due before a job that came later."""
    large = make_job(dataset, alice, 200, key="LARGE")
    for _ in range(100):
        outcomes.fail(claim(), SourceUnavailable(), delay=60)
    assert Chunk.objects.filter(status="retrying").update(available_at=Now()) == 100
    small = make_job(dataset, bob, SMALL, key="SMALL")

    counts = claims_until(lambda counts: counts[small.pk] == SMALL)
    assert counts.total() <= 4 * SMALL + slots
    assert counts[large.pk] >= SMALL


@pytest.mark.slow
def test_checking_files_of_a_small_job_waits_for_one_batch_of_a_large_one(
    dataset: Dataset, alice: User, bob: User
) -> None:
    """A10, A16."""
    make_job(dataset, alice, 600, key="LARGE")
    for claimed in iter(lambda: claim_one(backend="test"), None):
        finish(claimed)
    make_job(dataset, alice, SMALL, key="SMALL", reuse="never")
    for claimed in iter(lambda: claim_one(backend="test"), None):
        finish(claimed)
    assert File.objects.count() == 600 + SMALL
    make_job(dataset, alice, 600, key="LARGE")
    under_way = leases.claim_reusable(batch=200)
    small = make_job(dataset, bob, SMALL, key="SMALL")

    found = leases.claim_reusable(batch=200)
    assert {each.job_id for each in found} == {small.pk}
    assert len(found) == SMALL
    outcomes.finish([(each, result_of(each, source=Source.REUSED)) for each in found])
    assert {each.job_id for each in leases.claim_reusable(batch=200)} == {under_way[0].job_id}


@pytest.mark.slow
def test_calls_and_file_checks_do_not_block_each_other(
    dataset: Dataset, alice: User, bob: User, workers: Workers
) -> None:
    """A10: one worker does both, and the small job finishes while the large one runs."""
    workers.start("bundles,maintenance", concurrency=1)
    workers.start("exports", concurrency=1)
    first = make_job(dataset, alice, SMALL, key="SMALL")
    wait_until(lambda: Job.objects.filter(pk=first.pk, status="success").exists())
    large = make_job(dataset, alice, 2_000, key="LARGE")
    wait_until(lambda: Chunk.objects.filter(job=large, status="done").count() > 20)
    again = make_job(dataset, bob, SMALL, key="SMALL")
    wait_until(lambda: Job.objects.filter(pk=again.pk, status="success").exists())

    again.refresh_from_db()
    large.refresh_from_db()
    assert again.reused == SMALL
    assert large.done < large.total / 2
    actions.cancel(large)


@pytest.mark.slow
def test_users_take_turns_although_a_worker_is_killed(  # noqa: PLR0917 - pytest passes fixtures by name
    dataset: Dataset, alice: User, bob: User, workers: Workers, source_db: psycopg.Connection, slots: int
) -> None:
    """A37: the ranks are in the rows, so neither a killed worker nor concurrent workers change the order."""
    source_db.execute("""
        CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date)
        RETURNS TABLE (k text, n int, d date) LANGUAGE sql STABLE AS
        $$ SELECT key, 1, effective_date FROM (SELECT pg_sleep(0.07)) s $$
    """)
    for number in range(100):
        make_job(dataset, alice, 2, key=f"A{number}")
    workers.start("bundles,maintenance", concurrency=1)
    victim = workers.start("exports", concurrency=1)
    workers.start("exports", concurrency=1)
    workers.start_beat()
    wait_until(lambda: Chunk.objects.filter(status="done").count() > 5)
    job = make_job(dataset, bob, 20, key="BOB")
    wait_until(lambda: Chunk.objects.filter(job=job, status="done").count() > 5)
    victim.kill()
    wait_until(lambda: Job.objects.filter(pk=job.pk, status="success").exists(), limit=60)

    # The chunks of the killed worker are repeated after its lease.
    in_turn = job.chunks.filter(attempts=1).aggregate(first=Min("started_at"), last=Max("started_at"))
    between = Chunk.objects.filter(
        job__user=alice, started_at__gt=in_turn["first"], started_at__lt=in_turn["last"], attempts=1
    )
    assert 10 <= between.count() <= 20 + slots
