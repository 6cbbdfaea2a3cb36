"""Webhooks in the OpenAPI document: the common parts of all requests that Sluice sends, and the test delivery."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, OpenApiWebhook, extend_schema

from config.platform.webhooks.models import TEST as TEST_TYPE
from config.platform.webhooks.models import EventType
from config.platform.webhooks.schemas import WebhookTest

HOOK_ID = "0197a3b1-88d4-4f9a-a3d7-0c0a6b1e5e44"
DELIVERY_ID = "0197a3c5-3b7d-4d0f-8a56-97f5c3f0b9d2"
HEADERS = {
    "webhook-id": "ID of the delivery, the same for every attempt. Use it to ignore duplicates.",
    "webhook-timestamp": "Time of this attempt, in Unix seconds. Reject requests older than five minutes.",
    "webhook-signature": "`v1,` and a Base64 signature. For 24 hours after a rotation there are two, separated "
    "by a space.",
}
SAMPLES = {
    "webhook-id": DELIVERY_ID,
    "webhook-timestamp": "1772355651",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}
CONTRACT = """Delivered at least once, with the headers of [Standard Webhooks](https://www.standardwebhooks.com). Verify
the signature with one of its libraries: pass the secret, the headers, and the raw body.

Respond with 2xx within 15 s, and process the event afterwards. Any other response is retried after 5 s, 5 min, 30 min,
2 h, 5 h, 10 h, 14 h, 20 h, and 24 h. 410 disables the webhook. Redirects are not followed."""
RECEIVED = {"2XX": OpenApiResponse(description="The event was received.")}


def event(hook: EventType, *, operation_id: str, summary: str, body: Any, data: Any, at: str) -> OpenApiWebhook:
    """Return the webhook of an event. `body`: the type of its body. `data`, `at`: example data and time."""
    return OpenApiWebhook(
        hook.value,
        extend_schema(
            operation_id=operation_id,
            summary=summary,
            description=f"Sent to webhooks that subscribe to `{hook.value}`. {CONTRACT}",
            tags=["events"],
            request=body,
            responses=RECEIVED,
            examples=[OpenApiExample(summary, {"type": hook.value, "timestamp": at, "data": data})],
        ),
    )


TEST = OpenApiWebhook(
    TEST_TYPE,
    extend_schema(
        operation_id="onTest",
        summary="Test delivery",
        description="Sent by `POST /exports/webhooks/{webhookId}/test` in one attempt. Signed like all deliveries.",
        tags=["events"],
        request=WebhookTest,
        responses=RECEIVED,
        examples=[
            OpenApiExample(
                "A test",
                {"type": TEST_TYPE, "timestamp": "2026-03-01T09:30:00Z", "data": {"webhookId": HOOK_ID}},
            )
        ],
    ),
)


def omit_alternative_paths(endpoints: list[tuple[str, ...]], **_later: Any) -> list[tuple[str, ...]]:
    """Omit the alternative paths of the resource `/exports/webhooks`. A preprocessing hook."""
    return [endpoint for endpoint in endpoints if not endpoint[0].startswith(("/webhooks", "/api/v1/etl/webhooks"))]


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
