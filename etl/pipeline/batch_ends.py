"""End and restart of batches, by the status of their documents' rows.

A document's row is written before its batch is locked, in the same transaction. If the last two documents end at the
same time, the second transaction to lock the batch sees both ends, and ends the batch. So a batch ends exactly once.
"""

from collections import Counter
from typing import Any

import structlog

from config.platform.db import clock
from config.platform.webhooks import outbox
from config.platform.webhooks.models import EventType
from etl.core.states import BatchStatus, Status
from etl.models import DocumentBatch, Task
from etl.pipeline import representation

log = structlog.get_logger(__name__)


def end_if_complete(batch_id: int | None) -> None:
    """End a batch if its last document has ended. Call in the transaction that ends a document."""
    if batch_id is None:
        return
    batch = DocumentBatch.objects.select_for_update(no_key=True).running().filter(pk=batch_id).first()
    if batch is None or Task.objects.open().filter(batch_id=batch_id).exists():
        return
    batch.status = status_of(batch)
    batch.completions += 1
    batch.updated_at = clock.now()
    batch.save(update_fields=["status", "completions", "updated_at"])
    publish(batch_id)
    log.info("batch_ended", batch_id=batch_id, status=batch.status, completions=batch.completions)


def publish(batch_id: int) -> None:
    """Add the event of a batch's end to the outbox. The event has the number of the completion."""
    batch: Any = DocumentBatch.objects.with_counts().get(pk=batch_id)
    outbox.publish(
        EventType.BATCH_COMPLETED,
        user_id=batch.user_id,
        subject=f"batch:{batch_id}",
        seq=batch.completions,
        at=batch.updated_at,
        data=representation.batch(batch),
    )


def status_of(batch: DocumentBatch) -> BatchStatus:
    """Return the status of a batch whose documents have all ended."""
    counts = Counter(Task.objects.filter(batch_id=batch.pk).values_list("status", flat=True))
    if batch.cancelled_at and counts[Status.CANCELLED]:
        return BatchStatus.CANCELLED
    if counts[Status.FAILED] or counts[Status.CANCELLED]:
        return BatchStatus.COMPLETED_WITH_ERRORS
    return BatchStatus.COMPLETED


def reopen(batch_id: int | None) -> None:
    """Start a batch again. Call in the transaction that retries its documents, after their rows are written."""
    if batch_id is not None:
        DocumentBatch.objects.filter(pk=batch_id).update(
            status=BatchStatus.RUNNING, cancelled_at=None, updated_at=clock.now()
        )


def delete_empty(batch_id: int | None) -> None:
    """Delete a batch without documents. Call in the transaction that deletes a document.

    The lock serializes two transactions that delete the last two documents, so that the second one deletes the batch.
    """
    if batch_id is None:
        return
    batch = DocumentBatch.objects.select_for_update().filter(pk=batch_id).first()
    if batch is not None and not Task.objects.filter(batch_id=batch_id).exists():
        batch.delete()
        log.info("batch_deleted", batch_id=batch_id)
