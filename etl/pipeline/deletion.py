"""Deletion of tasks: the row, the document, and all objects derived from it.

The row is replaced by a Deletion first, so that a crash cannot leave unreferenced objects. The audit log, the usage of
quotas, and the ledger of model calls are kept.
"""

from contextlib import suppress
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.platform import storage
from config.platform.http.problems import Problem, require_first
from etl import runstate
from etl.core.states import ENDED
from etl.models import Deletion, Sample, Task
from etl.pipeline import actions, artifacts, batch_ends

log = structlog.get_logger(__name__)

# After this time, workers of cancelled stages no longer write objects.
GRACE = timedelta(hours=1)
MAX_AT_ONCE = 2_000  # tasks that one sweep deletes


class NotDeletable(Problem):
    status = 409
    code = "not_ended"
    detail = "The task is being processed. Stop it first, or delete it with `force`."


class ChangedMeanwhile(Problem):
    status = 409
    code = "not_ended"
    detail = "The task was retried, so it was not deleted. Try again."


def delete(task: Task, *, user: User, message: str, is_forced: bool = False) -> None:
    """Delete a task for a user, with a record in the audit log.

    A waiting task is cancelled first and, with `is_forced`, a running task too. Call outside transactions.
    Raises NotDeletable, ChangedMeanwhile, NoSuchTask, and RunStateUnavailable.
    """
    if not task.has_ended:
        cancel(task, is_forced=is_forced)
    with actions.translate_state_errors():
        runstate.forget(task.pk, generation=task.generation)
    with transaction.atomic():
        LogEntry.objects.log_actions(user.pk, [task], DELETION, change_message=message, single_object=True)
        deletion = delete_row(task)
    log.info("task_deleted", etl_task_id=task.pk, status=task.status)
    try_delete_objects(deletion)


def cancel(task: Task, *, is_forced: bool) -> None:
    try:
        actions.cancel(task=task, is_forced=is_forced)
    except actions.NotCancellable:
        if not require_first(Task.objects.filter(pk=task.pk).only("status"), actions.NoSuchTask).has_ended:
            raise NotDeletable from None


def delete_row(task: Task) -> Deletion:
    """Delete the row of an ended task, unless it was retried. Raises ChangedMeanwhile and NoSuchTask."""
    facts = {"document_key": task.document_key, "first_run": task.first_run, "last_run": task.generation}
    deletion, _ = Deletion.objects.get_or_create(pk=task.pk, defaults=facts)
    row = Task.objects.filter(pk=task.pk)
    # Before it deletes a row, Django reads the rows that refer to it. The locks keep other requests from adding more.
    if not row.select_for_update().filter(generation=task.generation, status__in=ENDED).without_results():
        raise ChangedMeanwhile if row.exists() else actions.NoSuchTask
    list(Sample.objects.select_for_update().filter(task=task.pk).values_list("pk"))
    row.delete()
    batch_ends.delete_empty(task.batch_id)
    return deletion


def try_delete_objects(deletion: Deletion) -> None:
    """Delete the objects of a deleted task. If the object storage is unavailable, the sweep deletes them later."""
    try:
        delete_objects(deletion)
    except storage.StorageError as error:
        log.warning("objects_not_deleted", etl_task_id=deletion.pk, error=str(error))


def delete_objects(deletion: Deletion) -> None:
    """Delete the objects of a deleted task. Raises StorageError."""
    keys = [deletion.document_key]
    for prefix in artifacts.folders_of(deletion.pk):
        found = (item.key for item in storage.list_objects(prefix))
        keys += [key for key in found if artifacts.is_of_runs(key, deletion.first_run, deletion.last_run)]
    storage.delete_many(keys)


# ---- Periodic -------------------------------------------------------------------------------------------------------
def finish_deletions() -> int:
    """Delete the objects that remain from deletions, or that were written after them. Raises StorageError."""
    old = Deletion.objects.filter(created_at__lt=Now() - GRACE).order_by("created_at")[:MAX_AT_ONCE]
    failed = 0
    for deletion in old:
        try:
            delete_objects(deletion)
        except storage.StorageError as error:
            if error.is_outage:
                raise
            failed += 1  # such as an object under a legal hold
        else:
            deletion.delete()
    if failed:
        raise storage.RequestFailed(f"the objects of {failed} of {len(old)} deleted tasks were not deleted")
    return len(old)


def delete_expired() -> int:
    """Delete ended tasks whose retention period, set by the client or ETL_RETENTION_DAYS, is over."""
    tasks = expired()
    for task in tasks:
        with actions.translate_state_errors():
            runstate.forget(task.pk, generation=task.generation)
        with suppress(ChangedMeanwhile, actions.NoSuchTask):
            with transaction.atomic():
                deletion = delete_row(task)
            try_delete_objects(deletion)
    if tasks:
        log.info("tasks_expired", tasks=len(tasks))
    return len(tasks)


def expiry(task_id: int, *, created_at: datetime) -> datetime | None:
    """Return the time after which an ended task is deleted automatically, or None if it is kept."""
    chosen = Task.objects.filter(pk=task_id).values_list("expires_at", flat=True).first()
    days = settings.SLUICE.etl_retention_days
    return chosen or (created_at + timedelta(days=days) if days else None)


def expired() -> list[Task]:
    days = settings.SLUICE.etl_retention_days
    is_over = Q(expires_at__lt=Now())
    if days:
        is_over |= Q(expires_at__isnull=True, created_at__lt=Now() - timedelta(days=days))
    return list(Task.objects.filter(is_over, status__in=ENDED).without_results()[:MAX_AT_ONCE])
