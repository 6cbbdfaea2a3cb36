"""A25: one sequence of events for each job, written by the statements that make the changes."""

from collections import defaultdict
from itertools import pairwise

import pytest
from django.contrib.auth.models import User

from exports.core.errors import PermanentSourceError, SourceError
from exports.core.states import JOB_ENDED
from exports.jobs import actions
from exports.maintenance import lost_leases
from exports.models import Chunk, Dataset, Event, Job
from exports.worker import completion, execution
from tests.integration import outcomes
from tests.integration.factories import claim_one, make_job, result_of
from tests.integration.test_leases import claim, expire_leases, in_threads

pytestmark = pytest.mark.usefixtures("empty_bucket")


def recorded(job: Job) -> list[tuple[str, str]]:
    return list(job.events.order_by("seq").values_list("kind", "status"))


def check(job: Job) -> None:
    """Check that the sequence matches the current rows."""
    job.refresh_from_db()
    events = list(job.events.order_by("seq"))
    assert all(0 < event.seq <= job.event_seq for event in events)
    newest = {event.chunk_id: event.status for event in events if event.kind == "chunk"}
    now = dict(job.chunks.values_list("pk", "status"))
    assert newest == {pk: now[pk] for pk in newest if pk}
    statuses = [event.status for event in events if event.kind == "status"]
    assert statuses[-1:] in ([], [job.status])
    assert all(before != after for before, after in pairwise(statuses))
    if job.status in JOB_ENDED:
        assert (events[-1].kind, events[-1].status) == ("status", job.status)
        assert events[-1].seq == job.event_seq


def test_events_cover_a_run_from_start_to_end(dataset: Dataset, alice: User) -> None:
    """A25: there is an event for each chunk and for each change of the job's status."""
    job = make_job(dataset, alice, 3)
    assert recorded(job) == []
    execution.drain()
    completion.complete(job.pk)

    assert recorded(job) == [("status", "running"), *[("chunk", "done")] * 3, ("status", "success")]
    assert set(job.events.filter(kind="chunk").values_list("chunk_id", flat=True)) == set(
        job.chunks.values_list("pk", flat=True)
    )
    check(job)


def test_an_event_number_is_reserved_for_progress(dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 3)
    execution.drain()
    again = make_job(dataset, alice, 3)
    execution.drain()

    for each in (job, again):
        taken = dict(each.events.values_list("seq", "kind"))
        chunks = [seq for seq, kind in taken.items() if kind == "chunk"]
        assert max(chunks) + 1 not in taken


def test_retries_and_failures_have_events(dataset: Dataset, alice: User) -> None:
    """A17, A25."""
    job = make_job(dataset, alice, 2)
    first, second = claim(), claim()
    outcomes.fail(first, SourceError(), delay=0)
    check(job)
    outcomes.fail(claim(), PermanentSourceError(), delay=None)
    outcomes.finish([(second, result_of(second))])

    assert recorded(job) == [
        ("status", "running"),
        ("chunk", "retrying"),
        ("status", "retrying"),
        ("status", "running"),
        ("chunk", "failed"),
        ("chunk", "done"),
        ("status", "failed"),
    ]
    check(job)


def test_a_manual_retry_continues_the_sequence(dataset: Dataset, alice: User) -> None:
    """A19, A25."""
    job = make_job(dataset, alice, 2)
    for _ in range(2):
        outcomes.fail(claim(), PermanentSourceError(), delay=None)
    end = Event.objects.get(job=job, kind="status", status="failed")
    job.refresh_from_db()
    actions.retry(job)

    later = job.events.filter(seq__gt=end.seq).order_by("seq")
    assert [(event.kind, event.status) for event in later] == [("chunk", "pending")] * 2 + [("status", "running")]
    check(job)


def test_a_cancel_has_an_event_with_its_chunks(dataset: Dataset, alice: User) -> None:
    """A19, A25."""
    job = make_job(dataset, alice, 3)
    done = claim()
    outcomes.finish([(done, result_of(done))])
    actions.cancel(job)

    assert recorded(job)[-3:] == [("chunk", "cancelled"), ("chunk", "cancelled"), ("status", "cancelled")]
    check(job)


def test_a_lost_worker_has_an_event_when_its_chunk_fails(dataset: Dataset, alice: User) -> None:
    """A12, A25."""
    job = make_job(dataset, alice, 1)
    claim()
    expire_leases()
    lost_leases.reclaim_batch(batch=10)
    assert recorded(job) == [("status", "running")]  # no event of the chunk, because its claim had none, either

    Chunk.objects.update(attempts=4, status="running", token=1, lease_until="2000-01-01T00:00:00Z")
    lost_leases.reclaim_chunks()
    assert recorded(job) == [("status", "running"), ("chunk", "failed"), ("status", "failed")]
    check(job)


def test_a_failed_completion_has_an_event(dataset: Dataset, alice: User) -> None:
    """A25."""
    job = make_job(dataset, alice, 1)
    execution.drain()
    for attempt in range(4):
        Job.objects.update(completion_lease_until=None)
        token = completion.claim(job.pk)
        assert token
        job.completion_attempts = attempt + 1
        completion.fail(job, token, "no")

    assert recorded(job)[-1] == ("status", "failed")
    check(job)


def test_stale_writes_have_no_event(dataset: Dataset, alice: User) -> None:
    """A11, A25."""
    job = make_job(dataset, alice, 1)
    holder = claim()
    outcomes.finish([(holder, result_of(holder))])
    before = recorded(job)
    outcomes.finish([(holder, result_of(holder))])
    outcomes.fail(holder, SourceError(), delay=1)
    outcomes.release([holder])

    assert recorded(job) == before


@pytest.mark.parametrize("_", range(3))
def test_event_numbers_are_unique_and_grow_in_commit_order(dataset: Dataset, alice: User, _: int) -> None:
    """A25: readers never find a new event with a smaller number. Six workers write while two clients read."""
    job = make_job(dataset, alice, 60)
    seen: dict[int, list[list[int]]] = defaultdict(list)

    def work(n: int) -> None:
        if n < 2:
            while not Job.objects.filter(pk=job.pk, done=60).exists():
                seen[n].append(list(job.events.order_by("seq").values_list("seq", flat=True)))
            return
        while claimed := claim_one(backend=f"test{n}"):
            outcomes.finish([(claimed, result_of(claimed))])

    in_threads(8, work)
    assert all(later[: len(earlier)] == earlier for n in seen for earlier, later in pairwise(seen[n]))
    assert Event.objects.filter(job=job, kind="chunk").count() == 60
    check(job)
