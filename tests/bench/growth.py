"""P6: what a chunk costs as more wait, and more have ended: 1,000, 10,000 and 100,000; at most 1.2 times as much.

A cheap function, 10 rows, so that the cost is the ledger's and the queue's. Two children work, beside beat and the
other workers. Measured in two ways:

- A window. The tables hold so many ended chunks, with their events and what the cache says of their files, and as many
  wait, of jobs as large as one may be. Some hundred of those that wait are run, and the rest is dropped. 100,000 to
  their end would take a quarter of an hour; a job of 100,000 never has more of either at any moment. Then the smallest
  job beside all that has ended.
- Whole jobs, in tables that are empty before: from the submission to the receipt. A small one, a large one, and a
  small one again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import count
from statistics import median

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from exports.core import planning, wakeups
from exports.models import Chunk, Dataset, Job, Slot
from tests.bench import site
from tests.bench.report import Curve, Report
from tests.bench.turns import Way, in_turn, say
from tests.waiting import let_pass, wait_until

GROWTH = 1.2
ROWS = 10
FIRST_DAY = date(2000, 1, 1)
LIMIT_SECONDS = 600
PLOT = "P6: cost of a chunk"
CHILDREN = {"exports": 2, "bundles": 1, "webhooks": 1, "maintenance": 1}
FUNCTION = f"""
CREATE SCHEMA growth;
CREATE FUNCTION growth.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, {ROWS}) n';
"""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured, in chunks. A window begins after the first few, and ends before the smallest job does."""

    sizes: Sequence[int]
    first: int
    window: int
    whole: tuple[int, int]


FULL = Scale(sizes=(1_000, 10_000, 100_000), first=50, window=700, whole=(1_000, 10_000))
QUICK = Scale(sizes=(200, 400, 800), first=20, window=100, whole=(100, 200))


@dataclass(frozen=True, kw_only=True)
class State:
    """What the tables hold when a window begins, in chunks."""

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
    beside = State(waiting=scale.sizes[0], ended=scale.sizes[-1])
    ways: dict[str, Way] = {
        state.name: partial(cost_in_window, dataset, user, state, scale) for state in (*states, beside)
    }
    with site.working(CHILDREN):
        cost_of_whole(dataset, user, scale.whole[0])  # warm up
        windows = in_turn(ways, rounds=1 if quick else rounds, warm_up=False)
        whole = costs_of_whole(dataset, user, scale)
    tell_windows(report, windows, states, scale)
    tell_whole(report, whole)


# ---- Windows --------------------------------------------------------------------------------------------------------


def cost_in_window(dataset: Dataset, user: User, state: State, scale: Scale) -> float:
    """Return the milliseconds a chunk while some hundred of the waiting ones are run, by the database's clock."""
    pause(dataset)
    empty()
    have_ended(dataset, user, state.ended)
    jobs = [site.submit(dataset, new_pairs(chunks), user) for chunks in in_jobs(state.waiting)]
    assert Chunk.objects.filter(status="pending").count() == state.waiting, "somebody works already"
    go_on(dataset, state.waiting)
    wait_until(lambda: done(jobs) >= scale.first + scale.window, limit=LIMIT_SECONDS, every=0.1)
    pause(dataset)
    verify(jobs)
    times = Chunk.objects.filter(job__in=jobs, status="done").order_by("finished_at")
    ends = [end for end in times.values_list("finished_at", flat=True) if end]
    begin, end = ends[scale.first - 1], ends[scale.first + scale.window - 1]
    return (end - begin).total_seconds() * 1000 / scale.window


def pause(dataset: Dataset) -> None:
    """Have no call of this dataset begin any more, and wait for those that run."""
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=0)
    let_pass(0.2)  # a claim that began before may take its slot only now
    wait_until(lambda: not Slot.objects.held().exists(), limit=LIMIT_SECONDS)


def go_on(dataset: Dataset, waiting: int) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=None)
    wakeups.chunks(waiting=waiting)


def done(jobs: Sequence[Job]) -> int:
    return int(Job.objects.filter(pk__in=[job.pk for job in jobs]).aggregate(sum=Sum("done"))["sum"])


def verify(jobs: Sequence[Job]) -> None:
    """Every chunk that ended has its rows from a call."""
    chunks = Chunk.objects.filter(job__in=jobs)
    ended = chunks.exclude(status="pending")
    assert not ended.exclude(status="done", source="live", rows=ROWS, attempts=1).exists(), "chunks ended otherwise"


# ---- What there is before -------------------------------------------------------------------------------------------

serial = count()


def new_pairs(chunks: int) -> list[planning.Pair]:
    """Return pairs that nobody has asked for before."""
    key = f"NEW{next(serial)}"
    return [planning.Pair(key, FIRST_DAY + timedelta(days=n)) for n in range(chunks)]


