"""P6: cost of a chunk with 1,000, 10,000, and 100,000 waiting and ended chunks. It may grow by a factor of at most 1.2.

The function is cheap and returns 10 rows, so most of the cost is caused by the tables and the queue. Two export worker
processes run, besides beat and the other workers. There are two measurements:

- Windows. The tables contain this number of ended chunks, with their events and cached files, and as many waiting
  chunks, in jobs of the maximum size. Several hundred waiting chunks are run, and the rest is dropped, because running
  100,000 would take a quarter of an hour. The smallest job is also measured with the largest number of ended chunks.
- Whole jobs in empty tables, from the submission to the receipt: a small one and a large one, alternating.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import count
from statistics import median
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from exports.core import planning, wakeups
from exports.models import Chunk, Dataset, Job, Slot
from tests.bench import site
from tests.bench.alternation import Measurement, alternate
from tests.bench.report import Curve, Report
from tests.waiting import let_pass, wait_until

GROWTH = 1.2
ROWS = 10
FIRST_DAY = date(2000, 1, 1)
LIMIT_SECONDS = 600
PLOT = "P6: cost of a chunk"
UNIT: dict[str, Any] = {"unit": "ms per chunk", "digits": 2}
CHILDREN = {"exports": 2, "bundles": 1, "webhooks": 1, "maintenance": 1}
FUNCTION = f"""
CREATE SCHEMA growth;
CREATE FUNCTION growth.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, {ROWS}) n';
"""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of a measurement, in chunks.

    A window starts after `first` chunks, and ends before the smallest job does.
    """

    sizes: Sequence[int]
    first: int
    window: int
    whole: tuple[int, int]


FULL = Scale(sizes=(1_000, 10_000, 100_000), first=50, window=700, whole=(1_000, 10_000))
QUICK = Scale(sizes=(200, 400, 800), first=20, window=100, whole=(100, 200))


@dataclass(frozen=True, kw_only=True)
class State:
    """The contents of the tables when a window starts, in chunks."""

    waiting: int
    ended: int

    @property
    def name(self) -> str:
        return f"{self.waiting:,} waiting, {self.ended:,} ended"


def run(report: Report, *, rounds: int, quick: bool) -> None:
    scale = QUICK if quick else FULL
    user = site.prepare()
    site.in_source(FUNCTION)
    dataset = site.make_dataset("growth", "growth.rows_for")
    states = [State(waiting=size, ended=size) for size in scale.sizes]
    smallest_with_most_ended = State(waiting=scale.sizes[0], ended=scale.sizes[-1])
    alternatives: dict[str, Measurement] = {
        state.name: partial(cost_in_window, dataset, user, state, scale)
        for state in (*states, smallest_with_most_ended)
    }
    whole_jobs: dict[str, Measurement] = {
        f"a job of {chunks:,}": partial(whole_job_cost, dataset, user, chunks) for chunks in scale.whole
    }
    rounds = 1 if quick else rounds
    with site.running_workers(CHILDREN):
        whole_job_cost(dataset, user, scale.whole[0])  # warm up
        windows = alternate(alternatives, rounds=rounds, warm_up=False)
        whole = alternate(whole_jobs, rounds=rounds, warm_up=False)
    report_windows(report, windows, states, scale)
    report_whole_jobs(report, whole, scale.whole)


# ---- Windows --------------------------------------------------------------------------------------------------------


def cost_in_window(dataset: Dataset, user: User, state: State, scale: Scale) -> float:
    """Run several hundred waiting chunks. Return milliseconds per chunk, by the clock of the database."""
    pause(dataset)
    empty_tables()
    create_ended_chunks(dataset, user, state.ended)
    jobs = [site.submit(dataset, new_pairs(chunks), user) for chunks in job_sizes(state.waiting)]
    assert Chunk.objects.filter(status="pending").count() == state.waiting, "workers have already started"
    resume(dataset, state.waiting)
    wait_until(lambda: done_chunks(jobs) >= scale.first + scale.window, limit=LIMIT_SECONDS, every=0.1)
    pause(dataset)
    verify(jobs)
    times = Chunk.objects.filter(job__in=jobs, status="done").order_by("finished_at")
    ends = [end for end in times.values_list("finished_at", flat=True) if end]
    begin, end = ends[scale.first - 1], ends[scale.first + scale.window - 1]
    return (end - begin).total_seconds() * 1000 / scale.window


def pause(dataset: Dataset) -> None:
    """Prevent new calls of this dataset, and wait for the running ones."""
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=0)
    let_pass(0.2)  # a concurrent claim may still take a slot
    wait_until(lambda: not Slot.objects.held().exists(), limit=LIMIT_SECONDS)


def resume(dataset: Dataset, waiting: int) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=None)
    wakeups.chunks(waiting=waiting)


def done_chunks(jobs: Sequence[Job]) -> int:
    return int(Job.objects.filter(pk__in=[job.pk for job in jobs]).aggregate(sum=Sum("done"))["sum"])


def verify(jobs: Sequence[Job]) -> None:
    """Assert that every ended chunk succeeded with a call of the function."""
    chunks = Chunk.objects.filter(job__in=jobs)
    ended = chunks.exclude(status="pending")
    assert not ended.exclude(status="done", source="live", rows=ROWS, attempts=1).exists(), "chunks did not all succeed"


