"""The scheduler: each planned time runs once, despite crashes, concurrency, and stalls. A33."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Count, F
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from config.platform.db import clock, sql
from exports.core import gauges
from exports.jobs import actions, webhook_events
from exports.maintenance import retention
from exports.models import Allowance, Chunk, Dataset, Job, Schedule, ScheduleRun, Tick, Usage
from exports.models.schedule import LATE
from exports.schedules import runs
from exports.tasks import run_schedules
from tests.conftest import change_settings
from tests.integration.schedules import START, make_schedule, read_export
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_redis")

SPRING, AUTUMN = datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC)


def run(now: datetime) -> int:
    return runs.run_due(read_export, now=now)


def end_jobs() -> None:
    for job in Job.objects.active():
        actions.cancel(job)


def history(schedule: Schedule) -> list[tuple[str, str]]:
    """Return the outcomes by planned time, oldest first."""
    return [
        (f"{each.planned_at:%m-%d %H:%M}" if each.planned_at else "by hand", each.outcome)
        for each in schedule.runs.order_by("id")
    ]


def counted() -> float | None:
    return REGISTRY.get_sample_value("sluice_caught_errors_total", {"place": "schedule"})


# ---- Planned times --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_each_planned_time_of_a_year_has_one_run(dataset: Dataset, alice: User) -> None:
    """A33: 365 jobs at 02:30 in Berlin, but at 03:00 if a day has no 02:30, and at the first 02:30 if it has two."""
    schedule = make_schedule(alice, dataset)
    for _ in range(365):
        schedule.refresh_from_db()
        assert schedule.next_run_at
        for early in (1, 0, 0):  # an additional message changes nothing
            run(schedule.next_run_at - timedelta(seconds=early))
        Job.objects.active().update(status="failed", failed=F("total"))
    jobs = list(Job.objects.filter(schedule_id=schedule.pk).order_by("planned_at"))
    planned = [job.planned_at for job in jobs if job.planned_at]
    assert len(planned) == len(set(planned)) == len(jobs) == 365
    assert SPRING.replace(hour=1) in planned
    assert [each.hour for each in planned if each.date() == AUTUMN.date()] == [0]
    days = list(Chunk.objects.filter(job__in=jobs).order_by("effective_date").values_list("effective_date", flat=True))
    assert days == [START.date() + timedelta(days=n - 1) for n in range(365)]


def test_after_a_day_without_the_beat_missed_times_are_skipped(dataset: Dataset, alice: User) -> None:
    """A33."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    now = START + timedelta(days=1, minutes=30)
    run(now)
    assert history(schedule) == [("01-01 01:00", "skipped"), ("01-02 00:00", "skipped")]
    schedule.refresh_from_db()
    assert schedule.next_run_at == START + timedelta(days=1, hours=1)
    run(schedule.next_run_at + LATE)
    assert history(schedule)[2:] == [("01-02 01:00", "started")]


