"""JSON bodies of tasks and batches, the same in responses, lists, event streams, and webhooks."""

from datetime import datetime
from typing import Any, cast

from django.conf import settings

from config.platform.http.quotas import left
from etl.core.states import Status
from etl.models import DocumentBatch, ReviewEvent
from etl.pipeline import artifacts, schemas
from etl.pipeline.budgets import TokenState
from etl.pipeline.quotas import Quota
from etl.runstate import RunState

PATH = "/api/v1/etl/tasks"
EINVOICE = "einvoice"
BATCHES = "/api/v1/etl/batches"


def path_of(task_id: int) -> str:
    return f"{PATH}/{task_id}"


def accepted(task_id: int, *, duplicate_of: int | None) -> schemas.AcceptedTask:
    return {
        "task_id": task_id,
        "status": Status.PENDING,
        "status_url": path_of(task_id),
        "duplicate_of": duplicate_of,
    }


def task(state: RunState, *, previous_result: dict[str, Any] | None) -> schemas.Task:
    """Return a task with its result. `previous_result`: of an earlier run, while the current run has none."""
    result = state.result if state.status == Status.COMPLETED else None
    return {**summary(state), "result": result, "previous_result": previous_result}


def summary(state: RunState) -> schemas.TaskSummary:
    """Return a task without its result, which may be large, for lists and webhooks."""
    ocr = {name: value for name, value in state.metadata["ocr"].items() if name != EINVOICE}
    metadata = state.metadata | {"ocr": ocr}
    return {
        "task_id": state.task_id,
        "batch_id": state.batch_id,
        **progress(state),
        "filename": state.filename,
        "rule_id": state.rule_id,
        "rule_version": state.rule_version,
        "approved_at": state.review.approved_at,
        "approved_by": state.review.approved_by,
        "corrected": state.review.corrections > 0,
        "duplicate_of": state.duplicate_of,
        "error": error(state),
        "einvoice": einvoice(state),
        "metadata": cast("schemas.TaskMetadata", metadata),
        "created_at": state.created_at,
        "updated_at": state.updated_at,
    }


def einvoice(state: RunState) -> schemas.EInvoice | None:
    return cast("schemas.EInvoice | None", state.metadata["ocr"].get(EINVOICE))


def progress(state: RunState) -> schemas.TaskProgress:
    """Return the data of the event `progress`."""
    return {
        "status": state.status,
        "phase": state.phase,
        "progress": state.progress,
        "waiting": state.is_waiting,
    }


def status(state: RunState) -> schemas.TaskStatus:
    """Return the data of the event `status`."""
    return {**progress(state), "error": error(state), "at": state.updated_at}


def error(state: RunState) -> schemas.TaskFailure | None:
    return cast("schemas.TaskFailure", state.error) if state.status == Status.FAILED else None


def review_event(event: ReviewEvent) -> schemas.ReviewEvent:
    return {
        "kind": event.kind,
        "at": event.created_at,
        "by": event.user.username,
        "run": event.run,
        "correction": event.correction,
        "pointer": event.pointer if event.change else None,
        "change": event.change,
    }


def batch_path(batch_id: int) -> str:
    return f"{BATCHES}/{batch_id}"


def accepted_batch(batch: DocumentBatch) -> schemas.AcceptedBatch:
    return {
        "batch_id": batch.pk,
        "status_url": batch_path(batch.pk),
        "total": batch.total,
        "refused": refused_files(batch),
    }


def refused_files(batch: DocumentBatch) -> list[schemas.RefusedFile]:
    """Return the refused files. `jsonb` sorts their fields, so this restores the order of the first response."""
    return [{"filename": each["filename"], "code": each["code"]} for each in batch.refused]


def batch(row: Any) -> schemas.BatchSummary:
    """Return a batch. `row`: read with its counts (`DocumentBatchQuerySet.with_counts`)."""
    return {
        "batch_id": row.pk,
        "name": row.name,
        "status": row.status,
        "total": row.total,
        "completed": row.completed,
        "failed": row.failed,
        "cancelled": row.cancelled,
        "deleted": row.deleted,
        "rule_id": row.rule_id,
        "rule_version": row.rule_version,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def limits(
    quota: Quota, *, user_id: int, rule_versions: int, tokens: TokenState, rules: dict[int, TokenState]
) -> schemas.DocumentLimits:
    env = settings.SLUICE
    resets_at = quota.resets_at
    return {
        "documents_per_day": {**part(quota.daily_documents, quota.documents), "resets_at": resets_at},
        "bytes_per_day": {**part(quota.daily_bytes, quota.bytes), "resets_at": resets_at},
        "rule_versions_per_day": {**part(env.etl_daily_rule_versions, rule_versions), "resets_at": resets_at},
        "rule_tests_per_day": {**part(env.etl_daily_rule_tests, quota.tests), "resets_at": resets_at},
        "tokens_per_day": token_limit(tokens.user_limit, tokens.user_used, resets_at),
        "rule_tokens_per_day": [
            {"rule_id": rule_id, **token_limit(each.rule_limit, each.rule_used, resets_at)}
            for rule_id, each in rules.items()
        ],
        "open_tasks": part(quota.max_open, quota.open),
        "max_file_bytes": env.etl_max_file_bytes,
        "max_batch": env.etl_max_batch,
        "max_batch_bytes": env.etl_max_batch_bytes,
        "inbox": artifacts.inbox_of(user_id),
        "max_pages": env.etl_max_pages,
        "rate": env.etl_rate,
    }


def part(limit: int, used: int) -> schemas.OpenLimit:
    return {"limit": limit, "used": used, "remaining": left(limit, used)}


def token_limit(limit: int | None, used: int, resets_at: datetime) -> schemas.TokenLimit:
    remaining = None if limit is None else left(limit, used)
    return {"limit": limit, "used": used, "remaining": remaining, "resets_at": resets_at}
