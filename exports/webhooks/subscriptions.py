"""What owners do to their webhooks. What these are told, `exports.webhooks.outbox` makes, and the courier brings."""

from base64 import b64encode
from datetime import timedelta
from secrets import token_bytes
from typing import Any
from uuid import UUID

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from config.platform.db import sql
from config.platform.http.problems import NotFound, Problem
from exports.core import wakeups
from exports.jobs import representation
from exports.models import Delivery, Webhook
from exports.models.webhook import TEST
from exports.webhooks import outbox

log = structlog.get_logger(__name__)

MOST_OF_A_USER = 100
SECRET_BYTES = 32
OLD_SECRET_SIGNS = timedelta(hours=24)


class TooManyWebhooks(Problem):
    """You have as many webhooks as anybody may have: 100."""

    status = 409
    code = "too_many_webhooks"


class NoSuchWebhook(NotFound):
    """There is no such webhook."""


class NoSuchDelivery(NotFound):
    """There is no such delivery."""


class DeliveryPending(Problem):
    """This delivery has not ended: its attempt is due, or is being made."""

    status = 409
    code = "delivery_pending"


class WebhookDisabled(Problem):
    """The webhook is disabled. Enable it first, and what waits goes out."""

    status = 409
    code = "webhook_disabled"


def owned(webhook_id: UUID, *, user_id: int) -> Webhook:
    """Return the user's webhook. They are their owner's alone: staff find none, too. Raises NoSuchWebhook."""
    webhook = Webhook.objects.filter(pk=webhook_id, user_id=user_id).first()
    if webhook is None:
        raise NoSuchWebhook
    return webhook


def delivery_of(webhook: Webhook, delivery_id: UUID) -> Delivery:
    """Return one of a webhook's deliveries, with its log. Raises NoSuchDelivery."""
    delivery = representation.with_log(Delivery.objects.filter(webhook=webhook)).filter(pk=delivery_id).first()
    if delivery is None:
        raise NoSuchDelivery
    return delivery


def create(*, user_id: int, url: str, events: list[str]) -> Webhook:
    """Make a webhook for a URL that was checked. Raises TooManyWebhooks. Its secret is to be shown this once."""
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user_id)  # two at once must not both be the last
        if Webhook.objects.filter(user_id=user_id).count() >= MOST_OF_A_USER:
            raise TooManyWebhooks
        made = Webhook.objects.create(user_id=user_id, url=url, events=events, secret=new_secret())
    made.refresh_from_db()
    log.info("webhook_created", webhook_id=str(made.pk))
    return made


def change(webhook: Webhook, **changes: Any) -> Webhook:
    """Change `url`, `events` or `enabled`. Enabling forgets what failed, and what waited goes out.

    Raises NoSuchWebhook: a look at the DNS takes seconds, and it may have been deleted since it was read.
    """
    enabled = changes.pop("enabled", None)
    rows = Webhook.objects.filter(pk=webhook.pk)
    with transaction.atomic():
        if changes:
            rows.update(**changes, updated_at=Now())
        if enabled is not None:
            # Only where it is not so yet: switched off for a reason, it keeps that one.
            rows.filter(enabled=not enabled).update(**switched(enabled=enabled), updated_at=Now())
    try:
        webhook.refresh_from_db()
    except Webhook.DoesNotExist:
        raise NoSuchWebhook from None
    if enabled:
        wakeups.deliveries()
    return webhook


def switched(*, enabled: bool) -> dict[str, Any]:
    reason = "" if enabled else "Switched off by a person."
    return {"enabled": enabled, "disabled_reason": reason, "failures": 0, "failing_since": None}


def delete(webhook: Webhook) -> None:
    """Delete a webhook with all that was, and was to be, sent to it."""
    webhook_id = str(webhook.pk)  # which Django takes from the object
    with transaction.atomic():
        # Nobody adds a delivery or an attempt while Django collects them: one that came late would keep the row there.
        Webhook.objects.select_for_update().filter(pk=webhook.pk).first()
        list(webhook.deliveries.select_for_update().values_list("pk", flat=True))
        webhook.delete()
    log.info("webhook_deleted", webhook_id=webhook_id)


def new_secret() -> str:
    return f"whsec_{b64encode(token_bytes(SECRET_BYTES)).decode()}"