def in_jobs(chunks: int) -> list[int]:
    """Return the sizes of the jobs that this many chunks make, each as large as a job may be."""
    most = settings.SLUICE.export_max_chunks_per_job
    return [min(most, chunks - start) for start in range(0, chunks, most)]


def empty() -> None:
    """Leave no job, and no room that old ones took."""
    in_ledger("TRUNCATE exports_chunk, exports_event, exports_jobs, exports_file CASCADE")


# What the statements of `exports.worker.transitions` leave of a chunk that was called for, but for the object.
ENDED = f"""
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


def have_ended(dataset: Dataset, user: User, chunks: int) -> None:
    """Have jobs that succeeded, with so many chunks together, and statistics of them as autovacuum would have made."""
    Job.objects.bulk_create(
        Job(
            user=user, dataset=dataset, schema_version=1, format="csv", delivery="manifest", reuse="never", ttl=600,
            status="success", total=total, done=total, rows=ROWS * total, bytes=200 * total, event_seq=total + 1,
            started_at=timezone.now(), finished_at=timezone.now(),
        )
        for total in in_jobs(chunks)
    )  # fmt: skip
    in_ledger(ENDED)
    in_ledger("VACUUM ANALYZE exports_chunk, exports_event, exports_jobs, exports_file")


def in_ledger(statements: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)


# ---- Whole jobs -----------------------------------------------------------------------------------------------------


def costs_of_whole(dataset: Dataset, user: User, scale: Scale) -> dict[int, list[float]]:
    small, large = scale.whole
    costs: dict[int, list[float]] = {small: [], large: []}
    for chunks in (small, large, small):
        costs[chunks].append(cost_of_whole(dataset, user, chunks))
        say(f"a whole job of {chunks:,}: {costs[chunks][-1]:.3f}")
    return costs


def cost_of_whole(dataset: Dataset, user: User, chunks: int) -> float:
    """Return the milliseconds a chunk, from the submission of a job to its receipt."""
    pause(dataset)
    empty()
    Dataset.objects.filter(pk=dataset.pk).update(max_concurrency=None)
    seconds = site.timed(dataset, new_pairs(chunks), user)
    job = Job.objects.get()
    verify([job])
    assert (job.done, job.rows, job.receipt.files) == (chunks, ROWS * chunks, chunks), "something is missing"
    return seconds * 1000 / chunks


# ---- The report -----------------------------------------------------------------------------------------------------


def tell_windows(report: Report, windows: dict[str, list[float]], states: Sequence[State], scale: Scale) -> None:
    first = states[0].name
    rounds = len(windows[first])
    in_table(report, f"P6, windows of {scale.window} chunks, median of {rounds} in turn", windows)
    costs = {name: median(values) for name, values in windows.items()}
    for name, cost in costs.items():
        if name != first:
            report.bar("P6", f"cost of a chunk: {name}, of {first}", cost / costs[first], GROWTH)
    ended = [float(state.ended) for state in states]
    y = [costs[state.name] for state in states]
    report.curves.append(Curve(PLOT, "so many waiting, and as many ended", ended, y, "chunks", "ms"))
    report.notes.append(
        f"P6: of the chunks that wait, in jobs of up to {settings.SLUICE.export_max_chunks_per_job:,}, {scale.window} "
        f"are run in a window, after the first {scale.first}; the rest is dropped. Those that have ended are rows, "
        "vacuumed and analysed, without objects."
    )


def tell_whole(report: Report, whole: dict[int, list[float]]) -> None:
    measured = {f"a job of {chunks:,}": values for chunks, values in whole.items()}
    in_table(report, "P6, whole jobs to the receipt: the small one before and after the large one", measured)
    costs = {chunks: median(values) for chunks, values in whole.items()}
    small, large = costs
    report.bar("P6", f"cost of a chunk: a whole job of {large:,}, of {small:,}", costs[large] / costs[small], GROWTH)
    sizes = [float(chunks) for chunks in costs]
    report.curves.append(Curve(PLOT, "of a whole job, to the receipt", sizes, list(costs.values()), "chunks", "ms"))


def in_table(report: Report, title: str, measured: dict[str, list[float]]) -> None:
    """Tell milliseconds a chunk, and what they are of the first."""
    first = median(next(iter(measured.values())))
    rows = []
    for name, values in measured.items():
        report.series[f"P6 {name}"] = values
        middle = median(values)
        rows.append([name, f"{middle:.2f}", f"{min(values):.2f} to {max(values):.2f}", f"{middle / first:.2f}"])
    report.table(title, ["", "ms a chunk", "from, to", "of the first"], rows)
