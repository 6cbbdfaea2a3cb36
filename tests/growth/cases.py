"""The measured operations: pages, API requests, claims, and periodic tasks."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from config.platform.db import sql
from config.platform.http.idempotency import Idempotency
from config.platform.http.staff import record_access
from config.platform.observability import gauges
from config.platform.webhooks import outbox, sender
from etl.core.states import Stage
from etl.maintenance import cleanup, recovery
from etl.models import Task
from etl.pipeline import queue_limit, quotas, turns
from exports.api import event_hub
from exports.core.errors import PermanentSourceError
from exports.core.planning import Pair, Shape
from exports.delivery import chunk_files, links
from exports.jobs import actions, submission, webhook_events
from exports.jobs import turns as turns_of_chunks
from exports.maintenance import lost_leases, lost_wakeups, retention, storage_cleanup
from exports.models import Chunk, Job
from exports.worker import completion, leases, transitions
from tests.growth.rows import Rows
from tests.integration.factories import claim_one, result_of
from tests.integration.staff import list_of

PAGE_MS, CLAIM_MS, BATCH_MS = 200, 20, 300
DAY_ONE = date(2024, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operation. `work` is called with the return value of `prepare`, and must take at most `max_ms`."""

    work: Callable[[Any], object]
    max_ms: float
    prepare: Callable[[], Any] = lambda: None


def all_cases(rows: Rows, api: APIClient, user_browser: Client, staff_browser: Client) -> Iterator[tuple[str, Case]]:
    """Yield all cases with their names, in the same order for each size."""
    yield from (worker_cases() | maintenance_cases() | document_cases(rows) | request_cases(rows)).items()
    yield from ((f"API {url}", page(api, url)) for url in api_urls(rows))
    yield from ((f"page {url}", page(user_browser, url)) for url in page_urls(rows))
    yield from ((f"staff {url}", page(staff_browser, url)) for url in admin_urls(rows, staff_browser))


def page(browser: Client | APIClient, url: str) -> Case:
    def get(_: object) -> None:
        response = browser.get(url)
        assert response.status_code == 200, (url, response)

    return Case(work=get, max_ms=PAGE_MS)


