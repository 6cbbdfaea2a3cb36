"""Turns between users, measured in claims. A37."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from django.contrib.auth.models import User
from django.db.models import Max, Min
from rest_framework.test import APIClient

from exports.core.errors import PermanentSourceError
from exports.jobs import actions, turns
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, Job, Slot
from exports.worker.leases import Claim
from tests.conftest import client_of
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.test_leases import expire_leases, in_threads


@pytest.fixture
def carol(transactional_db: None) -> User:
    return User.objects.create_user("carol")


def claim() -> Claim:
    claimed = claim_one(backend="test")
    assert claimed
    return claimed


def end(claimed: Claim) -> None:
    outcomes.finish([(claimed, result_of(claimed))])


def served(times: int) -> list[Claim]:
    """Claim and finish a number of chunks in sequence."""
    found = []
    for _ in range(times):
        end(claimed := claim())
        found.append(claimed)
    return found


def claims_until(is_over: Callable[[], bool]) -> Counter[str]:
    """Claim and finish chunks until a condition holds. Return the number of chunks per user."""
    counts: Counter[str] = Counter()
    while not is_over():
        end(claimed := claim())
        counts[Job.objects.get(pk=claimed.job_id).user.username] += 1
    return counts


def is_done(job: Job) -> Callable[[], bool]:
    return lambda: not job.chunks.exclude(status="done").exists()


def ranks(jobs: Iterable[Job]) -> list[tuple[int, int]]:
    found = Chunk.objects.filter(job__in=list(jobs)).values("job").annotate(first=Min("rank"), last=Max("rank"))
    return sorted((each["first"], each["last"]) for each in found)


# ---- Between users --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_job_takes_turns_with_a_hundred_of_another_user(
    dataset: Dataset, alice: User, bob: User, slots: int, chunks: int
) -> None:
    """A37: it takes at most twice as long as alone, whatever jobs the other user has."""
    for number in range(100):
        make_job(dataset, alice, chunks, key=f"A{number}")
    served(7)
    for _ in range(slots - 1):
        claim()  # other workers are busy
    job = make_job(dataset, bob, 20, key="BOB")
    counts = claims_until(is_done(job))
    assert counts["bob"] == 20
    assert 19 <= counts["alice"] <= 20


@pytest.mark.slow
def test_many_small_jobs_do_not_starve_another_user(dataset: Dataset, alice: User, bob: User) -> None:
    """A37: nor does a stream of small jobs, each submitted when the previous one has ended."""
    large = make_job(dataset, alice, 200, key="LARGE")
    for number in range(20):
        make_job(dataset, bob, 3, key=f"B{number}")
    counts = claims_until(lambda: Job.objects.filter(user=bob, done=3).count() == 20)
    assert counts["bob"] == 60
    assert 59 <= counts["alice"] <= 60

    before = Job.objects.get(pk=large.pk).done
    for number in range(10):
        one = make_job(dataset, bob, 3, key=f"NEXT{number}")
        claims_until(is_done(one))
    assert Job.objects.get(pk=large.pk).done - before >= 10 * 2


def test_the_jobs_of_one_user_run_in_their_order(dataset: Dataset, alice: User) -> None:
    """A37."""
    jobs = [make_job(dataset, alice, 3, key=f"A{number}") for number in range(4)]
    served(2)
    jobs.append(make_job(dataset, alice, 2, key="LAST"))
    order = list(dict.fromkeys(claimed.job_id for claimed in served(12)))
    assert order == [job.pk for job in jobs]


def test_three_users_take_turns(dataset: Dataset, alice: User, bob: User, carol: User) -> None:
    """A37: a user who submits later is not ahead of those who wait."""
    for user in (alice, bob):
        make_job(dataset, user, 30, key=user.username.upper())
    served(20)
    make_job(dataset, carol, 30, key="CAROL")
    counts = Counter(Job.objects.get(pk=claimed.job_id).user.username for claimed in served(30))
    assert set(counts.values()) == {10}


def test_a_user_whose_work_has_ended_starts_with_the_others(dataset: Dataset, alice: User, bob: User) -> None:
    """A37: past and cancelled jobs do not count."""
    first = make_job(dataset, alice, 50, key="FIRST")
    other = make_job(dataset, bob, 50, key="BOB")
    served(10)
    actions.cancel(first)
    again = make_job(dataset, alice, 5, key="AGAIN")
    assert ranks([again])[0][0] == min(Chunk.objects.filter(job=other, status="pending").values_list("rank", flat=True))


# ---- Retries, lost workers ------------------------------------------------------------------------------------------


def test_a_retry_takes_its_turn_as_a_new_job_does(dataset: Dataset, alice: User, bob: User) -> None:
    """A37: with its old ranks, it would be ahead of all other jobs."""
    failed = make_job(dataset, alice, 20, key="FAILED", allow_degraded=False)
    for _ in range(20):
        outcomes.fail(claim(), PermanentSourceError("SQLSTATE 42883"), delay=None)
    make_job(dataset, alice, 10, key="LATER")
    job = make_job(dataset, bob, 20, key="BOB")
    served(10)
    assert actions.retry(failed) == 20
    assert list(failed.chunks.order_by("rank").values_list("seq", flat=True)) == list(range(20))
    behind = Chunk.objects.filter(job__user=alice, status="pending").exclude(job=failed).aggregate(Max("rank"))
    assert ranks([failed]) == [(behind["rank__max"] + 1, behind["rank__max"] + 20)]
    counts = claims_until(is_done(job))
    assert counts["alice"] <= counts["bob"] + 1


def test_chunks_of_a_lost_worker_keep_their_turn(dataset: Dataset, alice: User, bob: User) -> None:
    """A37: they are next when their leases have expired, and no other ranks change."""
    job = make_job(dataset, alice, 10)
    lost = [claim() for _ in range(3)]
    make_job(dataset, bob, 10, key="BOB")
    before = ranks(Job.objects.all())
    expire_leases()
    lost_leases.reclaim_batch(batch=10)
    lost_leases.free_slots()
    assert ranks(Job.objects.all()) == before
    Slot.objects.update(token=None, lease_until=None)
    assert {each.chunk_id for each in served(3)} == {each.chunk_id for each in lost}
    assert claims_until(is_done(job))["bob"] in (6, 7)


# ---- Concurrent submissions -----------------------------------------------------------------------------------------


def test_concurrent_jobs_of_one_user_get_an_order(dataset: Dataset, alice: User, bob: User) -> None:
    """A37: no two jobs of the user have the same rank. A job of another user begins at the head of the queue."""
    jobs = in_threads(6, lambda number: make_job(dataset, alice, 10, key=f"A{number}"))
    found = ranks(jobs)
    assert found[0][0] == 0
    assert all(following[0] == earlier[1] + 1 for earlier, following in pairwise(found))
    assert ranks([make_job(dataset, bob, 5)]) == [(0, 4)]


# ---- Limited datasets -----------------------------------------------------------------------------------------------


@pytest.fixture
def limited(dataset: Dataset) -> Dataset:
    """A dataset with one call at a time."""
    return Dataset.objects.create(name="limited", function="data.rows_for", base_path="limited", max_concurrency=1)


def test_a_dataset_that_waits_for_its_own_slots_is_not_the_head_of_the_queue(
    dataset: Dataset, limited: Dataset, alice: User, bob: User, carol: User
) -> None:
    """A37: otherwise, each new job of another dataset would be ahead of all that wait."""
    make_job(limited, alice, 50, key="SLOW")
    assert claim().dataset == "limited"
    waits = make_job(dataset, bob, 50, key="BOB")
    served(20)
    late = make_job(dataset, carol, 10, key="CAROL")
    assert ranks([late])[0][0] == waits.chunks.filter(status="pending").aggregate(Min("rank"))["rank__min"]
    counts = claims_until(is_done(late))
    assert abs(counts["bob"] - counts["carol"]) <= 1
    # For the limited dataset itself, its own queue counts.
    assert ranks([make_job(limited, carol, 1, key="NEW")])[0][0] < ranks([late])[0][0]


def test_a_backlog_that_waits_for_its_own_slots_does_not_delay_other_datasets(
    dataset: Dataset, limited: Dataset, alice: User, bob: User
) -> None:
    """A37."""
    make_job(limited, alice, 50, key="SLOW")
    assert claim().dataset == "limited"
    make_job(dataset, bob, 50, key="BOB")
    quick = make_job(dataset, alice, 10, key="QUICK")
    counts = claims_until(is_done(quick))
    assert counts["bob"] <= 11


# ---- Queue positions ------------------------------------------------------------------------------------------------


def test_the_queue_position_follows_the_turns(dataset: Dataset, alice: User, bob: User, api: APIClient) -> None:
    """A37: for a single job and in lists."""
    mine = [make_job(dataset, alice, 2, key=f"A{number}") for number in range(5)]
    his = make_job(dataset, bob, 2, key="BOB")
    found = {job["jobId"]: job["queuePosition"] for job in api.get("/exports").json()["results"]}
    assert [found[str(job.pk)] for job in mine] == [0, 2, 3, 4, 5]
    assert client_of(bob).get(f"/exports/{his.pk}").json()["queuePosition"] == 1
    assert [api.get(f"/exports/{job.pk}").json()["queuePosition"] for job in mine] == [0, 2, 3, 4, 5]
    for wanted in (mine[0], his, *mine[1:]):  # and they start in this order
        assert claim_job_that_starts() == wanted.pk


def claim_job_that_starts() -> object:
    """Claim chunks until a job starts, and return its ID."""
    while True:
        end(claimed := claim())
        if claimed.started_job:
            return claimed.job_id


def test_a_new_job_ranks_behind_the_waiting_chunks_of_its_owner(dataset: Dataset, alice: User) -> None:
    """A37: only the last waiting chunk of each job is read."""
    make_job(dataset, alice, 500)
    assert turns.next_rank(user_id=alice.pk, dataset_id=dataset.pk) == 500
