"""What webhooks are told, and what their owners do to them. Bringing it there is the courier's part.

The ends of jobs are events, written by the statement that ends the job; so there is no end without its event, whatever
dies. `fan_out` makes deliveries of them, once: `told_at` of the event and its deliveries are one transaction.
"""

from base64 import b64encode
from collections.abc import Collection
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from rest_framework.renderers import JSONRenderer

from config.api.problems import NotFound, Problem
from exports import dispatch, representation, sql
from exports.models import Delivery, Event, Job, Webhook
from exports.models.webhook import Hook
from exports.states import JobStatus

log = structlog.get_logger(__name__)

HOOKS = {JobStatus.SUCCESS: Hook.SUCCEEDED, JobStatus.FAILED: Hook.FAILED, JobStatus.CANCELLED: Hook.CANCELLED}
TEST = "webhook.test"
MOST = 100
SECRET_BYTES = 32
OLD_SECRET = timedelta(hours=24)
KEPT = timedelta(days=30)
BATCH = 100
MANY = 4  # workers to wake for deliveries that wait; each goes on for a while


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


# ---- Events become deliveries ---------------------------------------------------------------------------------------

# A webhook that is made after the event is not told of it. One that is deleted at this moment is waited for, and gone.
TELL = """
INSERT INTO exports_delivery (id, webhook_id, job_id, seq, type, body, status, attempts)
SELECT gen_random_uuid(), w.id, %(job)s, %(seq)s, %(type)s, %(body)s, 'pending', 0
FROM exports_webhook w
WHERE w.user_id = %(user)s AND w.enabled AND %(type)s = ANY(w.events) AND w.created_at <= %(at)s
FOR KEY SHARE OF w
ON CONFLICT (webhook_id, job_id, seq) DO NOTHING
RETURNING id
"""


def fan_out() -> int:
    """Make a delivery of each end for each webhook that asked for it. Returns how many; a second run makes none."""
    made = 0
    while True:
        events, deliveries = tell_some()
        made += deliveries
        if events < BATCH:
            break
    if made > 1:
        dispatch.deliveries(waiting=made - 1)  # the first is the caller's
    return made


def tell_some() -> tuple[int, int]:
    """Returns how many events were looked at, and how many deliveries were made."""
    with transaction.atomic():
        # Two at once share the events between them. One that waits for nothing finds `told_at` set when it gets there.
        events = list(Event.objects.untold().order_by("at").select_for_update(skip_locked=True)[:BATCH])
        jobs = jobs_with_webhooks([event.job_id for event in events])
        told = [tell(event, jobs[event.job_id]) for event in events if event.job_id in jobs]
        Event.objects.filter(pk__in=[event.pk for event in events]).update(told_at=Now())
    return len(events), sum(told)


def jobs_with_webhooks(ids: Collection[Any]) -> dict[Any, Job]:
    listening = Webhook.objects.filter(enabled=True).values("user_id")
    jobs = representation.with_all(Job.objects.filter(pk__in=ids, user_id__in=listening))
    return {job.pk: job for job in jobs}


def tell(event: Event, job: Job) -> int:
    kind = HOOKS[JobStatus(event.status)].value
    body = envelope(kind, at=event.at, data=representation.job(job, None))
    return len(sql.rows(TELL, job=job.pk, seq=event.seq, type=kind, body=body, user=job.user_id, at=event.at))


def envelope(kind: str, *, at: datetime, data: dict[str, Any]) -> str:
    """Return the body as Standard Webhooks has it, values written as in every answer of the API."""
    text: bytes = JSONRenderer().render({"type": kind, "timestamp": at, "data": data})
    return text.decode()


# ---- Janitors -------------------------------------------------------------------------------------------------------


def hint() -> None:
    """Wake workers for ends that nobody was told of, and for deliveries that are due."""
    free = Q(lease_until=None) | Q(lease_until__lt=Now())
    awaited = Q(webhook__enabled=True) | Q(type=TEST)
    due = Delivery.objects.filter(free, awaited, status=Delivery.Status.PENDING, available_at__lte=Now())
    waiting = len(Event.objects.untold().values_list("seq")[:1]) + len(due.values_list("pk")[:MANY])
    if waiting:
        dispatch.deliveries(waiting=min(waiting, MANY), again=True)


def prune() -> int:
    """Delete what was to be told 30 days ago, delivered or not."""
    pruned = 0
    while batch := prune_some():
        pruned += batch
    if pruned:
        log.info("deliveries_pruned", deliveries=pruned)
    return pruned


def prune_some() -> int:
    """Delete up to 500 deliveries. Not what is being sent, such as an old one that a person sends again."""
    old = Delivery.objects.filter(created_at__lt=Now() - KEPT, token=None)
    with transaction.atomic():
        batch = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:500])
        Delivery.objects.filter(pk__in=batch).delete()
    return len(batch)


# ---- What owners do -------------------------------------------------------------------------------------------------


def create(*, user_id: int, url: str, events: list[str]) -> Webhook:
    """Make a webhook for a URL that was checked. Raises TooManyWebhooks. Its secret is to be shown this once."""
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user_id)  # two at once must not both be the last
        if Webhook.objects.filter(user_id=user_id).count() >= MOST:
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
        dispatch.deliveries()
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
        old_secret=F("secret"), old_secret_until=Now() + OLD_SECRET, secret=secret, updated_at=Now()
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
    dispatch.deliveries()
    if made is None:
        raise DeliveryPending("A test of this webhook has not ended: it waits for its attempt, or is being sent.")
    return made


def add_test(webhook: Webhook) -> Delivery | None:
    """Returns None when there is one that has not ended. Raises NoSuchWebhook."""
    body = envelope(TEST, at=timezone.now(), data={"webhookId": str(webhook.pk)})
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
    dispatch.deliveries()


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
    dispatch.deliveries()
    return again
