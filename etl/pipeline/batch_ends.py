"""End and restart of batches. The rows of their documents decide.

A document's row is written before its batch is locked, in the same transaction. So of two documents that end at the
same moment, the second one to lock the batch sees the first one's end, and ends the batch, once.
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


def settle(batch_id: int | None) -> bool:
    """End a batch whose last document has ended. Call in the transaction that ends a document.

    Return whether this ended the batch.
    """
    if batch_id is None:
        return False
    batch = DocumentBatch.objects.select_for_update(no_key=True).running().filter(pk=batch_id).first()
    if batch is None or Task.objects.open().filter(batch_id=batch_id).exists():
        return False
    batch.status = status_of(batch)
    batch.completions += 1
    batch.updated_at = clock.now()
    batch.save(update_fields=["status", "completions", "updated_at"])
    publish(batch_id)
    log.info("batch_ended", batch_id=batch_id, status=batch.status, completions=batch.completions)
    return True


def publish(batch_id: int) -> None:
    """Add the event of a batch's end to the outbox. Its number is the number of the completion."""
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

    The lock lets the second of two such transactions see that the first one has deleted the other last document.
    """
    if batch_id is None:
        return
    batch = DocumentBatch.objects.select_for_update().filter(pk=batch_id).first()
    if batch is not None and not Task.objects.filter(batch_id=batch_id).exists():
        batch.delete()
        log.info("batch_deleted", batch_id=batch_id)
