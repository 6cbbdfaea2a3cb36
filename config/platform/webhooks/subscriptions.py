"""Subscriptions: actions of users on their webhooks."""

from base64 import b64encode
from datetime import timedelta
from secrets import token_bytes
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from config.platform.db import clock, sql
from config.platform.db.locks import lock_user
from config.platform.http import audit
from config.platform.http.problems import NotFound, Problem, require_first
from config.platform.webhooks import outbox, representation
from config.platform.webhooks.models import TEST, Delivery, Webhook
from config.platform.webhooks.wakeups import wake_senders

log = structlog.get_logger(__name__)

MAX_PER_USER = 100
SECRET_BYTES = 32
OLD_SECRET_SIGNS = timedelta(hours=24)


class TooManyWebhooks(Problem):
    status = 409
    code = "too_many_webhooks"
    detail = f"You have reached the limit of {MAX_PER_USER} webhooks. Delete one first."


class NoSuchWebhook(NotFound):
    detail = "Webhook not found."


class NoSuchDelivery(NotFound):
    detail = "Delivery not found."


class DeliveryPending(Problem):
    status = 409
    code = "delivery_pending"
    detail = "This delivery has not ended. Its next attempt is due or in progress."


class WebhookDisabled(Problem):
    status = 409
    code = "webhook_disabled"
    detail = "This webhook is disabled. Enable it first; its waiting deliveries are then sent."


def owned(webhook_id: UUID, *, user_id: int) -> Webhook:
    """Return the user's webhook. Not even staff can access webhooks of other users here. Raises NoSuchWebhook."""
    return require_first(Webhook.objects.filter(pk=webhook_id, user_id=user_id), NoSuchWebhook)


def delivery_of(webhook: Webhook, delivery_id: UUID) -> Delivery:
    """Return one of a webhook's deliveries, with its log. Raises NoSuchDelivery."""
    return require_first(
        representation.with_log(Delivery.objects.filter(webhook=webhook, pk=delivery_id)), NoSuchDelivery
    )


def create(*, user_id: int, url: str, events: list[str]) -> Webhook:
    """Create a webhook for a validated URL. Raises TooManyWebhooks."""
    with transaction.atomic():
        lock_user(user_id)
        if Webhook.objects.filter(user_id=user_id).count() >= MAX_PER_USER:
            raise TooManyWebhooks
        webhook = Webhook.objects.create(user_id=user_id, url=url, events=events, secret=new_secret())
        audit.record_change(webhook_id=webhook.pk)
    webhook.refresh_from_db()
    log.info("webhook_created", webhook_id=str(webhook.pk))
    return webhook


def change(webhook: Webhook, **changes: Any) -> Webhook:
    """Change `url`, `events` or `enabled`. Enabling resets the failure count, and sends pending deliveries.

    Raises NoSuchWebhook: the webhook may have been deleted during the check of its URL, which takes seconds.
    """
    enabled = changes.pop("enabled", None)
    rows = Webhook.objects.filter(pk=webhook.pk)
    with transaction.atomic():
        if changes:
            rows.update(**changes, updated_at=Now())
        if enabled is not None:
            # Only a real change: a webhook that was disabled automatically keeps its reason.
            reason = "" if enabled else "Disabled by a user."
            rows.filter(enabled=not enabled).update(
                enabled=enabled, disabled_reason=reason, failures=0, failing_since=None, updated_at=Now()
            )
        audit.record_change(webhook_id=webhook.pk)
    try:
        webhook.refresh_from_db()
    except Webhook.DoesNotExist:
        raise NoSuchWebhook from None
    if enabled:
        wake_senders()
    return webhook


def delete(webhook: Webhook) -> None:
    """Delete a webhook with its deliveries."""
    webhook_id = str(webhook.pk)  # delete() removes it from the object
    with transaction.atomic():
        # The locks prevent new deliveries and attempts after Django has collected the existing ones. Their foreign keys
        # would make the deletion fail.
        Webhook.objects.select_for_update().filter(pk=webhook.pk).first()
        list(webhook.deliveries.select_for_update().values_list("pk", flat=True))
        webhook.delete()
        audit.record_change(webhook_id=webhook_id)
    log.info("webhook_deleted", webhook_id=webhook_id)


def new_secret() -> str:
    return f"whsec_{b64encode(token_bytes(SECRET_BYTES)).decode()}"


