"""Review of results by people: corrections and approvals.

The corrected data is in the row, beside the original result. A review applies to the result of one run: after a retry,
the new result has no review. If two people change a result at once, the row's lock and the entity tag make the second
request fail. The run-state in Redis is deleted before the commit, as for a retry, so that no reader sees the result
without its review.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.utils.http import parse_etags

from config.platform import exact_json
from config.platform.db import clock
from config.platform.http import audit
from config.platform.http.problems import BadInput, InputError, Problem, require_first
from etl import runstate
from etl.core.json_changes import ABSENT, Pair, merge_patch, pairs
from etl.core.states import Status
from etl.models import ReviewEvent, Task
from etl.models.review import Review
from etl.pipeline import actions, artifacts
from etl.postprocessors.citations.levels import CORRECTED
from etl.postprocessors.responses import range_error, scalars
from etl.postprocessors.schemas import Guide
from etl.runstate import RunState
from rules.library import catalog
from rules.schema import json_schema
from rules.schema.subschemas import MAX_LEVELS

log = structlog.get_logger(__name__)

# A correction of more values is recorded as one event with the whole data.
MAX_EVENTS = 1_000
Kind = ReviewEvent.Kind


class NotCompleted(Problem):
    status = 409
    code = "not_completed"
    detail = "The task has no result: only a task that is completed can be corrected or approved."


class NoData(Problem):
    status = 409
    code = "no_data"
    detail = "The result has no data to correct: the task's rule returns Markdown only."


class ConditionMissing(Problem):
    status = 428
    code = "precondition_required"
    detail = "Send the header If-Match with the ETag of the result that you have read."


class Stale(Problem):
    status = 412
    code = "precondition_failed"
    detail = "The result has changed since you read it, and nothing was saved. Read it again."


class SchemaMismatch(BadInput):
    status = 422
    code = "schema_validation"
    detail = "The corrected data does not match the schema of the rule. Nothing was saved."


def tag_of(run: int, corrections: int) -> str:
    """Return the entity tag of a result. `corrections`: their number so far, 0 for the original result."""
    return f'"{run}-{corrections}"'


def tag(state: RunState) -> str:
    return tag_of(state.run, state.review.corrections)


# ---- Changes --------------------------------------------------------------------------------------------------------
def correct(task: Task, change: Callable[[Any], Any], *, user: User, if_match: str | None) -> Task:
    """Replace the data of a result by the return value of `change`. Return the row.

    Removes the approval, which was for the previous data. If the data is the same, nothing changes. Call outside
    transactions. Raises ConditionMissing, NoData, SchemaMismatch, and the errors of `locked`.
    """
    if if_match is None:
        raise ConditionMissing
    with locked(task, if_match) as row:
        original, result = row.original_result or {}, row.current_result or {}
        if "data" not in result:
            raise NoData
        data = artifacts.clean(change(result["data"]))
        check(data, row)
        changes = [pair for pair in pairs(result["data"], data) if pair.is_change]
        if changes:
            fields = {"corrected_result": {"data": data, "citations": citations(original, data)}}
            review, events = Review(row.review.corrections + 1), events_of(changes, result["data"], data)
            record(row, user, review, events, was_approved=row.review.approved_at is not None)
            save(row, review, None, **fields)
    log.info("result_corrected", etl_task_id=row.pk, values=len(changes))
    return row


def approve(task: Task, *, user: User, if_match: str | None = None) -> Task:
    """Approve a result; an earlier approval stays. Return the row.

    Call outside transactions. Raises the errors of `locked`.
    """
    with locked(task, if_match) as row:
        if not row.review.approved_at:
            review = row.review._replace(approved_at=clock.now())
            ReviewEvent.objects.create(
                task=row, run=row.run, kind=Kind.APPROVED, correction=review.corrections, user=user
            )
            save(row, review, user)
    log.info("result_approved", etl_task_id=row.pk)
    return row


def remove_approval(task: Task, *, user: User) -> Task:
    """Remove the approval of a result, if there is one. Return the row.

    Call outside transactions. Raises the errors of `locked`, except Stale.
    """
    with locked(task, None) as row:
        if row.review.approved_at:
            review = Review(row.review.corrections)
            record(row, user, review, [], was_approved=True)
            save(row, review, None)
    log.info("approval_removed", etl_task_id=row.pk)
    return row


@contextmanager
def locked(task: Task, if_match: str | None) -> Iterator[Task]:
    """Lock the row of a completed task in a transaction, and delete its run-state before the commit.

    Raises NotFound, NotCompleted, Stale, RunStateUnavailable, and StorageUnavailable.
    """
    try:
        ended = actions.require_ended(task)
    except actions.NotEnded:
        raise NotCompleted from None
    if ended.status != Status.COMPLETED:
        raise NotCompleted
    with transaction.atomic():
        rows = Task.objects.select_for_update().filter(pk=task.pk)
        row = require_first(rows, actions.NoSuchTask())
        if row.status != Status.COMPLETED:
            raise NotCompleted  # it was retried in the meantime
        require_match(if_match, tag_of(row.run, row.review.corrections))
        with actions.translate_state_errors():
            runstate.forget(row.pk, generation=row.generation)
        yield row
        audit.record_change(task_id=row.pk)


def require_match(if_match: str | None, current: str) -> None:
    """Raise Stale unless the header names the current entity tag, by strong comparison (RFC 9110, 13.1.1)."""
    if if_match is not None and not {"*", current} & set(parse_etags(if_match)):
        raise Stale


def save(row: Task, review: Review, approver: User | None, **fields: Any) -> None:
    """Write the review of the current run into the row, and drop that of an earlier run."""
    if row.reviewed_run != row.run:
        fields = {"corrected_result": None} | fields
    row.reviewed_run, row.corrections = row.run, review.corrections
    row.approved_at, row.approved_by = review.approved_at, approver
    for name, value in fields.items():
        setattr(row, name, value)
    row.save(update_fields=["reviewed_run", "corrections", "approved_at", "approved_by", *fields])


# ---- History --------------------------------------------------------------------------------------------------------
def record(row: Task, user: User, review: Review, changes: list[dict[str, Any]], *, was_approved: bool) -> None:
    made = [
        ReviewEvent(task=row, run=row.run, kind=Kind.CORRECTED, correction=review.corrections, user=user, **change)
        for change in changes
    ]
    if was_approved:
        made.append(
            ReviewEvent(task=row, run=row.run, kind=Kind.APPROVAL_REMOVED, correction=review.corrections, user=user)
        )
    ReviewEvent.objects.bulk_create(made)


def events_of(changes: list[Pair], before: Any, after: Any) -> list[dict[str, Any]]:
    """Return the pointer and the values of each change."""
    if len(changes) > MAX_EVENTS:
        return [{"pointer": "", "change": {"before": before, "after": after}}]
    return [
        {
            "pointer": pair.pointer,
            "change": {
                name: value for name, value in (("before", pair.before), ("after", pair.after)) if value is not ABSENT
            },
        }
        for pair in changes
    ]


# ---- Data -----------------------------------------------------------------------------------------------------------
def merged(task: Task, patch: Any, data: Any) -> Any:
    """Return the data of a task's result with a merge patch applied."""
    return merge_patch(data, patch, Guide.of(schema_of(task)))


