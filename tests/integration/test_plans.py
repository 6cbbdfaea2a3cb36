"""Query plans of frequent statements on large tables, with a million chunks.

Postgres plans and runs each statement as the product sends it, in a transaction that is rolled back. A single test
checks all statements and reports all wrong plans, because the rows take half a minute to create.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from re import sub
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from config.platform.db import sql
from config.platform.http.idempotency import Idempotency
from config.platform.http.paging import DEFAULT_LIMIT
from config.platform.webhooks import sender
from exports.api import event_hub, event_stream
from exports.core import gauges
from exports.core.errors import PermanentSourceError
from exports.core.planning import Pair, Shape
from exports.core.states import Source
from exports.delivery import chunk_files, links
from exports.jobs import actions, submission, webhook_events
from exports.maintenance import lost_leases, lost_wakeups, retention, storage_cleanup
from exports.models import Chunk, Webhook
from exports.pages import recent_keys
from exports.worker import adoption, completion, leases, transitions
from exports.worker.execution import REUSE_BATCH
from exports.worker.leases import Claim
from tests.conftest import browser_of
from tests.integration import million
from tests.integration.factories import claim_one, result_of
from tests.integration.million import LARGE, Million
from tests.integration.plans import Plan, blocks_of, nodes, plan_lines, plans_of, rows_of
from tests.integration.staff import list_of

BIG = ("exports_chunk", "exports_delivery", "exports_event", "exports_file", "exports_jobs")
LEASED = 8  # leased chunks
ACTIVE_JOBS = 5
DATASETS = len(million.DATASETS)
PAGE = DEFAULT_LIMIT + 10  # a list reads one row more than it shows, and an index scan a few more
JOBS = million.SMALL_ONES + len(million.EXPORTS)
DAY_OF_JOBS = 24 * 60 + 24  # one small export each minute, and some large ones
DAY_ONE = date(2024, 1, 1)

# The first column of both indexes is the job.
OF_JOB = "exports_chunk_of_status|exports_chunk_seq"
# Postgres may use either index: there are so few running chunks and active jobs that reading all of them costs no more
# than looking up one.
OF_LEASE = "exports_chunk_leased|exports_chunk_pkey"
ACTIVE = "exports_jobs_active|exports_jobs_pkey"
REUSABLE = "exports_chunk_reusable|exports_chunk_reusable_of_job"
MINE = "exports_jobs_active|exports_jobs_of_status"  # active jobs of the user, for the next turn
QUEUE = "exports_jobs_active"  # for the position of a waiting job
RUNNING = "exports_chunk_of_status|exports_chunk_leased"  # for the number of running chunks
USAGE = "exports_usage_day|exports_usage_newest"  # the table is small


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operation of the product, and the limits of its statements. `work` is called with the value of `before`.

    The statements must use each index of `by`; `a|b` means at least one of these. On big tables, they must use no other
    index except primary keys, and no scan may read more than `most` rows, including discarded rows. `walks`: a table
    that may be scanned in another way, because the number of jobs or a LIMIT bounds the rows.
    """

    work: Callable[[Any], object]
    before: Callable[[], Any] = lambda: None
    by: Collection[str] = ()
    most: int = 1
    walks: str = ""


# ---- Workers --------------------------------------------------------------------------------------------------------