def claim(work: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> Case:
    return Case(work=work, prepare=prepare, max_ms=CLAIM_MS)


def batch(work: Callable[[], object]) -> Case:
    return Case(work=lambda _: work(), max_ms=BATCH_MS)


# ---- Exports --------------------------------------------------------------------------------------------------------
def claim_chunk() -> leases.Claim:
    found = claim_one(backend="test")
    assert found
    return found


def worker_cases() -> dict[str, Case]:
    def fail(ours: leases.Claim) -> object:
        return transitions.fail(ours, PermanentSourceError("SQLSTATE 42883"), delay=None)

    return {
        "claim": claim(lambda _: claim_chunk()),
        "renew": claim(leases.renew, claim_chunk),
        "finish": claim(lambda ours: transitions.finish([(ours, result_of(ours))]), claim_chunk),
        "fail": claim(fail, claim_chunk),
        "release": claim(lambda ours: transitions.release([ours]), claim_chunk),
        "take a delivery": claim(lambda _: sender.claim()),
        "gauges": claim(lambda _: [sql.one(each.statement, **dict(each.parameters())) for each in gauges.queries]),
        "read events": claim(lambda _: event_hub.read({job.pk: job.event_seq - 20 for job in Job.objects.active()})),
    }


def maintenance_cases() -> dict[str, Case]:
    """Return the cases of periodic tasks. For steps that loop over batches, one batch is measured."""
    lost = {"attempts": sender.ATTEMPTS, "lease": sender.LEASE_SECONDS}
    return {
        "reap: reclaim": batch(lambda: lost_leases.reclaim_batch(batch=500)),
        "reap: free slots": batch(lost_leases.expired_slots),
        "reap: wake workers": batch(lost_wakeups.waiting_work),
        "reap: fail completions": batch(lambda: sql.rows(completion.FAIL_EXHAUSTED, attempts=4)),
        "reap: wake completions": batch(completion.unclaimed_jobs),
        "reap: fail deliveries": batch(lambda: sql.rows(sender.FAIL_EXHAUSTED, **lost)),
        "reap: wake senders": batch(webhook_events.wake_for_due),
        "reap: expired receipts": batch(storage_cleanup.delete_expired),
        "reap: lost uploads": batch(storage_cleanup.abort_lost_uploads),
        "record ends for webhooks": batch(webhook_events.fan_out_batch),
        "sweep: overdue receipts": batch(storage_cleanup.delete_overdue),
        "sweep: orphans": batch(lambda: storage_cleanup.undelivered(delivered())),
        "sweep: unreferenced files": batch(storage_cleanup.delete_unreferenced),
        "sweep: references": batch(lambda: storage_cleanup.unreferenced(dict.fromkeys(paths(), "x"))),
        "sweep: old events": batch(retention.delete_batch_of_events),
        "purge: exports": batch(retention.purge_batch),
        "purge: deliveries": batch(outbox.prune_batch),
        "purge: usage": batch(retention.delete_old_usage),
    }


def delivered() -> list[str]:
    return [f"_receipts/{job}/1/x.zip" for job in Job.objects.order_by("pk").values_list("pk", flat=True)[:500]]


def paths() -> list[str]:
    return list(Chunk.objects.filter(status="done").order_by("pk").values_list("path", flat=True)[:500])


# ---- Documents ------------------------------------------------------------------------------------------------------
def document_cases(rows: Rows) -> dict[str, Case]:
    newest = Task.objects.order_by("-pk")[:500]
    keys = list(newest.values_list("document_key", flat=True))
    return {
        "documents: turns": claim(lambda _: list(turns.waiting(Stage.OCR))),
        "documents: next turn": claim(lambda _: turns.next_rank(rows.alice.pk)),
        "documents: place": claim(lambda _: turns.count_before(newest[0].pk)),
        "documents: queue": claim(lambda _: queue_limit.require_room(rows.alice.pk, 1)),
        "documents: quota": claim(lambda _: quotas.state(rows.alice.pk)),
        "documents: recover": batch(lambda: list(recovery.batches())),
        "documents: orphans": batch(lambda: cleanup.unreferenced(keys)),
        "documents: upload URLs": batch(cleanup.forget_uploads),
        "documents: usage": batch(cleanup.delete_old_usage),
    }


# ---- Requests -------------------------------------------------------------------------------------------------------
def request_cases(rows: Rows) -> dict[str, Case]:
    detail, failed, running = (rows.job(name) for name in ("job-47", "job-61", "job-7"))
    pairs = [Pair(f"K{n % 500}", DAY_ONE + timedelta(days=n)) for n in range(1_000)]
    request = submission.ExportRequest(
        dataset=detail.dataset, pairs=pairs, duplicates=0, shape=Shape(), delivery="zip", reuse="if-present",
        allow_degraded=True,
    )  # fmt: skip
    caller = submission.Caller(user_id=rows.alice.pk, idempotency=Idempotency(key="new", fingerprint="x"))
    theirs = Task(pk=1, user_id=rows.alice.pk)

    def get_file() -> None:
        with suppress(links.ReceiptExpired):
            chunk_files.presign(detail, key="K7", effective_date=DAY_ONE + timedelta(days=7))

    return {
        "submit 1,000 chunks": batch(lambda: submission.submit(lambda: request, caller)),
        "preview 1,000 chunks": batch(lambda: submission.preview(request)),
        "retry": batch(lambda: sql.rows(actions.RETRY, job=failed.pk, only=None, rank=0)),
        "cancel": batch(lambda: actions.try_to_cancel(running)),
        "next turn": claim(lambda _: turns_of_chunks.next_rank(user_id=rows.alice.pk, dataset_id=detail.dataset_id)),
        "get one file": batch(get_file),
        "open another user's document": claim(lambda _: record_access(rows.staff, theirs, "Read.")),
    }


# ---- Pages ----------------------------------------------------------------------------------------------------------
def api_urls(rows: Rows) -> Iterator[str]:
    yield "/exports"
    yield from (f"/exports?status={status}" for status in ("pending", "running", "retrying", "failed", "cancelled"))
    yield from (f"/exports?dataset={name}" for name in ("common", "rare", "unused", "unknown"))
    yield from (f"/exports?dataset={name}&status=failed" for name in ("common", "rare", "unused"))
    yield "/exports/limits"
    yield "/exports/datasets"
    for name in ("job-1", "job-47", "job-61"):
        yield f"/exports/{rows.job(name).pk}"
        yield f"/exports/{rows.job(name).pk}/chunks"
        yield f"/exports/{rows.job(name).pk}/chunks?status=failed"
    yield "/exports/webhooks"
    yield from (f"/exports/webhooks/{hook.pk}/deliveries" for hook in (rows.hook, rows.quiet))
    yield "/api/v1/etl/tasks"
    states = ("pending", "mineru_parsing", "completed", "failed", "cancelled")
    yield from (f"/api/v1/etl/tasks?status={status}" for status in states)
    yield f"/api/v1/etl/tasks/{newest_task(rows.alice)}"
    yield "/api/v1/etl/limits"
    yield "/api/v1/etl/usage"
    yield "/api/v1/etl/rules"


def newest_task(user: User) -> int:
    return Task.objects.filter(user=user, status="failed").order_by("-pk").values_list("pk", flat=True)[0]


def page_urls(rows: Rows) -> Iterator[str]:
    exports, documents = reverse("exports"), reverse("documents")
    yield exports
    yield from (f"{exports}?status={status}" for status in ("active", "success", "failed", "cancelled"))
    yield from (f"{exports}?dataset={name}" for name in ("common", "rare", "unused"))
    yield reverse("new-export")
    for name in ("job-1", "job-47", "job-61"):
        yield reverse("export", args=[rows.job(name).pk])
    yield documents
    yield from (f"{documents}?status={status}" for status in ("pending", "completed", "failed", "cancelled"))
    yield reverse("document", args=[newest_task(rows.alice)])
    yield reverse("rules")
    yield reverse("webhooks")
    for hook in (rows.hook, rows.quiet):
        yield from (
            f"{reverse('webhook', args=[hook.pk])}{query}" for query in ("", "?status=pending", "?status=failed")
        )
    yield reverse("account")


def admin_urls(rows: Rows, pages: Client) -> Iterator[str]:
    """Yield the URLs of admin lists (each list, each choice of each filter, and a search without results), and the URLs
    that other pages link to."""
    yield reverse("admin:index")
    for model, options in admin.site._registry.items():
        url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        yield url
        listed = pages.get(url).context["cl"]
        for spec in listed.filter_specs:
            chosen = list(spec.choices(listed))[1:]
            yield from (f"{url}{choice['query_string']}" for choice in chosen if choice["query_string"])
        if options.search_fields:
            yield f"{url}?q=nothing"
    yield from linked_admin_urls(rows)


def linked_admin_urls(rows: Rows) -> Iterator[str]:
    detail, failed, rare = rows.job("job-47"), rows.job("job-61"), sql.scalar(RARE)
    path = detail.chunks.get(seq=7).path
    yield from (list_of(model, q=str(detail.pk)) for model in ("job", "chunk", "receipt", "download"))
    yield from (list_of(model, q="RARE") for model in ("chunk", "file"))
    yield from (list_of(model, q="alice") for model in ("job", "etl_task", "webhook", "usage", "etl_usage"))
    yield list_of("etl_task", q=str(newest_task(rows.alice)))
    yield from (list_of(model, job=detail.pk) for model in ("chunk", "delivery", "link", "download"))
    yield list_of("chunk", job=failed.pk, status__exact="failed")
    yield list_of("chunk", path=path)
    yield from (list_of(model, dataset__id__exact=rare) for model in ("job", "chunk", "file", "slot"))
    yield from (list_of(model, user__id__exact=rows.alice.pk) for model in ("job", "etl_task", "webhook", "usage"))
    yield list_of("job", user__id__exact=rows.alice.pk, status__exact="failed")
    yield list_of("etl_task", rule__rule_id__exact=rows.rule.pk)
    yield list_of("etl_task", user__id__exact=rows.alice.pk, rule__rule_id__exact=rows.rule.pk)
    yield from (list_of("delivery", webhook__id__exact=hook.pk) for hook in (rows.hook, rows.quiet))
    yield from (reverse(f"admin:exports_job_{verb}", args=[detail.pk]) for verb in ("change", "history"))
    yield reverse("admin:exports_chunk_change", args=[failed.chunks.get(status="failed").pk])
    yield reverse("admin:etl_task_change", args=[newest_task(rows.alice)])
    yield reverse("admin:exports_dataset_change", args=[rare])


RARE = "SELECT id FROM exports_dataset WHERE name = 'rare'"