def schema_of(task: Task) -> dict[str, Any]:
    """Return the schema of the task's version of the rule."""
    return catalog.content(rule_id=task.rule_id, version=task.rule_version).json_schema or {}


def check(data: Any, row: Task) -> None:
    """Raise SchemaMismatch unless the data can be stored, and matches the schema of the task's version of the rule."""
    if exact_json.nested_deeper(data, MAX_LEVELS):
        raise SchemaMismatch(schema_error("", f"Must not be nested deeper than {MAX_LEVELS} levels."))
    numbers = [(pointer, value) for pointer, value in scalars(data) if isinstance(value, Decimal)]
    reasons = [schema_error(pointer, reason) for pointer, value in numbers if (reason := range_error(value))]
    if not reasons:
        reasons = [schema_error(pointer, reason) for pointer, reason in json_schema.errors(schema_of(row), data, 100)]
    if reasons:
        raise SchemaMismatch(*reasons)


def schema_error(pointer: str, reason: str) -> InputError:
    return InputError(pointer=f"/data{pointer}", code="invalid", detail=reason)


def citations(original: dict[str, Any], data: Any) -> list[dict[str, Any]]:
    """Return the citations of the corrected data: the original ones for unchanged values, at their new pointers, and
    CORRECTED for the others.

    An unchanged value in a list item that cannot be identified with certainty is CORRECTED too: its original citation
    may belong to a removed item.
    """
    known = {each["pointer"]: each for each in original.get("citations") or []}
    found = []
    for pair in pairs(original.get("data"), data):
        is_corrected = pair.is_change or not pair.is_certain
        if is_corrected and pair.after is not ABSENT:
            found += [corrected(at) for at, value in scalars(pair.after, pair.pointer_after) if value not in (None, "")]
        elif pair.pointer_before in known and not is_corrected:
            found.append({**known[pair.pointer_before], "pointer": pair.pointer_after})
    return found


def corrected(pointer: str) -> dict[str, Any]:
    return {"pointer": pointer, "page": None, "bbox": None, "quote": None, "match": CORRECTED}
