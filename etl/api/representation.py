"""Bodies of responses and events about tasks. One representation serves single tasks, lists, and event streams."""

from typing import Any, cast

from django.conf import settings

from config.platform.http.quotas import left
from etl.api import schemas
from etl.core.states import Status
from etl.ingest.uploads import UploadTarget
from etl.pipeline.budgets import TokenState
from etl.pipeline.quotas import Quota
from etl.runstate import RunState

PATH = "/api/v1/etl/tasks"


def path_of(task_id: int) -> str:
    return f"{PATH}/{task_id}"


def accepted(task_id: int) -> schemas.AcceptedTask:
    return {"task_id": task_id, "status": Status.PENDING, "status_url": path_of(task_id)}


def task(state: RunState, *, previous_result: dict[str, Any] | None) -> schemas.Task:
    """Return a whole task. `previous_result`: of an earlier run, while this one has none."""
    result = state.result if state.status == Status.COMPLETED else None
    return {**summary(state), "result": result, "previous_result": previous_result}


def summary(state: RunState) -> schemas.TaskSummary:
    """Return a task as lists show it: without its result, which may be large."""
    return {
        "task_id": state.task_id,
        **progress(state),
        "filename": state.filename,
        "rule_id": state.rule_id,
        "rule_version": state.rule_version,
        "error": error(state),
        "metadata": cast("schemas.TaskMetadata", state.metadata),
        "created_at": state.created_at,
        "updated_at": state.updated_at,
    }


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


def limits(
    quota: Quota, *, rule_versions: int, tokens: TokenState, rules: dict[int, TokenState]
) -> schemas.DocumentLimits:
    env = settings.SLUICE
    versions = part(env.etl_daily_rule_versions, rule_versions)
    return {
        "documents_per_day": {**part(quota.daily_documents, quota.documents), "resets_at": quota.resets_at},
        "bytes_per_day": {**part(quota.daily_bytes, quota.bytes), "resets_at": quota.resets_at},
        "rule_versions_per_day": {**versions, "resets_at": quota.resets_at},
        "rule_tests_per_day": {**part(env.etl_daily_rule_tests, quota.tests), "resets_at": quota.resets_at},
        "tokens_per_day": {
            "limit": tokens.user_limit,
            "used": tokens.user_used,
            "remaining": tokens_left(tokens.user_limit, tokens.user_used),
            "resets_at": quota.resets_at,
        },
        "rule_tokens_per_day": [
            {
                "rule_id": rule_id,
                "limit": each.rule_limit,
                "used": each.rule_used,
                "remaining": tokens_left(each.rule_limit, each.rule_used),
                "resets_at": quota.resets_at,
            }
            for rule_id, each in rules.items()
        ],
        "open_tasks": part(quota.max_open, quota.open),
        "max_file_bytes": env.etl_max_file_bytes,
        "max_pages": env.etl_max_pages,
        "rate": env.etl_rate,
    }


def part(limit: int, used: int) -> schemas.OpenLimit:
    return {"limit": limit, "used": used, "remaining": left(limit, used)}


def tokens_left(limit: int | None, used: int) -> int | None:
    return None if limit is None else left(limit, used)


def upload_target(target: UploadTarget) -> schemas.UploadPlace:
    return {
        "file_key": target.file_key,
        "upload_url": target.ticket.url,
        "method": "PUT",
        "headers": target.ticket.headers,
        "expires_at": target.expires_at,
    }
