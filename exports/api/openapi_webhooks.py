"""Webhook events of exports in the OpenAPI document."""

from typing import Any

from drf_spectacular.utils import OpenApiWebhook

from config.platform.webhooks import openapi
from config.platform.webhooks.models import EventType
from exports.api import examples
from exports.jobs.schemas import ExportEnd


def end(hook: EventType, summary: str, job: dict[str, Any]) -> OpenApiWebhook:
    return openapi.event(
        hook,
        operation_id=f"on{hook.name.title()}",
        summary=summary,
        body=ExportEnd,
        data=examples.without_link(job),
        at=job["finishedAt"],
    )


SUCCEEDED = end(EventType.SUCCEEDED, "Export succeeded", examples.SUCCESS)
FAILED = end(EventType.FAILED, "Export failed", examples.FAILED)
CANCELLED = end(EventType.CANCELLED, "Export cancelled", examples.CANCELLED)
