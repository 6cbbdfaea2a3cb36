"""Types of the webhook API's responses, which `representation` builds, and of the body of a test delivery."""

from datetime import datetime
from typing import Annotated, TypedDict

from config.platform.http.openapi.response_schemas import Uuid, choices
from config.platform.webhooks.models import TEST, Delivery, EventType

DELIVERY_TYPES = [*EventType.values, TEST]


class Webhook(TypedDict):
    id: Uuid
    url: str
    events: list[Annotated[str, choices(EventType)]]
    enabled: bool
    disabledReason: Annotated[str | None, "Why the webhook is disabled."]
    createdAt: datetime


class Secret(TypedDict):
    secret: Annotated[str, "Signing secret, `whsec_…`. Returned only in this response."]


class WebhookWithSecret(Webhook, Secret):
    pass


class WebhookAttempt(TypedDict):
    at: Annotated[datetime, "When the attempt started."]
    statusCode: Annotated[int | None, "HTTP status of the response."]
    error: Annotated[str | None, "Why there was no response."]
    durationMs: int


class WebhookDelivery(TypedDict):
    id: Annotated[Uuid, "Sent to the receiver as `webhook-id`."]
    type: Annotated[str, choices(DELIVERY_TYPES)]
    jobId: Annotated[Uuid | None, "Set for events of an export, until it is deleted."]
    subject: Annotated[
        str | None,
        "Set for events of a document, a batch, or a deleted export: its kind and ID, such as `document:17`.",
    ]
    status: Annotated[str, choices(Delivery.Status)]
    attempts: Annotated[int, "Attempts since the delivery was created or, after its end, last redelivered."]
    createdAt: datetime
    nextAttemptAt: Annotated[
        datetime | None, "Set while the delivery is waiting and either the webhook is enabled or this is a test."
    ]
    finishedAt: datetime | None
    log: Annotated[list[WebhookAttempt], "The latest 20 attempts, oldest first."]


class TestedWebhook(TypedDict):
    webhookId: Uuid


class WebhookTest(TypedDict):
    """Body of a test delivery."""

    type: Annotated[str, choices([TEST])]
    timestamp: Annotated[datetime, "When the test was requested."]
    data: TestedWebhook
