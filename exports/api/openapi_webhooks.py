"""What receivers of webhooks get, for the OpenAPI schema: requests that Sluice makes."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, OpenApiWebhook, extend_schema

from exports.api import examples
from exports.jobs.schemas import ExportEnd
from exports.webhooks.models import EventType
from exports.webhooks.schemas import WebhookTest

HEADERS = {
    "webhook-id": "The delivery's id, the same at every attempt: what was seen before can be ignored.",
    "webhook-timestamp": "Of this attempt, in Unix seconds. Refuse what is older than five minutes.",
    "webhook-signature": "`v1,` and a signature in Base64; for a day after a rotation two of them, with a "
    "space between.",
}
SAMPLES = {
    "webhook-id": examples.DELIVERY_ID,
    "webhook-timestamp": "1772355651",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}
HOW = """Posted at least once, with the headers of [Standard Webhooks](https://www.standardwebhooks.com), whose
libraries check signatures: give them the secret, the headers and the bytes of the body as they came.

Answer with 2xx within 15 s, and work afterwards. Anything else is tried again after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h,
14 h, 20 h and 24 h. 410 disables the webhook. Redirects are not followed."""
TAKEN = {"2XX": OpenApiResponse(description="It was taken.")}


def end(hook: EventType, summary: str, job: dict[str, Any]) -> OpenApiWebhook:
    body = {"type": hook.value, "timestamp": job["finishedAt"], "data": examples.told(job)}
    return OpenApiWebhook(
        hook.value,
        extend_schema(
            operation_id=f"on{hook.name.title()}",
            summary=summary,
            description=f"To webhooks that asked for `{hook.value}`. {HOW}",
            tags=["webhooks"],
            request=ExportEnd,
            responses=TAKEN,
            examples=[OpenApiExample(summary, body)],
        ),
    )


SUCCEEDED = end(EventType.SUCCEEDED, "An export has succeeded", examples.SUCCESS)
FAILED = end(EventType.FAILED, "An export has failed", examples.FAILED)
CANCELLED = end(EventType.CANCELLED, "An export was cancelled", examples.CANCELLED)
TEST = OpenApiWebhook(
    "webhook.test",
    extend_schema(
        operation_id="onTest",
        summary="Somebody tries the webhook",
        description="What `POST /exports/webhooks/{webhookId}/test` sends, in one attempt. Signed like all others.",
        tags=["webhooks"],
        request=WebhookTest,
        responses=TAKEN,
        examples=[
            OpenApiExample(
                "A test",
                {"type": "webhook.test", "timestamp": "2026-03-01T09:30:00Z", "data": {"webhookId": examples.HOOK_ID}},
            )
        ],
    ),
)


def add_headers(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Postprocessing hook: drf-spectacular leaves the parameters of webhooks out."""
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
