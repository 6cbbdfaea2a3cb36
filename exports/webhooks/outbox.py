"""Ends of jobs become deliveries to webhooks, once. Bringing them there is the courier's part.

The ends of jobs are events, written by the statement that ends the job; so there is no end without its event, whatever
dies. `fan_out` makes deliveries of them, once: `told_at` of the event and its deliveries are one transaction.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from rest_framework.renderers import JSONRenderer

from config.platform.db import sql
from exports.core import wakeups
from exports.core.states import JobStatus
from exports.jobs import representation
from exports.models import Delivery, Event, Job, Webhook
from exports.models.webhook import TEST, Hook

log = structlog.get_logger(__name__)

HOOKS = {JobStatus.SUCCESS: Hook.SUCCEEDED, JobStatus.FAILED: Hook.FAILED, JobStatus.CANCELLED: Hook.CANCELLED}
KEPT = timedelta(days=30)
BATCH = 100  # events that are looked at in one transaction

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
        wakeups.deliveries(waiting=made - 1)  # the first is the caller's
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
    waiting = len(Event.objects.untold().values_list("seq")[:1]) + len(due.values_list("pk")[: wakeups.FEW])
    if waiting:
        wakeups.deliveries(waiting=waiting, again=True)


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