def rotate_secret(webhook: Webhook) -> str:
    """Return a new secret, to be shown this once. The old one signs too for a day; one before that signs no more.
    Raises NoSuchWebhook."""
    secret = new_secret()
    rotated = Webhook.objects.filter(pk=webhook.pk).update(
        old_secret=F("secret"), old_secret_until=Now() + OLD_SECRET_SIGNS, secret=secret, updated_at=Now()
    )
    if not rotated:
        raise NoSuchWebhook
    log.info("webhook_secret_rotated", webhook_id=str(webhook.pk))
    return secret


def ping(webhook: Webhook) -> Delivery:
    """Have a test sent, also to a webhook that is disabled: whoever mends an endpoint wants to see that it works.
    Raises NoSuchWebhook, DeliveryPending: one at a time."""
    made = add_test(webhook)
    # For a test that is pending, too: a worker that just looked for it has passed by the row that we had locked.
    wakeups.deliveries()
    if made is None:
        raise DeliveryPending("A test of this webhook has not ended: it waits for its attempt, or is being sent.")
    return made


def add_test(webhook: Webhook) -> Delivery | None:
    """Returns None when there is one that has not ended. Raises NoSuchWebhook."""
    body = outbox.envelope(TEST, at=timezone.now(), data={"webhookId": str(webhook.pk)})
    with transaction.atomic():
        if not Webhook.objects.select_for_update(no_key=True).filter(pk=webhook.pk).first():
            raise NoSuchWebhook
        # A test has neither job nor number: said in the words of the unique index, past what else the webhook was sent.
        tests = Delivery.objects.filter(webhook=webhook, job=None, seq=None)
        if tests.filter(status=Delivery.Status.PENDING).exists():
            return None
        made = Delivery.objects.create(webhook=webhook, type=TEST, body=body)
        made.refresh_from_db()
    return made


REDELIVER = """
UPDATE exports_delivery
SET attempts = CASE WHEN status = 'pending' THEN attempts ELSE 0 END,
    status = 'pending', available_at = clock_timestamp(), finished_at = NULL
WHERE id = %(delivery)s
  AND (status IN ('delivered', 'failed') OR (token IS NULL AND available_at > clock_timestamp()))
RETURNING status, attempts, available_at, finished_at, token
"""


def redeliver(delivery: Delivery) -> None:
    """Send a delivery now: same id, same bytes. One that has ended gets all attempts anew; one that waits for a later
    attempt keeps those it had. Raises DeliveryPending, WebhookDisabled, NoSuchDelivery."""
    if not delivery.webhook.enabled and delivery.type != TEST:
        raise WebhookDisabled
    row = sql.one(REDELIVER, delivery=delivery.pk)
    if row is None:
        raise DeliveryPending if Delivery.objects.filter(pk=delivery.pk).exists() else NoSuchDelivery
    for name, value in row.items():
        setattr(delivery, name, value)
    log.info("webhook_redelivery", webhook_id=str(delivery.webhook_id), delivery_id=str(delivery.pk))
    wakeups.deliveries()


def failed(webhook: Webhook) -> QuerySet[Delivery]:
    """Return what REDELIVER_FAILED would send again."""
    return Delivery.objects.filter(webhook=webhook, status=Delivery.Status.FAILED).exclude(type=TEST)


# What never arrived. Tests are not among it: whoever wants one asks for a new one.
REDELIVER_FAILED = """
UPDATE exports_delivery SET status = 'pending', attempts = 0, available_at = clock_timestamp(), finished_at = NULL
WHERE webhook_id = %(webhook)s AND status = 'failed' AND type <> %(test)s
RETURNING id
"""


def redeliver_failed(webhook: Webhook) -> int:
    """Send all once more that never arrived, as `redeliver` does, and return how many. Raises WebhookDisabled,
    NoSuchWebhook."""
    with transaction.atomic():
        # Webhook before deliveries, as everywhere: whoever deletes it at this moment waits, or was first.
        locked = Webhook.objects.select_for_update(no_key=True).filter(pk=webhook.pk).first()
        if locked is None:
            raise NoSuchWebhook
        if not locked.enabled:
            raise WebhookDisabled
        again = len(sql.rows(REDELIVER_FAILED, webhook=webhook.pk, test=TEST))
    log.info("webhook_redelivery", webhook_id=str(webhook.pk), deliveries=again)
    wakeups.deliveries()
    return again
