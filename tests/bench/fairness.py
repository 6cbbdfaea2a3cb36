"""P12: a job of 5 chunks behind one of 10,000 that runs already, against the same job alone. Real workers.

Of calls, and of files that are there already, on either side: neither kind of work may hold up the other.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import django
import psycopg

django.setup()

from django.conf import settings  # noqa: E402 - Django is set up only now
from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db.models.functions import Now  # noqa: E402

from config import storage  # noqa: E402
from config.stack import processes  # noqa: E402
from exports import control, planning, submission  # noqa: E402
from exports.models import Chunk, Dataset, File, Job, Slot  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

SMALL, LARGE = 5, 10_000
BAR = 4.0
LIMIT_SECONDS = 120
FIRST_DAY = date(2000, 1, 1)
FUNCTION = """
CREATE SCHEMA IF NOT EXISTS fairness;
CREATE OR REPLACE FUNCTION fairness.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE sql STABLE AS 'SELECT key, n, effective_date FROM generate_series(1, 10) n'
"""
# Of the workers, one for each queue; the others have one.
CHILDREN = {"exports": 2}


def run(*, rounds: int) -> None:
    prepare()
    # behind what -> seconds of a job of calls, and of one of files that are there
    seconds: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in ("alone", "behind 10,000 calls", "behind 10,000 reused")
    }
    with working():
        for kind in ("never", "if-present"):  # warm up
            timed(reuse=kind)
        for _ in range(rounds):
            for name, (fresh, reused) in seconds.items():
                for kind, taken in (("never", fresh), ("if-present", reused)):
                    with AHEAD[name]():
                        taken.append(timed(reuse=kind))
    report({name: (median(fresh), median(reused)) for name, (fresh, reused) in seconds.items()}, rounds)


def prepare() -> None:
    """A dataset, and the files of a large job, as an earlier one would have left them."""
    with psycopg.connect(settings.SLUICE.source_url, autocommit=True) as connection:
        connection.execute(FUNCTION)
    call_command("migrate", verbosity=0)
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
    dataset = Dataset.objects.create(name="fairness", function="fairness.rows_for", base_path="fairness")
    User.objects.create_user("fairness")
    with ThreadPoolExecutor(16) as threads:
        File.objects.bulk_create(threads.map(lambda pair: left_behind(dataset, pair), pairs("OLD", LARGE)))


def left_behind(dataset: Dataset, pair: planning.Pair) -> File:
    path = planning.object_key(dataset.base_path, pair, planning.Shape())
    stored = storage.put(path, b"k,n,d\n", content_type="text/csv")
    return File(
        path=path, dataset=dataset, schema_version=dataset.schema_version, key=pair.key,
        effective_date=pair.effective_date, etag=stored.etag, sha256=stored.sha256, rows=0, bytes=stored.size,
        header_bytes=stored.size, data_as_of=Now(),
    )  # fmt: skip


@contextmanager
def working() -> Iterator[None]:
    with TemporaryDirectory(dir=Path(".local/bench")) as folder:
        root = Path(folder).resolve()
        workers = [
            processes.worker(
                name, queues=queues, concurrency=CHILDREN.get(name, 1), root=root, environment=dict(os.environ)
            )
            for name, queues in processes.WORKERS.items()
        ]
        beat = processes.beat(root=root, environment=dict(os.environ))
        try:
            for process in (*workers, beat):
                process.start()
            yield
        finally:
            for process in (beat, *workers):
                process.ask_to_stop()
            for process in (beat, *workers):
                process.stop()


# ---- Jobs -----------------------------------------------------------------------------------------------------------

serial = count()


def pairs(key: str, chunks: int) -> list[planning.Pair]:
    return [planning.Pair(key, FIRST_DAY + timedelta(days=n)) for n in range(chunks)]


def submit(key: str, chunks: int, *, reuse: str) -> Job:
    request = submission.ExportRequest(
        dataset=Dataset.objects.get(name="fairness"), pairs=pairs(key, chunks), duplicates=0, shape=planning.Shape(),
        delivery="manifest", reuse=reuse, allow_degraded=True,
    )  # fmt: skip
    return submission.submit(request, user_id=User.objects.get(username="fairness").pk)


def timed(*, reuse: str) -> float:
    """Return the seconds from the submission of a small job to its receipt."""
    started = time.perf_counter()
    job = submit("OLD" if reuse == "if-present" else f"NEW{next(serial)}", SMALL, reuse=reuse)
    wait_until(lambda: Job.objects.filter(pk=job.pk, status="success").exists(), limit=LIMIT_SECONDS, every=0.005)
    return time.perf_counter() - started


@contextmanager
def nothing_ahead() -> Iterator[None]:
    yield


@contextmanager
def ahead(key: str, reuse: str) -> Iterator[None]:
    """Have a large job run, so far that every worker is at it; cancel what is left of it at the end."""
    job = submit(f"{key}{next(serial) if reuse == 'never' else ''}", LARGE, reuse=reuse)
    wait_until(lambda: Chunk.objects.filter(job=job, status="done").count() >= 50, limit=LIMIT_SECONDS, every=0.005)
    try:
        yield
    finally:
        job.refresh_from_db()
        if job.status not in ("success", "failed"):
            control.cancel(job)
        wait_until(lambda: not Job.objects.active().exists(), limit=LIMIT_SECONDS, every=0.005)
        wait_until(lambda: not Slot.objects.held().exists(), limit=LIMIT_SECONDS, every=0.005)


AHEAD: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "alone": nothing_ahead,
    "behind 10,000 calls": lambda: ahead("LARGE", "never"),
    "behind 10,000 reused": lambda: ahead("OLD", "if-present"),
}


def report(seconds: dict[str, tuple[float, float]], rounds: int) -> None:
    print(f"\n5 chunks, to the receipt; median of {rounds}  5 calls, s  of alone  5 reused, s  of alone")
    alone = seconds["alone"]
    for name, (fresh, reused) in seconds.items():
        print(f"{name:32}  {fresh:10.3f}  {fresh / alone[0]:8.2f}  {reused:11.3f}  {reused / alone[1]:8.2f}")
    ratio = seconds["behind 10,000 calls"][0] / alone[0]
    print(f"\nP12: {ratio:.2f} of the time alone, bar {BAR:.2f}: {'pass' if ratio <= BAR else 'short'}")