def of_workers(rows: Million) -> dict[str, Case]:
    ours = rows.held[-1]
    return {
        "claim": Case(work=claim, by=("exports_chunk_ready", "exports_chunk_waiting"), most=DATASETS),
        "claim a batch": Case(
            work=lambda _: leases.claim_batch(backend="test", sizes=dict.fromkeys(million.DATASETS, leases.MAX_BATCH)),
            by=("exports_chunk_ready", "exports_chunk_waiting", "exports_chunk_of_status"),
            most=leases.MAX_COUNTED,
        ),
        # Every second chunk of the job has to be exported.
        "claim reusable chunks": Case(
            work=lambda _: leases.claim_reusable(batch=REUSE_BATCH),
            by=("exports_chunk_reusable", "exports_chunk_reusable_of_job", ACTIVE),
            most=2 * REUSE_BATCH + LEASED,
        ),
        "renew": Case(work=lambda _: leases.renew(ours), by=(OF_LEASE,), most=LEASED),
        "finish": Case(work=lambda _: transitions.finish([(ours, result_of(ours))]), by=(OF_LEASE,), most=LEASED),
        "finish reused chunks": Case(
            before=lambda: leases.claim_reusable(batch=REUSE_BATCH),
            work=finish_reused,
            by=(OF_LEASE,),
            most=4 * REUSE_BATCH,  # index entries of chunks that other cases claimed and returned
            walks="exports_jobs",
        ),
        "retry later": Case(work=lambda _: fail(ours, delay=60), by=(OF_LEASE,), most=LEASED),
        "fail": Case(work=lambda _: fail(ours, delay=None), by=(OF_LEASE,), most=LEASED),
        "release": Case(work=lambda _: transitions.release([ours]), by=(OF_LEASE,), most=LEASED),
    }


def claim(_: object = None) -> Claim | None:
    return claim_one(backend="test")


def fail(ours: Claim, *, delay: float | None) -> object:
    return transitions.fail(ours, PermanentSourceError("SQLSTATE 42883"), delay=delay)


def finish_reused(claims: list[Claim]) -> object:
    return transitions.finish([(each, result_of(each, source=Source.REUSED)) for each in claims])


# ---- The reaper, completion -----------------------------------------------------------------------------------------


def of_the_reaper(rows: Million) -> dict[str, Case]:
    ours = rows.held[-1]
    return {
        "reclaim": Case(work=lambda _: lost_leases.reclaim_batch(batch=500), by=("exports_chunk_leased",), most=LEASED),
        # It reads all running chunks for each slot with an expired lease.
        "free slots": Case(work=lambda _: lost_leases.expired_slots(), by=("exports_chunk_leased",), most=1_000),
        "withdraw": Case(
            work=lambda _: lost_leases.withdraw(ours.chunk_id, token=ours.token), by=(OF_LEASE,), most=LEASED
        ),
        "find lost wake-up messages": Case(
            work=lambda _: lost_wakeups.waiting_work(),
            by=("exports_chunk_ready", "exports_chunk_waiting", REUSABLE),
            most=1_000,
        ),
        "completions": Case(work=lambda _: completion.unclaimed_jobs(), by=("exports_jobs_active",), most=ACTIVE_JOBS),
        "fail exhausted completions": Case(
            work=lambda _: sql.rows(completion.FAIL_EXHAUSTED, attempts=settings.SLUICE.export_max_attempts),
            by=("exports_jobs_active",),
            most=ACTIVE_JOBS,
        ),
        "delete expired deliveries": Case(work=lambda _: storage_cleanup.delete_expired(), by=("exports_receipt_due",)),
        "gauges": Case(
            work=lambda _: sql.one(gauges.GAUGES, slots=settings.SLUICE.export_db_slots),
            by=(
                "exports_chunk_leased", REUSABLE, "exports_delivery_due", "exports_event_untold",
                "exports_jobs_active",
            ),
            most=5_000,
        ),
    }  # fmt: skip