def test_after_a_day_without_the_beat_the_newest_times_are_caught_up(dataset: Dataset, alice: User) -> None:
    """A33: at most EXPORT_SCHEDULE_CATCH_UP, one after the other."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC", misfire="catch_up")
    now = START + timedelta(days=1, minutes=30)
    for _ in range(30):
        run(now)
        assert Job.objects.active().count() <= 1
        end_jobs()
        now += runs.RECHECK
    assert history(schedule)[:11] == [("01-01 01:00", "skipped")] + [
        (f"{START + timedelta(hours=hour):%m-%d %H:%M}", "started") for hour in range(15, 25)
    ]
    assert len(history(schedule)) == 11


def test_a_planned_time_waits_for_the_previous_run_or_is_skipped(dataset: Dataset, alice: User) -> None:
    """A33: one run at a time."""
    skipping = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    waiting = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC", misfire="catch_up")
    first, second = START + timedelta(hours=1), START + timedelta(hours=2)
    run(first)
    run(second)
    assert run(second) == 0  # a waiting schedule is not checked again at once
    assert history(skipping) == [("01-01 01:00", "started"), ("01-01 02:00", "skipped")]
    assert history(waiting) == [("01-01 01:00", "started")]
    end_jobs()
    run(second + runs.RECHECK)
    assert history(waiting)[1:] == [("01-01 02:00", "started")]


# ---- Concurrency and crashes ----------------------------------------------------------------------------------------
def test_two_beats_make_one_run(dataset: Dataset, alice: User) -> None:
    """A33: also with more beats and more schedules."""
    for _ in range(5):
        make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    due = START + timedelta(hours=1)
    assert sum(in_threads(4, lambda _: run(due))) == 5
    assert Job.objects.count() == ScheduleRun.objects.count() == 5
    assert Job.objects.values("schedule_id").distinct().count() == 5


@pytest.mark.slow
@pytest.mark.parametrize("competes", [False, True])
def test_survives_a_kill_at_each_statement(dataset: Dataset, alice: User, *, competes: bool) -> None:
    """A33: a process is killed with SIGKILL before its n-th statement, alone or while another process runs."""
    own: Any = connection
    killed = 0
    for n in range(100):
        schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
        own.close()
        own.close_pool()  # child processes must not use its sockets
        children = [in_a_process(n), *([in_a_process(None)] if competes else [])]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children[1:]] == [0] * competes
        wait_until(partial(has_run, schedule))  # the server may still hold the locks of the killed process
        started = [("01-01 01:00", "started")]
        jobs = Job.objects.filter(schedule_id=schedule.pk).annotate(rows_of_chunks=Count("chunks"))
        assert (history(schedule), [job.rows_of_chunks for job in jobs]) == (started, [1])
        schedule.delete()
        if children[0].exitcode == 0 and not competes:
            break
        killed += children[0].exitcode == -signal.SIGKILL
        if n >= 20 and competes:
            break
    assert killed > (0 if competes else 10)


def has_run(schedule: Schedule) -> bool:
    run(START + timedelta(hours=1))
    schedule.refresh_from_db()
    return schedule.next_run_at == START + timedelta(hours=2)


def in_a_process(statements: int | None) -> Any:
    child = multiprocessing.get_context("fork").Process(target=run_until_killed, args=(statements,))
    child.start()
    return child


def run_until_killed(statements: int | None) -> None:
    left = statements

    def count(execute: Callable[..., Any], *args: Any) -> Any:
        nonlocal left
        if left is not None:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return execute(*args)

    with connection.execute_wrapper(count):
        run(START + timedelta(hours=1))
    own: Any = connection
    own.close()
    own.close_pool()
    os._exit(0)


def test_an_unexpected_error_does_not_block_other_schedules(dataset: Dataset, alice: User) -> None:
    """A33: it is logged and counted, and the schedule stays due."""
    broken = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    other = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    Schedule.objects.filter(pk=broken.pk).update(request=[])  # invalid, and never written by the product
    before = counted()
    with capture_logs() as lines:
        run(START + timedelta(hours=1))
    assert [line["schedule_id"] for line in lines if line["event"] == "schedule_failed"] == [str(broken.pk)]
    assert (counted() or 0) == (before or 0) + 1
    assert (history(broken), history(other)) == ([], [("01-01 01:00", "started")])
    assert Schedule.objects.due(START + timedelta(hours=1)).get() == broken


# ---- Runs that cannot start -----------------------------------------------------------------------------------------
def test_a_run_over_the_quota_is_refused_once(dataset: Dataset, alice: User) -> None:
    """A33: the refusal is the last outcome, and the run is not tried again before the next planned time."""
    Allowance.objects.create(user=alice, daily_chunks=0)
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    assert run(START + timedelta(hours=1)) == 1
    assert run(START + timedelta(hours=1, minutes=30)) == 0
    last = schedule.runs.get()
    assert (last.outcome, last.job_id) == ("refused", None)
    assert "0 of today's 0 are left" in last.detail
    schedule.refresh_from_db()
    assert (schedule.enabled, schedule.next_run_at) == (True, START + timedelta(hours=2))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "gone"}, "/request/dataset: Dataset not found."),
        ({"key_pattern": "[a-z]+"}, "/request/keys/0: Does not match the key pattern of the dataset."),
        ({"formats": ["json"]}, "/request/format: This dataset supports: json."),
    ],
)
def test_a_request_that_is_no_longer_valid_disables_the_schedule(
    change: dict[str, Any], reason: str, dataset: Dataset, alice: User
) -> None:
    """A33: the reason is stored, and there is no error at each planned time."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    Dataset.objects.filter(pk=dataset.pk).update(**change)
    assert run(START + timedelta(hours=1)) == 1
    assert run(START + timedelta(days=1)) == 0
    schedule.refresh_from_db()
    assert (schedule.enabled, schedule.next_run_at, schedule.disabled_reason) == (False, None, reason)
    assert history(schedule) == [("01-01 01:00", "invalid")]
    assert not Job.objects.exists()


