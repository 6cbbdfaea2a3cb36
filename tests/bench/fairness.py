"""P12: a job of 5 chunks behind another user's running job of 10,000 chunks takes at most 2 times as long as alone.

Both cases alternate, and are measured until the receipt, with real workers. Both jobs are measured with
database calls and with reused files, because neither kind of work may delay the other.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from functools import partial
from itertools import count
from statistics import median

from django.contrib.auth.models import User
from django.db.models.functions import Now

from config.platform import storage
from exports.core import planning
from exports.jobs import actions
from exports.models import Dataset, File, Job, Slot
from tests.bench import site
from tests.bench.alternation import Measurement, alternate
from tests.bench.report import Report
from tests.waiting import wait_until

SMALL, LARGE, QUICK_LARGE = 5, 10_000, 1_000
UNDER_WAY = 50  # finished chunks of the large job when the small one is submitted, so that all workers are busy
MAX_RATIO = 2.0
LIMIT_SECONDS = 120
FIRST_DAY = date(2000, 1, 1)
FUNCTION = """
CREATE SCHEMA fairness;
CREATE FUNCTION fairness.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, 10) n';
"""
CHILDREN = {"exports": 2, "bundles": 1, "webhooks": 1, "maintenance": 1}
# The field `reuse` of requests for jobs of each kind.
KINDS = {"calls": "never", "reused": "if-present"}


def run(report: Report, *, rounds: int, quick: bool) -> None:
    user, other = site.prepare(), User.objects.create_user("other")
    site.in_source(FUNCTION)
    dataset = site.make_dataset("fairness", "fairness.rows_for")
    large = QUICK_LARGE if quick else LARGE
    create_reusable_files(dataset, large)
    alternatives = {kind: alternatives_of(dataset, (user, other), kind, large) for kind in KINDS}
    with site.running_workers(CHILDREN):
        measurements = alternate(alternatives["calls"] | alternatives["reused"], rounds=1 if quick else rounds)
    for kind in KINDS:
        report.times("P12", {name: measurements[name] for name in alternatives[kind]})
        alone, *others = alternatives[kind]
        for behind in others:
            report.bound(
                "P12",
                f"{behind}, relative to alone",
                median(measurements[behind]) / median(measurements[alone]),
                MAX_RATIO,
            )


def alternatives_of(dataset: Dataset, users: tuple[User, User], kind: str, large: int) -> dict[str, Measurement]:
    """Return measurements of the first user's small job: alone, and behind each kind of job of the second user."""
    alternatives: dict[str, Measurement] = {f"{SMALL} {kind} alone": partial(timed, dataset, users[0], kind)}
    for other in KINDS:
        name = f"{SMALL} {kind} behind {large:,} {other}"
        alternatives[name] = partial(timed_behind, dataset, users, kind, other=other, large=large)
    return alternatives


# ---- Reusable files -----------------------------------------------------------------------------------------------


def create_reusable_files(dataset: Dataset, chunks: int) -> None:
    """Create reusable files, as if an earlier job had created them."""
    with ThreadPoolExecutor(16) as threads:
        File.objects.bulk_create(threads.map(partial(create_reusable_file, dataset), pairs("OLD", chunks)))


def create_reusable_file(dataset: Dataset, pair: planning.Pair) -> File:
    path = planning.object_key(dataset.base_path, pair, planning.Shape())
    stored = storage.put(path, b"k,n,d\n", content_type="text/csv")
    return File(
        path=path, dataset=dataset, schema_version=dataset.schema_version, key=pair.key,
        effective_date=pair.effective_date, etag=stored.etag, sha256=stored.sha256, rows=0, bytes=stored.size,
        header_bytes=stored.size, data_as_of=Now(),
    )  # fmt: skip


# ---- Jobs -----------------------------------------------------------------------------------------------------------

serial = count()


def pairs(key: str, chunks: int) -> list[planning.Pair]:
    return [planning.Pair(key, FIRST_DAY + timedelta(days=n)) for n in range(chunks)]


def pairs_of(kind: str, chunks: int) -> list[planning.Pair]:
    """Return pairs with existing files, or pairs that no job has requested."""
    return pairs("OLD" if kind == "reused" else f"NEW{next(serial)}", chunks)


def timed(dataset: Dataset, user: User, kind: str) -> float:
    """Return the seconds from the submission of a small job to its receipt."""
    seconds = site.timed(dataset, pairs_of(kind, SMALL), user, reuse=KINDS[kind])
    job = Job.objects.latest("created_at")
    assert (job.done, job.reused) == (SMALL, SMALL if kind == "reused" else 0), "the job was of another kind"
    return seconds


def timed_behind(dataset: Dataset, users: tuple[User, User], kind: str, *, other: str, large: int) -> float:
    with ahead(dataset, users[1], other, large):
        return timed(dataset, users[0], kind)


@contextmanager
def ahead(dataset: Dataset, user: User, kind: str, chunks: int) -> Iterator[None]:
    """Start a large job and wait until every worker is busy. Cancel the job at the end."""
    job = site.submit(dataset, pairs_of(kind, chunks), user, reuse=KINDS[kind])
    wait_until(
        lambda: Job.objects.filter(pk=job.pk, done__gte=UNDER_WAY).exists(),
        limit=LIMIT_SECONDS,
        every=site.POLL_SECONDS,
    )
    try:
        yield
    finally:
        with suppress(actions.AlreadyEnded):
            actions.cancel(job)
        wait_until(lambda: not Job.objects.active().exists(), limit=LIMIT_SECONDS)
        wait_until(lambda: not Slot.objects.held().exists(), limit=LIMIT_SECONDS)