def of_completion(rows: Million) -> dict[str, Case]:
    """Return the cases of a job whose chunks are all done."""
    whole = rows.job("whole")
    chunks = list(whole.chunks.order_by("seq").values_list("pk", flat=True)[:50])

    def token() -> int | None:
        return completion.claim(whole.pk)

    def outcome(statement: str, **values: Any) -> Callable[[Any], object]:
        return lambda token: sql.rows(statement, job=whole.pk, token=token, **values)

    return {
        "claim a completion": Case(work=lambda _: token(), by=(ACTIVE,), most=ACTIVE_JOBS),
        "renew a completion": Case(
            before=token, work=lambda token: completion.renew(whole.pk, token), by=(ACTIVE,), most=ACTIVE_JOBS
        ),
        "succeed": Case(before=token, work=outcome(completion.SUCCEED), by=(ACTIVE,), most=ACTIVE_JOBS),
        "fail a completion": Case(
            before=token,
            work=outcome(completion.FAIL, attempts=4, detail="x", delay=1, longest=60, refused=True, patience=1),
            by=(ACTIVE,),
            most=ACTIVE_JOBS,
        ),
        "read all files": Case(
            work=lambda _: list(whole.chunks.in_request_order().iterator(chunk_size=1000)), by=(OF_JOB,), most=LARGE
        ),
        "adopt a newer file": Case(
            before=token, work=outcome(adoption.ADOPT, chunk=chunks[0]), by=("exports_chunk_pkey", ACTIVE), most=10
        ),
        "export files again": Case(
            before=token,
            work=outcome(completion.REDO, chunks=chunks, patience=3600, attempts=4),
            by=(ACTIVE,),
            most=len(chunks),
        ),
    }


# ---- Periodic tasks -------------------------------------------------------------------------------------------------


def of_retention(rows: Million) -> dict[str, Case]:
    paths = list(rows.job("large-0").chunks.order_by("seq").values_list("path", flat=True)[: storage_cleanup.BATCH])
    return {
        "purge": Case(
            work=lambda _: retention.purge_batch(),
            by=(
                "exports_jobs_finished",
                "exports_event_untold",
                "exports_jobs_of_schedule",
                OF_JOB,
                "exports_delivery_job_id",
            ),
            most=2 * LARGE,
        ),
        # It finds jobs by their final events, oldest first.
        "delete events": Case(
            work=lambda _: retention.delete_batch_of_events(),
            by=("exports_event_ends",),
            most=1_000,
        ),
        "delete unreferenced files": Case(
            work=lambda _: storage_cleanup.delete_unreferenced(),
            by=(
                "exports_jobs_not_success",
                "exports_jobs_finished",
                "exports_chunk_of_status",
                "exports_jobs_dataset_id",
                "exports_chunk_seq",  # for built-in datasets
            ),
            most=DAY_OF_JOBS,
        ),
        "find references": Case(
            work=lambda _: storage_cleanup.unreferenced(dict.fromkeys(paths, "x")),
            by=("exports_chunk_leased",),
            most=storage_cleanup.BATCH,
        ),
    }


# ---- Webhooks, streams ----------------------------------------------------------------------------------------------


def of_webhooks() -> dict[str, Case]:
    """Return the cases of webhooks. Most deliveries have ended, thousands are waiting, and a few hundred are due."""
    lost = {"attempts": sender.ATTEMPTS, "lease": sender.LEASE_SECONDS}
    return {
        "record ends for webhooks": Case(
            work=lambda _: webhook_events.fan_out_batch(),
            by=("exports_event_untold", "exports_jobs_active", RUNNING),
            most=2 * len(million.NOT_SENT),
        ),
        "claim a delivery": Case(
            work=lambda _: sender.claim(),
            by=(
                "exports_delivery_due",
                "exports_delivery_webhook_id",
                "exports_delivery_once",
                "exports_delivery_of_subject",
            ),
            most=600,
        ),
        "fail exhausted deliveries": Case(
            work=lambda _: sql.rows(sender.FAIL_EXHAUSTED, **lost), by=("exports_delivery_due",), most=200
        ),
        "wake senders of deliveries": Case(
            work=lambda _: webhook_events.wake_for_due(), by=("exports_delivery_due", "exports_event_untold"), most=200
        ),
    }


def of_streams(rows: Million) -> dict[str, Case]:
    jobs = [rows.job(name) for name in ("runs", "looks", "whole")]
    watched = {job.pk: 2 + 3 * (job.done - 300) for job in jobs}
    return {
        "read new events": Case(work=lambda _: event_hub.read(watched), by=(RUNNING,), most=3 * event_hub.PAGE),
        "resume a stream": Case(work=lambda _: event_stream.resume_position(jobs[0], "5")),
    }


