"""C2: the start page of the admin shows the service's health to permitted staff, with a limited number of queries."""

import html
import re
import socket
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings, settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pydantic import SecretStr

from config.platform import workers
from config.platform.admin import overview
from config.platform.http import health
from etl.models import Task
from exports.admin import overview as exports_overview
from exports.models import Chunk, Dataset, Event, Job, Slot, Tick, Webhook
from tests.broker import broker_at
from tests.conftest import browser_of, change_settings
from tests.integration import outcomes
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import complete
from tests.integration.etl_progress import fail as fail_task
from tests.integration.factories import end_chunk, make_job
from tests.integration.staff import list_of, text_of
from tests.integration.test_admin_lists import MANY_JOBS, add_chunks, run
from tests.integration.test_leases import claim
from tests.waiting import avoid_end_of_hour, wait_until

START, WORKERS = "/admin/", "/admin/workers"
MAX_QUERIES = 16


def figures(pages: Client) -> dict[str, tuple[str, str, str]]:
    """Return the figures on the page: `{title: (value, note, url)}`."""
    shown = pages.get(START).context["figures"]
    return {figure.title: (figure.value, figure.note, figure.url) for figure in shown}


def chart(pages: Client, begin: str) -> overview.Chart:
    (found,) = (chart for chart in pages.get(START).context["charts"] if chart.title.startswith(begin))
    assert isinstance(found, overview.Chart)
    return found


def rows_behind(pages: Client, url: str) -> int:
    return int(pages.get(url).context["cl"].result_count)


@pytest.fixture
def current_hour() -> None:
    avoid_end_of_hour()


# ---- Figures --------------------------------------------------------------------------------------------------------
def test_an_empty_start_page_shows_the_first_steps(pages: Client, slots: int) -> None:
    page = text_of(pages.get(START))
    assert "No datasets yet" in page
    assert "Add dataset" in page
    assert reverse("admin:exports_dataset_add") in page
    assert "No data for the last 24 hours." in page
    Dataset.objects.create(name="things", function="a.b", base_path="things")
    assert "No datasets yet" not in text_of(pages.get(START))


def test_it_counts_pending_and_running_chunks_with_links(pages: Client, dataset: Dataset, alice: User) -> None:
    first, _second = make_job(dataset, alice, 3), make_job(dataset, alice, 2, key="EWR")
    Job.objects.filter(pk=first.pk).update(created_at=timezone.now() - timedelta(minutes=9))
    claim()

    shown = figures(pages)

    assert shown["Pending chunks"][:2] == ("4", "in 2 active exports")
    assert shown["Running chunks"][:2] == ("1", "all leases are valid")
    assert shown["Oldest pending chunk"][:2] == ("9 min", "check the workers and the free slots")
    assert shown["Source calls"][0] == f"1 of {Slot.objects.filter(dataset=None).count()}"
    for title, rows in (("Pending chunks", 4), ("Running chunks", 1), ("Oldest pending chunk", 2), ("Source calls", 1)):
        assert rows_behind(pages, shown[title][2]) == rows, title