def test_a_deactivated_owner_gets_no_runs(dataset: Dataset, alice: User) -> None:
    """A33."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    User.objects.update(is_active=False)
    run(START + timedelta(hours=1))
    schedule.refresh_from_db()
    assert (schedule.enabled, Job.objects.count()) == (False, 0)
    assert schedule.disabled_reason == "The account of the owner is deactivated."


def test_a_job_is_charged_and_bound_like_other_jobs_of_the_owner(dataset: Dataset, alice: User) -> None:
    """A33: the job also has the schedule and the planned time."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC", window_from=-2, window_to=0)
    Schedule.objects.update(network="192.0.2.0/24", agent="0123456789abcdef")
    run(START + timedelta(hours=1))
    job = Job.objects.get()
    assert (job.user_id, job.total, job.charged_on) == (alice.pk, 3, clock.now().date())
    assert (job.network, job.agent) == ("192.0.2.0/24", "0123456789abcdef")
    assert (job.schedule_id, job.planned_at) == (schedule.pk, START + timedelta(hours=1))


def test_a_run_begins_after_the_last_day_of_the_newest_success(
    dataset: Dataset, alice: User, settings: LazySettings
) -> None:
    """A33: the next run also exports the days of failed and missed runs, up to the limits of an export."""
    schedule = make_schedule(alice, dataset, cron="0 1 * * *", timezone="UTC", since_last_success=True)

    def days_of_run(number: int, status: str) -> list[str]:
        run(START + timedelta(days=number, hours=1))
        job = Job.objects.active().get()
        Job.objects.active().update(status=status, done=F("total"))
        return [f"{day:%m-%d}" for day in job.chunks.in_request_order().values_list("effective_date", flat=True)]

    assert days_of_run(0, "failed") == ["12-31"]  # without a success, only the window counts
    assert days_of_run(1, "success") == ["01-01"]
    assert days_of_run(2, "failed") == ["01-02"]
    assert days_of_run(5, "cancelled") == ["01-02", "01-03", "01-04", "01-05"]  # two times were missed
    change_settings(settings, export_max_chunks_per_job=3)
    assert days_of_run(6, "success") == ["01-02", "01-03", "01-04"]  # the oldest ones
    assert days_of_run(7, "success") == ["01-05", "01-06", "01-07"]
    assert days_of_run(8, "success") == ["01-08"]
    change_settings(settings, export_daily_chunks=2, export_daily_jobs=100)
    Usage.objects.all().delete()
    assert days_of_run(12, "success") == ["01-09", "01-10"]  # no more than a day's quota
    assert Schedule.objects.get(pk=schedule.pk).enabled


def days_of(first: str, last: str) -> dict[str, Any]:
    return {"keys": ["JFK"], "dateFrom": first, "dateTo": last}


