"""Webhooks in the OpenAPI document: the ends of tasks and batches."""

from typing import Any

from drf_spectacular.utils import OpenApiWebhook

from config.platform.webhooks import openapi
from config.platform.webhooks.models import EventType
from etl.api import examples
from etl.pipeline.schemas import BatchEnd, DocumentEnd


def end(hook: EventType, operation_id: str, summary: str, task: dict[str, Any]) -> OpenApiWebhook:
    return openapi.event(
        hook,
        operation_id=operation_id,
        summary=summary,
        body=DocumentEnd,
        data=examples.without_result(task),
        at=task["updated_at"],
    )


COMPLETED = end(EventType.DOCUMENT_COMPLETED, "onDocumentCompleted", "Document completed", examples.COMPLETED)
FAILED = end(EventType.DOCUMENT_FAILED, "onDocumentFailed", "Document failed", examples.FAILED)
BATCH_COMPLETED = openapi.event(
    EventType.BATCH_COMPLETED,
    operation_id="onBatchCompleted",
    summary="Batch completed",
    body=BatchEnd,
    data=examples.ENDED_BATCH,
    at=str(examples.ENDED_BATCH["updated_at"]),
)
