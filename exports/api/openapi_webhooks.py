"""Webhooks in the OpenAPI document: the requests that Sluice sends."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, OpenApiWebhook, extend_schema

from exports.api import examples
from exports.jobs.schemas import ExportEnd
from exports.webhooks.models import EventType
from exports.webhooks.schemas import WebhookTest

HEADERS = {
    "webhook-id": "Id of the delivery, the same for every attempt. Use it to ignore duplicates.",
    "webhook-timestamp": "Time of this attempt, in Unix seconds. Reject requests older than five minutes.",
    "webhook-signature": "`v1,` and a Base64 signature. For 24 hours after a rotation there are two, separated "
    "by a space.",
}
SAMPLES = {
    "webhook-id": examples.DELIVERY_ID,
    "webhook-timestamp": "1772355651",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}
CONTRACT = """Delivered at least once, with the headers of [Standard Webhooks](https://www.standardwebhooks.com). Verify
the signature with one of its libraries: pass the secret, the headers and the raw body.

Respond with 2xx within 15 s, and process the event afterwards. Any other response is retried after 5 s, 5 min, 30 min,
2 h, 5 h, 10 h, 14 h, 20 h and 24 h. 410 disables the webhook. Redirects are not followed."""
RECEIVED = {"2XX": OpenApiResponse(description="The event was received.")}


def end(hook: EventType, summary: str, job: dict[str, Any]) -> OpenApiWebhook:
    body = {"type": hook.value, "timestamp": job["finishedAt"], "data": examples.without_link(job)}
    return OpenApiWebhook(
        hook.value,
        extend_schema(
            operation_id=f"on{hook.name.title()}",
            summary=summary,
            description=f"Sent to webhooks that subscribe to `{hook.value}`. {CONTRACT}",
            tags=["webhooks"],
            request=ExportEnd,
            responses=RECEIVED,
            examples=[OpenApiExample(summary, body)],
        ),
    )


SUCCEEDED = end(EventType.SUCCEEDED, "Export succeeded", examples.SUCCESS)
FAILED = end(EventType.FAILED, "Export failed", examples.FAILED)
CANCELLED = end(EventType.CANCELLED, "Export cancelled", examples.CANCELLED)
TEST = OpenApiWebhook(
    "webhook.test",
    extend_schema(
        operation_id="onTest",
        summary="Test delivery",
        description="Sent by `POST /exports/webhooks/{webhookId}/test` in one attempt. Signed like all deliveries.",
        tags=["webhooks"],
        request=WebhookTest,
        responses=RECEIVED,
        examples=[
            OpenApiExample(
                "A test",
                {"type": "webhook.test", "timestamp": "2026-03-01T09:30:00Z", "data": {"webhookId": examples.HOOK_ID}},
            )
        ],
    ),
)


def add_headers(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Add the headers, since drf-spectacular omits the parameters of webhooks. A postprocessing hook."""
    headers = [
        {
            "name": name,
            "in": "header",
            "required": True,
            "description": about,
            "schema": {"type": "string"},
            "example": SAMPLES[name],
        }
        for name, about in HEADERS.items()
    ]
    for hook in result.get("webhooks", {}).values():
        hook["post"]["parameters"] = headers
    return result