# ---- Prepared rows --------------------------------------------------------------------------------------------------

serial = count()


def new_pairs(chunks: int) -> list[planning.Pair]:
    """Return pairs that no job has requested."""
    key = f"NEW{next(serial)}"
    return [planning.Pair(key, FIRST_DAY + timedelta(days=n)) for n in range(chunks)]


def job_sizes(chunks: int) -> list[int]:
    """Return the sizes of jobs with this number of chunks in total, each as large as allowed."""
    max_chunks = settings.SLUICE.export_max_chunks_per_job
    return [min(max_chunks, chunks - start) for start in range(0, chunks, max_chunks)]


def empty_tables() -> None:
    """Delete all jobs, and free the space of old rows."""
    run_statements("TRUNCATE exports_chunk, exports_event, exports_jobs, exports_file CASCADE")


# The same effects as the statements of `exports.worker.transitions` for a called chunk, without the object.
INSERT_ENDED_CHUNKS = f"""
INSERT INTO exports_chunk (job_id, dataset_id, seq, key, effective_date, path, rank, reusable, status, attempts, source,
                           rows, bytes, header_bytes, sha256, etag, data_as_of, error_code, error_detail, started_at,
                           finished_at)
SELECT j.job_id, j.dataset_id, n, 'OLD', date '{FIRST_DAY}' + n, 'growth/' || j.job_id || '/' || n || '.csv', n, false,
       'done', 1, 'live', {ROWS}, 200, 6, md5(j.job_id::text) || md5(n::text), md5(n::text), now(), '', '', now(), now()
FROM exports_jobs j CROSS JOIN generate_series(0, j.total - 1) n;
INSERT INTO exports_event (job_id, seq, kind, status, chunk_id)
SELECT job_id, seq + 1, 'chunk', 'done', id FROM exports_chunk;
INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
                          header_bytes, data_as_of)
SELECT path, dataset_id, 1, key, effective_date, etag, sha256, rows, bytes, header_bytes, data_as_of
FROM exports_chunk;
"""


def create_ended_chunks(dataset: Dataset, user: User, chunks: int) -> None:
    """Create successful jobs with this number of chunks in total, then vacuum and analyze like autovacuum."""
    Job.objects.bulk_create(
        Job(
            user=user, dataset=dataset, schema_version=1, format="csv", delivery="manifest", reuse="never", ttl=600,
            status="success", total=total, done=total, rows=ROWS * total, bytes=200 * total, event_seq=total + 1,
            started_at=timezone.now(), finished_at=timezone.now(),
        )
        for total in job_sizes(chunks)
    )  # fmt: skip
    run_statements(INSERT_ENDED_CHUNKS)
    run_statements("VACUUM ANALYZE exports_chunk, exports_event, exports_jobs, exports_file")


def run_statements(statements: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)


# ---- Whole jobs -----------------------------------------------------------------------------------------------------


def whole_job_cost(dataset: Dataset, user: User, chunks: int) -> float:
    """Return milliseconds per chunk, from the submission of a job to its receipt."""
    pause(dataset)
    empty_tables()
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=None)
    seconds = site.timed(dataset, new_pairs(chunks), user)
    job = Job.objects.get()
    verify([job])
    assert (job.done, job.rows, job.receipt.files) == (chunks, ROWS * chunks, chunks), "chunks are missing"
    return seconds * 1000 / chunks


# ---- The report -----------------------------------------------------------------------------------------------------


def report_windows(report: Report, windows: dict[str, list[float]], states: Sequence[State], scale: Scale) -> None:
    first = states[0].name
    rounds = len(windows[first])
    report.times("P6", windows, title=f"P6, windows of {scale.window} chunks, median of {rounds}, alternating", **UNIT)
    costs = {name: median(values) for name, values in windows.items()}
    for name, cost in costs.items():
        if name != first:
            report.bound("P6", f"cost per chunk: {name}, relative to {first}", cost / costs[first], GROWTH)
    points = {float(state.ended): costs[state.name] for state in states if state.ended == state.waiting}
    report.curves.append(
        Curve(PLOT, "N waiting and N ended chunks", list(points), list(points.values()), "chunks", "ms")
    )
    report.notes.append(
        f"P6: the waiting chunks are in jobs of up to {settings.SLUICE.export_max_chunks_per_job:,}. A window measures "
        f"{scale.window} chunks after the first {scale.first}; the remaining chunks are dropped. The ended chunks "
        "exist only as rows, without objects; their tables are vacuumed and analyzed."
    )


def report_whole_jobs(report: Report, whole: dict[str, list[float]], sizes: tuple[int, int]) -> None:
    rounds = len(next(iter(whole.values())))
    report.times("P6", whole, title=f"P6, whole jobs to the receipt, median of {rounds}, alternating", **UNIT)
    small, large = costs = [median(values) for values in whole.values()]
    report.bound("P6", f"cost per chunk: a whole job of {sizes[1]:,}, relative to {sizes[0]:,}", large / small, GROWTH)
    curve = "a whole job of N chunks, until its receipt"
    report.curves.append(Curve(PLOT, curve, [float(size) for size in sizes], costs, "chunks", "ms"))
