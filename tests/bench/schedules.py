"""P15: 10,000 schedules that are due in the same minute.

Bounds: each takes at most 1.2 times as long as with 100 schedules, and the work for one message ends at most 5 s after
DRAIN_SECONDS. The next message continues the work. The total time of two processes is measured for information.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import NamedTuple

import django
from django.contrib.auth.models import User

from exports.api.serializers import ExportRequestSerializer
from exports.models import Dataset, Job, Schedule, ScheduleRun
from exports.schedules import runs
from tests.bench import site
from tests.bench.report import Report

PLANNED = datetime(2026, 1, 1, 6, tzinfo=UTC)
GROWTH = 1.2
PROCESSES = 2


def run(report: Report, *, rounds: int, quick: bool) -> None:
    site.prepare()
    dataset = site.make_dataset("bench", "bench.rows_for")
    few, many = 100, 1_000 if quick else 10_000
    spent: dict[int, list[float]] = {few: [], many: []}
    longest = 0.0
    for _ in range(min(rounds, 3)):
        for number, costs in spent.items():
            make_due(dataset, number)
            seconds, longest_drain = drain(number)
            costs.append(seconds / number * 1000)
            longest = max(longest, longest_drain)
    each = {number: median(values) for number, values in spent.items()}
    report.table(
        "P15, schedules that are due at once", ["", "ms each", "seconds for all"],
        [[f"{number:,}", f"{cost:.2f}", f"{cost * number / 1000:.1f}"] for number, cost in each.items()],
    )  # fmt: skip
    report.bound("P15", f"cost of a due schedule: {many:,} at once, relative to {few}", each[many] / each[few], GROWTH)
    report.bound("P15", f"{many:,} due schedules, {PROCESSES} processes", each[many] * many / 1000, unit="s")
    report.bound("P15", "the longest work for one message", longest, runs.DRAIN_SECONDS + 5, unit="s")


def make_due(dataset: Dataset, number: int) -> None:
    """Replace all schedules with this number of due ones, 100 per user."""
    Job.objects.all().delete()
    ScheduleRun.objects.all().delete()
    Schedule.objects.all().delete()
    users = [User.objects.get_or_create(username=f"owner-{n}")[0] for n in range(-(-number // 100))]
    Schedule.objects.bulk_create(
        Schedule(
            user=users[n // 100], name=str(n), cron="0 6 * * *", timezone="UTC", misfire="skip",
            request={"dataset": dataset.name, "keys": ["JFK"]}, window_from=-1, window_to=-1,
            next_run_at=PLANNED, check_at=PLANNED,
        )
        for n in range(number)
    )  # fmt: skip


def drain(number: int) -> tuple[float, float]:
    """Run all due schedules in several processes.

    Return the seconds without the start of Python, and the seconds of the longest call.
    """
    with ProcessPoolExecutor(
        PROCESSES, mp_context=multiprocessing.get_context("spawn"), initializer=django.setup
    ) as pool:
        spans = list(pool.map(drain_in_process, range(PROCESSES)))
    assert Job.objects.count() == ScheduleRun.objects.filter(outcome="started").count() == number
    return max(span.ended for span in spans) - min(span.began for span in spans), max(span.longest for span in spans)


class Span(NamedTuple):
    began: float
    ended: float
    longest: float


def drain_in_process(_number: int) -> Span:
    began, longest = time.time(), 0.0
    while True:
        started = time.perf_counter()
        seen = runs.run_due(ExportRequestSerializer.read, now=PLANNED + timedelta(seconds=1))
        longest = max(longest, time.perf_counter() - started)
        if not seen:
            return Span(began, time.time(), longest)