@pytest.mark.slow
def test_workers_are_loaded_with_their_current_work(
    pages: Client, client: Client, dataset: Dataset, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: the current work comes from the slots, and only permitted staff see them. No worker runs in this test."""
    assert f'hx-get="{WORKERS}" hx-trigger="load"' in pages.get(START).content.decode()
    make_job(dataset, alice, 2)
    claim()
    monkeypatch.setattr(workers, "snapshot", workers.Snapshot())
    with CaptureQueriesContext(connection) as queries:
        page = text_of(pages.get(WORKERS))
    assert len(queries) <= 3
    assert "No worker consumes the queue exports: no chunk is exported." in page
    running = Chunk.objects.get(status="running")
    assert f"things, {running.key} {running.effective_date}" in page
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert "things" not in text_of(client.get(WORKERS))
    client.force_login(alice)
    assert client.get(WORKERS).status_code == 302


@pytest.mark.slow
def test_workers_are_unknown_without_a_broker(pages: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "snapshot", workers.Snapshot())
    with broker_at("redis://127.0.0.1:9/0"):
        page = text_of(pages.get(WORKERS))
    assert "The broker does not respond, so the status of the workers is unknown." in page
    assert "No worker consumes" not in page


def test_it_counts_the_messages_that_no_worker_has_taken(pages: Client, dataset: Dataset, alice: User) -> None:
    before = int(figures(pages)["Messages to workers"][0])
    make_job(dataset, alice, 3)
    value, note, _ = figures(pages)["Messages to workers"]
    assert int(value) > before
    assert "exports " in note


def test_it_shows_lost_workers(pages: Client, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    claim()
    Chunk.objects.update(lease_until=timezone.now() - timedelta(minutes=1))
    Slot.objects.held().update(lease_until=timezone.now() - timedelta(minutes=1))
    set_last_reap(timedelta(seconds=3))

    shown = figures(pages)

    assert shown["Running chunks"][1] == "1 with an expired lease: their workers are lost"
    assert shown["Source calls"][1].startswith("1 of lost workers")

    set_last_reap(timedelta(minutes=5))
    shown = figures(pages)
    assert shown["Running chunks"][1] == "1 with an expired lease, not recovered: see periodic tasks"
    assert shown["Source calls"][1] == "1 with an expired lease, not released: see periodic tasks"


def set_last_reap(ago: timedelta) -> None:
    Tick.objects.update_or_create(name="reap", defaults={"ran_at": timezone.now() - ago})


def tones(pages: Client) -> dict[str, str]:
    return {figure.title: figure.tone for figure in pages.get(START).context["figures"]}


@pytest.mark.slow
def test_it_warns_when_periodic_tasks_do_not_run(pages: Client) -> None:
    """No other figure shows that lost work is not recovered."""
    down = "Celery beat or the maintenance worker is down, so lost work is not recovered"
    assert figures(pages)["Periodic tasks"][:2] == ("never", f"expected every 15 s: {down}")

    def has_figure(seconds: int, age: str, note: str, tone: str) -> bool:
        set_last_reap(timedelta(seconds=seconds))
        shown = figures(pages)["Periodic tasks"][:2], tones(pages)["Periodic tasks"]
        return shown == ((age, note), tone)

    # The displayed age includes seconds: repeat the check if the machine stalls.
    wait_until(lambda: has_figure(58, "58 s ago", "last reap; expected every 15 s", ""))
    wait_until(lambda: has_figure(63, "1 min 3 s ago", f"expected every 15 s: {down}", "danger"))


def set_age(ago: timedelta) -> None:
    """Set the times of all jobs and events."""
    then = timezone.now() - ago
    Job.objects.update(created_at=then)
    Event.objects.update(at=then)


def test_it_warns_when_no_worker_claims_chunks(pages: Client, slots: int, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 3)

    def has_no_warning() -> bool:
        set_age(timedelta(seconds=25))
        return figures(pages)["Oldest pending chunk"][:2] == ("25 s", "since its export was created")

    wait_until(has_no_warning)  # the displayed age includes seconds
    set_age(timedelta(seconds=91))

    value, note, _url = figures(pages)["Oldest pending chunk"]
    assert re.fullmatch(r"1 min 3\d s", value)
    assert re.fullmatch(
        r"pending for 1 min 3\d s although slots are free: no worker claims chunks\. "
        r"Check the workers of the queue exports\.",
        note,
    )
    assert tones(pages)["Oldest pending chunk"] == "danger"


@pytest.mark.parametrize("sign", ["a lease", "an event", "slots taken", "the dataset's slots taken"])
def test_it_does_not_warn_of_chunks_that_cannot_be_claimed(
    pages: Client, slots: int, dataset: Dataset, alice: User, sign: str
) -> None:
    """The chunks of a long job are pending for hours. If there is progress or a reason for waiting, it does not
    warn."""
    job = make_job(dataset, alice, 3)
    set_age(timedelta(seconds=97))
    if sign == "a lease":
        claim()
    elif sign == "an event":
        Event.objects.create(job=job, seq=1_000, kind="chunk", status="done")
    elif sign == "slots taken":
        Slot.objects.update(token=1, lease_until=timezone.now())
    else:
        Dataset.objects.update(max_concurrency=1)
        Slot.objects.create(dataset=dataset, number=1, token=1, lease_until=timezone.now())

    assert tones(pages)["Oldest pending chunk"] == ""


def test_it_warns_of_retries_that_no_worker_claims(pages: Client, slots: int, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    set_age(timedelta(minutes=9))
    Chunk.objects.update(status="retrying", available_at=timezone.now() - timedelta(seconds=50))
    Job.objects.update(retrying=1, status="retrying")

    assert figures(pages)["Oldest pending chunk"][1].startswith("pending for 5")
    Chunk.objects.update(available_at=timezone.now() + timedelta(seconds=50))
    assert tones(pages)["Oldest pending chunk"] == ""


def test_it_warns_if_no_document_has_finished(pages: Client, alice: User) -> None:
    make_task(alice)
    Task.objects.update(updated_at=timezone.now() - timedelta(minutes=12))
    advice = f"check the workers of the queues {' and '.join(settings.ETL_QUEUES.values())}"
    oldest = r"limit [\d,]+, oldest for 12 min( \d+ s)?"
    none = f", none finished in the last 24 hours: {advice}"
    assert re.fullmatch(oldest + none, figures(pages)["Open tasks"][1])
    complete(make_task(alice))
    assert re.fullmatch(oldest, figures(pages)["Open tasks"][1])


def test_it_shows_which_servers_respond(pages: Client, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the results of the checks of /readyz."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 60)
    monkeypatch.setattr(health, "CONNECT_SECONDS", 30)
    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))
    page = text_of(pages.get(START))
    for part in ("Database", "Source database", "Broker", "Object storage"):
        assert f"{part}: available" in page

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = SecretStr(f"postgresql://reader:hunter2@127.0.0.1:{port}/x")
    change_settings(settings, source_database_url=url)
    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))
    page = text_of(pages.get(START))
    assert '<li class="danger">✗ Source database: does not respond</li>' in page
    assert "hunter2" not in page


def test_it_shows_failing_webhooks(pages: Client, alice: User) -> None:
    hooks = Webhook.objects
    hooks.create(user=alice, url="https://a.example", events=[], secret="x", failures=3, enabled=False)
    hooks.create(user=alice, url="https://b.example", events=[], secret="x", failing_since=timezone.now())
    hooks.create(user=alice, url="https://c.example", events=[], secret="x")
    assert figures(pages)["Pending webhook deliveries"][:2] == (
        "0", "2 webhooks failing (disabled after 10 failures in a row over 3 d), 1 disabled"
    )  # fmt: skip


def test_its_charts_are_hourly_and_link_to_the_counted_rows(
    current_hour: None, pages: Client, failed: Job, dataset: Dataset, alice: User
) -> None:
    old = make_job(dataset, alice, 1, key="LGA")
    Job.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=2))
    earlier = make_job(dataset, alice, 1, key="EWR")
    Job.objects.filter(pk=earlier.pk).update(created_at=timezone.now() - timedelta(hours=2))

    jobs = chart(pages, "Exports by status")

    found = {series.label: series for series in jobs.series}
    assert sum(value or 0 for series in jobs.series for value in series.values) == 2
    assert (found["failed"].values[-1], found["pending"].values[-3]) == (1, 1)
    assert rows_behind(pages, found["failed"].urls[-1]) == 1
    assert rows_behind(pages, found["pending"].urls[-3]) == 1
    assert [label for label, _ in jobs.rows] == [jobs.labels[-1], jobs.labels[-3]]


def test_it_sums_exported_rows_and_bytes(current_hour: None, pages: Client, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, 2)
    end_chunk()
    end_chunk()
    Job.objects.filter(pk=job.pk).update(status="success", finished_at=timezone.now())

    rows, sizes = chart(pages, "Rows exported"), chart(pages, "Bytes exported")

    assert (rows.series[0].values[-1], sizes.series[0].values[-1]) == (6, 120)
    assert rows_behind(pages, rows.series[0].urls[-1]) == 1


def test_sizes_have_the_format_of_the_linked_lists(
    current_hour: None, pages: Client, dataset: Dataset, alice: User
) -> None:
    job = make_job(dataset, alice, 1)
    end_chunk()
    Job.objects.filter(pk=job.pk).update(status="success", finished_at=timezone.now(), bytes=1_500_000_000)

    sizes = chart(pages, "Bytes exported")

    assert (sizes.series[0].texts[-1], sizes.series[0].values[-1], sizes.unit) == ("1.5 GB", 1.5, "GB")
    assert "1.5 GB" in text_of(pages.get(sizes.series[0].urls[-1]))


def test_it_counts_failures_by_their_error(pages: Client, failed: Job) -> None:
    Chunk.objects.filter(status="failed").update(finished_at=timezone.now())

    failures = chart(pages, "Failed chunks")

    assert (list(failures.labels), failures.series[0].values) == (["The source database raised an error"], [2])
    assert rows_behind(pages, failures.series[0].urls[0]) == 2


def test_it_summarizes_documents(current_hour: None, pages: Client, alice: User) -> None:
    completed, failed, _open = make_task(alice), make_task(alice), make_task(alice)
    complete(completed)
    fail_task(failed)

    assert figures(pages)["Open tasks"][0] == "1"
    by_status = {series.label: series.values[-1] for series in chart(pages, "Documents by status").series}
    assert by_status == {"open": 1, "completed": 1, "failed": 1, "cancelled": 0}
    times = {series.label: series.texts[-1] for series in chart(pages, "Processing times").series}
    assert times["OCR, median"] == times["OCR, 95th percentile"] == "5 ms"
    assert times["total, median"] != "-"
    failures = chart(pages, "Failed documents")
    assert list(failures.labels) == ["file encrypted"]
    assert rows_behind(pages, failures.series[0].urls[0]) == 1


def test_charts_and_tables_have_the_same_numbers(pages: Client, failed: Job) -> None:
    page = text_of(pages.get(START))
    assert re.search(r'<canvas class="chart"[^>]*data-type="bar"', page)
    assert 'role="img" aria-label="Chart: Exports by status' in page
    (link,) = re.findall(r'<td><a class="text-link" href="([^"]+status__exact=failed[^"]+)">1</a></td>', page)
    assert rows_behind(pages, html.unescape(link)) == 1


# ---- Permissions ----------------------------------------------------------------------------------------------------
def test_staff_see_only_permitted_figures(failed: Job) -> None:
    user = User.objects.create_user("vera", is_staff=True)
    client = browser_of(user)
    assert "You do not have access to any page yet." in text_of(client.get(START))
    user.user_permissions.add(Permission.objects.get(codename="view_slot"))
    assert list(figures(client)) == ["Source calls", "Messages to workers"]
    assert client.get(START).context["charts"] == []


# ---- Queries --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_100_000_chunks_cost_no_extra_queries(pages: Client, failed: Job, alice: User) -> None:
    few = queries(pages)
    add_chunks(failed, 100_000)
    run(MANY_JOBS, user=alice.pk, dataset=failed.dataset_id, first=1, last=20_000)
    run("ANALYZE exports_jobs")
    assert len(queries(pages)) == len(few) <= MAX_QUERIES
    assert chart(pages, "Exports by status").note == "Based on the newest 10,000 exports."
    assert rows_behind(pages, list_of("job")) == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["JOBS_BY_HOUR", "EXPORTED_BY_HOUR", "QUEUE", "FAILURES"])
def test_its_statements_use_indexes(pages: Client, failed: Job, alice: User, name: str) -> None:
    add_chunks(failed, 20_000)
    run(MANY_JOBS, user=alice.pk, dataset=failed.dataset_id, first=1, last=20_000)
    run("UPDATE exports_jobs SET created_at = created_at - interval '3 days', finished_at = now() - interval '3 days'")
    run("ANALYZE exports_jobs")
    with connection.cursor() as cursor:
        statement = getattr(exports_overview, name)
        values: dict[str, Any] = {
            "since": timezone.now() - timedelta(days=1),
            "limit": overview.MAX_ROWS,
            "slots": 8,
        }
        cursor.execute(f"EXPLAIN {statement}", values)
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert "Seq Scan on exports_chunk" not in plan
    assert "Seq Scan on exports_jobs" not in plan


def queries(pages: Client) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert pages.get(START).status_code == 200
    return [query["sql"] for query in captured]


def test_counts_stop_at_the_displayed_maximum() -> None:
    assert [overview.at_most(count) for count in (0, 10_000, 10_001)] == ["0", "10,000", "10,000+"]


def test_running_chunks_are_not_counted_as_pending(pages: Client, dataset: Dataset, alice: User) -> None:
    make_job(dataset, alice, 1)
    held = claim()
    assert figures(pages)["Oldest pending chunk"][:2] == ("none", "")
    outcomes.release([held])
    assert figures(pages)["Pending chunks"][0] == "1"
