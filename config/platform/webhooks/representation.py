"""JSON representation of webhooks and their deliveries, and the queries that it needs."""

from django.db.models import Prefetch, QuerySet, Window
from django.db.models.functions import RowNumber

from config.platform.webhooks import schemas
from config.platform.webhooks.models import Attempt, Delivery, Webhook

MAX_LOG_ATTEMPTS = 20  # the newest attempts of a delivery


def with_log(deliveries: QuerySet[Delivery]) -> QuerySet[Delivery]:
    """Fetch the data that `delivery` represents, in two queries for any number of deliveries.

    Only the newest attempts are fetched, because repeated redeliveries can make the log very long.
    """
    age = Window(RowNumber(), partition_by="delivery_id", order_by=("-at", "-id"))
    newest = Attempt.objects.alias(age=age).filter(age__lte=MAX_LOG_ATTEMPTS).order_by("at", "id")
    return deliveries.select_related("webhook").prefetch_related(Prefetch("log", queryset=newest)).defer("body")


def webhook(webhook: Webhook) -> schemas.Webhook:
    """Represent a webhook without its secret. Only the response that creates a secret contains it."""
    return {
        "id": str(webhook.pk),
        "url": webhook.url,
        "events": webhook.events,
        "enabled": webhook.enabled,
        "disabledReason": webhook.disabled_reason or None,
        "createdAt": webhook.created_at,
    }


def delivery(delivery: Delivery) -> schemas.WebhookDelivery:
    """Represent a delivery, read `with_log` or just created, with its newest attempts, oldest first."""
    is_waiting = delivery.status == Delivery.Status.PENDING and delivery.token is None
    has_next = is_waiting and (delivery.webhook.enabled or delivery.seq is None)
    return {
        "id": str(delivery.pk),
        "type": delivery.type,
        "jobId": str(delivery.job_id) if delivery.job_id else None,
        "subject": delivery.subject or None,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "createdAt": delivery.created_at,
        "nextAttemptAt": delivery.available_at if has_next else None,
        "finishedAt": delivery.finished_at,
        "log": [attempt(each) for each in delivery.log.all()],
    }


def attempt(attempt: Attempt) -> schemas.WebhookAttempt:
    return {
        "at": attempt.at,
        "statusCode": attempt.status_code,
        "error": attempt.error or None,
        "durationMs": attempt.duration_ms,
    }