# ---- User requests --------------------------------------------------------------------------------------------------


def of_users(rows: Million, alice: User) -> dict[str, Case]:
    large, runs, failed = rows.job("large-0"), rows.job("runs"), rows.job("failed-0")
    request = submission.ExportRequest(
        dataset=large.dataset,
        pairs=[Pair(f"large-0-{n % 100}", DAY_ONE + timedelta(days=n // 100)) for n in range(1_000)],
        duplicates=0,
        shape=Shape(),
        delivery="zip",
        reuse="if-present",
        allow_degraded=True,
    )
    caller = submission.Caller(user_id=alice.pk, idempotency=Idempotency(key="key", fingerprint="x"))

    def presign(_: object) -> None:
        with suppress(links.ReceiptExpired):
            chunk_files.presign(large, key="large-0-7", effective_date=DAY_ONE)

    return {
        # Half of the files exist. Quotas have separate rows, so no chunks are read for them.
        "submit": Case(
            work=lambda _: submission.submit(lambda: request, caller),
            by=("exports_chunk_ready", "exports_jobs_idempotency", MINE, "exports_chunk_of_status"),
            most=len(request.pairs),
        ),
        "retry failed chunks": Case(
            work=lambda _: sql.rows(actions.RETRY, job=failed.pk, only=None, rank=0),
            by=("exports_chunk_of_status",),
            most=50,
        ),
        "cancel": Case(work=lambda _: actions.try_to_cancel(runs), by=("exports_chunk_of_status", ACTIVE), most=6_100),
        # No index contains the key of a chunk, so it reads all chunks of the job, but no others.
        "get one file": Case(work=presign, by=(OF_JOB,), most=LARGE),
    }


# ---- Lists ----------------------------------------------------------------------------------------------------------


def of_the_api(rows: Million, api: APIClient, alice: User) -> dict[str, Case]:
    hook = Webhook.objects.filter(user=alice).first()
    assert hook
    mine = ("exports_jobs_of_user", QUEUE, RUNNING)
    chunks, failed = f"/exports/{rows.job('large-0').pk}/chunks", f"/exports/{rows.job('failed-0').pk}/chunks"
    return {
        "GET /exports": see(api, "/exports", by=mine),
        "GET /exports, 2nd page": see_next(api, "/exports", by=mine),
        "GET /exports?status": see(api, "/exports?status=failed", by=("exports_jobs_of_status", QUEUE, RUNNING)),
        "GET /exports?q": see(api, "/exports?q=nothing", by=("exports_jobs_name", QUEUE, RUNNING)),
        "GET /exports?q=ID": see(
            api, f"/exports?q={str(rows.job('waits').pk)[:8]}", by=("exports_jobs_name", QUEUE, RUNNING)
        ),
        "GET /exports?from&to": see(
            api,
            "/exports?from=2020-01-01&to=2020-01-02",
            by=("exports_jobs_of_user|exports_jobs_newest", QUEUE, RUNNING),
        ),
        "GET /exports/…": see(api, f"/exports/{rows.job('waits').pk}", by=(QUEUE, RUNNING), most=ACTIVE_JOBS),
        "GET chunks": see(api, chunks, by=("exports_chunk_seq", QUEUE, RUNNING)),
        "GET chunks, 2nd page": see_next(api, chunks, by=("exports_chunk_seq", QUEUE, RUNNING)),
        "GET chunks?status=done": see(api, f"{chunks}?status=done", by=(OF_JOB, QUEUE)),
        "GET chunks?status=failed": see(api, f"{failed}?status=failed", by=("exports_chunk_of_status", QUEUE)),
        "GET deliveries": see(api, f"/exports/webhooks/{hook.pk}/deliveries", by=("exports_delivery_newest",)),
        "GET /exports/limits": see(api, "/exports/limits", by=(USAGE,)),
    }


def of_pages(rows: Million, me: Client) -> dict[str, Case]:
    failed = reverse("export", args=[rows.job("failed-0").pk])
    return {
        "my exports": see(
            me, reverse("exports"),
            by=("exports_jobs_of_user", "exports_jobs_active", "exports_chunk_seq", RUNNING, USAGE),
        ),
        "my new export": see(
            me, f"{reverse('new-export')}?dataset=flights",
            by=("exports_jobs_of_dataset", "exports_chunk_seq", USAGE),
            most=recent_keys.JOBS * recent_keys.CHUNKS,
        ),
        # The page sums up the retries of the job's chunks.
        "my export": see(
            me, failed,
            by=(QUEUE, "exports_chunk_seq", "exports_chunk_of_status", RUNNING, USAGE),
            most=LARGE,
        ),
    }  # fmt: skip


def of_the_staff(rows: Million, pages: Client, alice: User) -> dict[str, Case]:
    """Return the cases of admin lists, which count up to 10,000 rows."""
    job, failed = rows.job("large-0").pk, rows.job("failed-0").pk
    hook = Webhook.objects.filter(user=alice).first()
    assert hook
    of_hook = "exports_delivery_newest|exports_delivery_once|exports_delivery_webhook_id"
    return {
        "staff: start": see(
            pages, "/admin/",
            by=(
                "exports_chunk_leased", "exports_chunk_of_status", "exports_chunk_ready", REUSABLE,
                "exports_chunk_waiting", "exports_delivery_due", "exports_jobs_active", "exports_jobs_finished",
                "exports_jobs_newest|exports_jobs_of_status",
            ),
            most=5_000,
        ),
        "staff: jobs": see(pages, list_of("job"), by=("exports_jobs_newest",), walks="exports_jobs"),
        "staff: chunks": see(pages, list_of("chunk"), by=("exports_chunk_pkey",), walks="exports_chunk"),
        "staff: chunks of a job": see(
            pages, list_of("chunk", job=job), by=("exports_chunk_seq", OF_JOB), most=LARGE + 1
        ),
        "staff: failed chunks of a job": see(
            pages, list_of("chunk", job=failed, status__exact="failed"), by=("exports_chunk_of_status",)
        ),
        "staff: running chunks": see(
            pages, list_of("chunk", status__exact="running"), by=("exports_chunk_leased",)
        ),
        "staff: retrying chunks": see(
            pages, list_of("chunk", status__exact="retrying"), by=("exports_chunk_waiting",)
        ),
        "staff: deliveries of a webhook": see(
            pages, list_of("delivery", webhook__id__exact=hook.pk), by=("exports_delivery_newest", of_hook), most=300
        ),
    }  # fmt: skip


def see(browser: Client | APIClient, url: str, *, most: int = PAGE, **expected: Any) -> Case:
    return Case(work=lambda _: get(browser, url), most=most, **expected)


def see_next(browser: APIClient, url: str, **expected: Any) -> Case:
    """Return the case of the second page of a list."""
    return Case(
        before=lambda: get(browser, url).json()["next"], work=lambda url: get(browser, url), most=PAGE, **expected
    )


def get(browser: Client | APIClient, url: str) -> Any:
    response = browser.get(url)
    assert response.status_code == 200, (url, response)
    return response


# ---- Scans ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """A node of a plan that reads a big table by an index or sequentially. `rows`: including discarded rows."""

    kind: str
    table: str
    index: str
    rows: int


def scans_of(plan: Plan) -> Iterator[Scan]:
    for node in nodes(plan):
        kind, index = node["Node Type"], name_of(node.get("Index Name", ""))
        if kind.endswith("Scan"):
            yield Scan(kind, table_of(node), index, rows_of(node))


def table_of(node: Plan) -> str:
    """Return the table of a scan, or "" for small tables.

    A bitmap index scan does not name its table, but the names of all our indexes begin with the name of the table.
    """
    name = node.get("Relation Name") or node.get("Index Name", "")
    return next((table for table in BIG if name == table or name.startswith(f"{table}_")), "")


def name_of(index: str) -> str:
    """Return the name of an index without the digest that Django appends to generated names."""
    return sub(r"_[0-9a-f]{8}(_like)?$", r"\1", index)


# ---- Checks ---------------------------------------------------------------------------------------------------------


def faults_of(case: Case, plans: list[tuple[str, Plan]]) -> Iterator[str]:
    scans = [scan for _, plan in plans for scan in scans_of(plan)]
    used = {scan.index for scan in scans}
    for names in case.by:
        if used.isdisjoint(names.split("|")):
            yield f"does not use {names}"
    for scan in scans:
        if scan.table:
            yield from faults_in(scan, case)


def faults_in(scan: Scan, case: Case) -> Iterator[str]:
    is_free = scan.table == case.walks
    # Depending on its statistics, Postgres counts the running chunks of each displayed job by either index.
    expected = {*"|".join((*case.by, RUNNING)).split("|"), f"{scan.table}_pkey", "exports_file_path_like"}
    if scan.kind == "Seq Scan" and not is_free:
        yield f"walks over {scan.table}"
    if scan.index and scan.index not in expected and not is_free:
        yield f"uses {scan.index}"
    most = max(case.most, JOBS) if is_free else case.most
    if scan.index == "exports_chunk_leased":
        most *= LEASED  # a scan may read all running chunks for each job; the slots limit their number
    if scan.rows > most:
        yield f"reads {scan.rows:,} rows of {scan.table} by {scan.index or scan.kind}, more than {most:,}"


def fault_of(name: str, case: Case) -> str:
    """Return the faults of a case with its plans, or ""."""
    plans = plans_of(case.work, case.before)
    faults = list(dict.fromkeys(faults_of(case, plans)))
    if not faults:
        return ""
    shown = [
        "\n".join([" ".join(statement.split())[:200], *plan_lines(plan)])
        for statement, plan in plans
        if any(scan.table for scan in scans_of(plan))
    ]
    return "\n".join([f"{name}: {'; '.join(faults)}", *shown])


# ---- Dequeued rows --------------------------------------------------------------------------------------------------
DEQUEUED = 3_000
# The index entries of these rows are adjacent, so they fill a twentieth as many blocks as the rows.
BLOCKS = 50


def blocks_of_a_claim() -> int:
    """Return the number of blocks that a claim reads to find its chunk."""
    *_, (_, plan) = plans_of(claim)
    return sum(
        blocks_of(node) for node in nodes(plan) if node.get("Relation Name") == "exports_chunk" and is_scan(node)
    )


def is_scan(node: Plan) -> bool:
    return bool(node["Node Type"].endswith("Scan"))


def dequeue(rows: Million) -> None:
    """End the first chunks of the queue. No vacuum removes their index entries."""
    ready = Chunk.objects.filter(dataset=rows.job("waits").dataset, status="pending", reusable=False)
    first = list(ready.order_by("rank", "pk").values_list("pk", flat=True)[:DEQUEUED])
    assert Chunk.objects.filter(pk__in=first).update(status="cancelled") == DEQUEUED


# ---- All statements -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_statement_scans_a_million_rows(api: APIClient, pages: Client, alice: User) -> None:
    """Check all statements, and that a claim does not scan all chunks that have left the queue.

    The first claim after they left the queue marks their index entries as dead.
    """
    rows = million.make(alice)
    me = browser_of(alice)
    cases = {
        **of_workers(rows),
        **of_the_reaper(rows),
        **of_completion(rows),
        **of_webhooks(),
        **of_streams(rows),
        **of_the_api(rows, api, alice),
        **of_pages(rows, me),
        **of_the_staff(rows, pages, alice),
        **of_users(rows, alice),
        **of_retention(rows),
    }
    before = blocks_of_a_claim()
    wrong = [found for name, case in cases.items() if (found := fault_of(name, case))]
    dequeue(rows)
    blocks_of_a_claim()

    assert not wrong, "\n\n".join(["", *wrong])
    assert blocks_of_a_claim() <= before + BLOCKS
