"""Webhook events of exports: the ends of jobs.

The statement that ends a job also writes its event, so a job cannot end without an event, even if a process crashes.
`fan_out` adds the deliveries of an event in the transaction that sets its `told_at`, so they are added exactly once.
"""

from collections.abc import Collection
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from config.platform.webhooks import outbox
from config.platform.webhooks.models import EventType
from config.platform.webhooks.wakeups import FEW, wake_senders
from exports.core.states import JobStatus
from exports.jobs import representation
from exports.models import Event, Job, Webhook

EVENT_TYPES = {
    JobStatus.SUCCESS: EventType.SUCCEEDED,
    JobStatus.FAILED: EventType.FAILED,
    JobStatus.CANCELLED: EventType.CANCELLED,
}
BATCH = 100  # events per transaction


def fan_out() -> int:
    """Add the deliveries of all new events. Return their number."""
    added = 0
    while True:
        events, deliveries = fan_out_batch()
        added += deliveries
        if events < BATCH:
            break
    if added > 1:
        wake_senders(waiting=added - 1)  # the calling worker sends one itself
    return added


def fan_out_batch() -> tuple[int, int]:
    """Add the deliveries of a batch of new events. Return the numbers of events and deliveries."""
    with transaction.atomic():
        # Parallel workers share the events: a row that another one has locked is skipped.
        events = list(Event.objects.awaiting_fan_out().order_by("at").select_for_update(skip_locked=True)[:BATCH])
        return len(events), add_all(events)


def fan_out_job(job_id: UUID) -> None:
    """Add the deliveries of a job's new events before the job changes. Call it in the transaction of the change.

    Deliveries contain the current state of the job: after a retry, the delivery of a failure would contain `running`.
    """
    add_all(list(Event.objects.awaiting_fan_out().filter(job_id=job_id).order_by("seq").select_for_update()))


def add_all(events: Collection[Event]) -> int:
    """Add the deliveries of locked events. Return their number."""
    jobs = jobs_with_webhooks([event.job_id for event in events])
    added = sum(add(event, jobs[event.job_id]) for event in events if event.job_id in jobs)
    Event.objects.filter(pk__in=[event.pk for event in events]).update(told_at=Now())
    return added


def jobs_with_webhooks(job_ids: Collection[UUID]) -> dict[UUID, Job]:
    owners = Webhook.objects.filter(enabled=True).values("user_id")
    jobs = representation.with_details(Job.objects.filter(pk__in=job_ids, user_id__in=owners))
    return {job.pk: job for job in jobs}


def add(event: Event, job: Job) -> int:
    return outbox.add(
        EVENT_TYPES[JobStatus(event.status)].value,
        user_id=job.user_id,
        job_id=job.pk,
        seq=event.seq,
        at=event.at,
        data=representation.webhook_job(job, event.at),
    )


def wake_for_due() -> None:
    """Wake workers for events without deliveries, and for deliveries that are due."""
    waiting = len(Event.objects.awaiting_fan_out().values_list("seq")[:1]) + outbox.due(limit=FEW)
    wake_senders(waiting=waiting, again=True)