def rotate_secret(webhook: Webhook) -> str:
    """Create and return a new secret. The previous one also signs for a day; older ones no longer sign.

    Raises NoSuchWebhook.
    """
    secret = new_secret()
    rotated = Webhook.objects.filter(pk=webhook.pk).update(
        old_secret=F("secret"), old_secret_until=Now() + OLD_SECRET_SIGNS, secret=secret, updated_at=Now()
    )
    if not rotated:
        raise NoSuchWebhook
    log.info("webhook_secret_rotated", webhook_id=str(webhook.pk))
    return secret


def send_test(webhook: Webhook) -> Delivery:
    """Send a test delivery, also to a disabled webhook, so that its owner can check an endpoint before enabling it.

    Raises NoSuchWebhook. Raises DeliveryPending if another test is pending.
    """
    delivery = add_test(webhook)
    # Even if a test is pending: a worker may have skipped it because of our lock on the webhook.
    wake_senders()
    if delivery is None:
        raise DeliveryPending("A test of this webhook is still pending: its attempt is due or in progress.")
    return delivery


def add_test(webhook: Webhook) -> Delivery | None:
    """Add a test delivery. Return None when a test is pending. Raises NoSuchWebhook."""
    body = outbox.envelope(TEST, at=clock.now(), data={"webhookId": str(webhook.pk)})
    with transaction.atomic():
        require_first(Webhook.objects.select_for_update(no_key=True).filter(pk=webhook.pk), NoSuchWebhook)
        # Tests have no job and no number. Filtering by both uses the unique index instead of a scan of all deliveries.
        tests = Delivery.objects.filter(webhook=webhook, job=None, seq=None)
        if tests.filter(status=Delivery.Status.PENDING).exists():
            return None
        delivery = Delivery.objects.create(webhook=webhook, type=TEST, body=body)
        delivery.refresh_from_db()
    return delivery


REDELIVER = """
UPDATE exports_delivery
SET attempts = CASE WHEN status = 'pending' THEN attempts ELSE 0 END,
    status = 'pending', available_at = clock_timestamp(), finished_at = NULL
WHERE id = %(delivery)s
  AND (status IN ('delivered', 'failed') OR (token IS NULL AND available_at > clock_timestamp()))
RETURNING status, attempts, available_at, finished_at, token
"""


def redeliver(delivery: Delivery) -> None:
    """Send a delivery now, with the same ID and bytes.

    The count of attempts restarts for a finished delivery, and continues for one that waits for its next attempt.
    Raises DeliveryPending, WebhookDisabled, and NoSuchDelivery.
    """
    if not delivery.webhook.enabled and delivery.type != TEST:
        raise WebhookDisabled
    row = sql.one(REDELIVER, delivery=delivery.pk)
    if row is None:
        raise DeliveryPending if Delivery.objects.filter(pk=delivery.pk).exists() else NoSuchDelivery
    for name, value in row.items():
        setattr(delivery, name, value)
    log.info("webhook_redelivery", webhook_id=str(delivery.webhook_id), delivery_id=str(delivery.pk))
    wake_senders()


def failed(webhook: Webhook) -> QuerySet[Delivery]:
    """Return the deliveries that `redeliver_failed` would send."""
    return Delivery.objects.filter(webhook=webhook, status=Delivery.Status.FAILED).exclude(type=TEST)


# Tests are excluded, because an old test is useless.
REDELIVER_FAILED = """
UPDATE exports_delivery SET status = 'pending', attempts = 0, available_at = clock_timestamp(), finished_at = NULL
WHERE webhook_id = %(webhook)s AND status = 'failed' AND type <> %(test)s
RETURNING id
"""


def redeliver_failed(webhook: Webhook) -> int:
    """Send all failed deliveries again, as `redeliver` does, and return their number.

    Raises WebhookDisabled and NoSuchWebhook.
    """
    with transaction.atomic():
        # Locks the webhook before its deliveries, as everywhere: the other order could deadlock with its deletion.
        rows = Webhook.objects.select_for_update(no_key=True).filter(pk=webhook.pk)
        if not require_first(rows, NoSuchWebhook).enabled:
            raise WebhookDisabled
        redelivered = len(sql.rows(REDELIVER_FAILED, webhook=webhook.pk, test=TEST))
        audit.record_change(webhook_id=webhook.pk)
    log.info("webhook_redelivery", webhook_id=str(webhook.pk), deliveries=redelivered)
    wake_senders()
    return redelivered