def test_a_success_that_the_next_run_continues_is_not_purged(dataset: Dataset, alice: User) -> None:
    """A33: otherwise the days since then would be lost if runs fail for EXPORT_JOB_RETENTION_DAYS."""
    schedule = make_schedule(alice, dataset, cron="0 1 * * *", timezone="UTC", since_last_success=True)

    def end_and_purge(status: str) -> None:
        Job.objects.active().update(status=status, done=F("total"), finished_at=clock.now() - timedelta(days=365))
        webhook_events.fan_out()
        retention.purge_jobs()

    for number, status in enumerate(("success", "success", "failed")):
        run(START + timedelta(days=number, hours=1))
        end_and_purge(status)
    kept = Job.objects.get()
    assert (kept.filters, kept.status) == (days_of("2027-01-01", "2027-01-01"), "success")
    run(START + timedelta(days=4, hours=1))
    assert Job.objects.active().get().filters == days_of("2027-01-02", "2027-01-04")
    schedule.delete()
    end_and_purge("success")
    assert not Job.objects.exists()


# ---- Operation ------------------------------------------------------------------------------------------------------
def test_the_periodic_task_runs_due_schedules(dataset: Dataset, alice: User) -> None:
    """A33: the message is only a wake-up message, and a second one does nothing."""
    schedule = make_schedule(alice, dataset, cron="0 0 1 1 *")
    schedule.plan(clock.now() - timedelta(minutes=1))
    schedule.save()
    run_schedules()
    end_jobs()
    Tick.objects.all().delete()  # otherwise the second message would come too early
    run_schedules()
    assert [each.outcome for each in schedule.runs.all()] == ["started"]
    assert Job.objects.count() == 1


def test_due_and_late_schedules_are_counted(dataset: Dataset, alice: User) -> None:
    """A33."""
    for minutes in (5, 30):
        schedule = make_schedule(alice, dataset)
        schedule.plan(clock.now() - timedelta(minutes=minutes))
        schedule.save()
    row = sql.one(gauges.GAUGES, slots=8)
    assert row
    assert (row["due"], row["late"]) == (2, 1)


@pytest.mark.slow
def test_due_schedules_are_found_by_an_index(dataset: Dataset, alice: User) -> None:
    """A33: one of 3,000 schedules is due."""
    now = clock.now()
    rows = [
        Schedule(
            user=alice, name="many", cron="* * * * *", timezone="UTC", request={}, window_from=0, window_to=0,
            misfire="skip", next_run_at=now + timedelta(hours=n), check_at=now + timedelta(hours=n),
        )
        for n in range(3_000)
    ]  # fmt: skip
    Schedule.objects.bulk_create(rows)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE exports_schedule")
    with transaction.atomic():
        plan = Schedule.objects.due(now).select_for_update(skip_locked=True)[:1].explain()
    assert "exports_schedule_due" in plan
    assert "Sort" not in plan


def test_old_runs_are_deleted_but_not_the_newest(dataset: Dataset, alice: User) -> None:
    """A33."""
    schedule = make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC", misfire="catch_up")
    for hour in (1, 2, 3):
        run(START + timedelta(hours=hour))
        end_jobs()
    ScheduleRun.objects.update(at=clock.now() - timedelta(days=91))
    retention.delete_old_schedule_runs()
    assert history(schedule) == [("01-01 03:00", "started")]


@pytest.mark.slow
def test_each_due_schedule_has_a_separate_transaction(dataset: Dataset, alice: User, settings: LazySettings) -> None:
    """A33: no transaction locks more than one schedule, so that processes share the work of a busy minute."""
    for _ in range(20):
        make_schedule(alice, dataset, cron="0 * * * *", timezone="UTC")
    held: list[int] = []
    original = runs.handle_due

    def counting(*args: Any) -> None:
        original(*args)
        held.extend(in_threads(1, lambda _: waiting()))

    def waiting() -> int:
        return Schedule.objects.due(START + timedelta(hours=1)).count()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "handle_due", counting)
        run(START + timedelta(hours=1))
    assert held == list(range(20, 0, -1))  # each run was committed before the next one began
