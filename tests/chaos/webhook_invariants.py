"""Invariant I4: one event per end of a job, and one delivery per webhook, in order and with an unchanged body."""

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from uuid import UUID

from exports.core.states import JOB_ENDED, JobStatus
from exports.jobs.webhook_events import EVENT_TYPES
from exports.models import Delivery, Event, Job, Webhook
from tests.chaos.changes import Move, moves
from tests.chaos.site import DeliberateChanges
from tests.integration.receiver import Receiver

# Deliveries of each job to each webhook, in order. The job may have been deleted.
Deliveries = dict[tuple[UUID, str], list[Delivery]]


def check(receivers: Iterable[Receiver], allowed: DeliberateChanges) -> None:
    ends = {pk: [move for move in its if move.became in JOB_ENDED] for pk, its in moves("job").items()}
    deliveries = deliveries_of_jobs()
    for job in Job.objects.select_related("user"):
        check_events(job, ends.get(str(job.pk), []), allowed)
    for (webhook, job_id), its in deliveries.items():
        check_bodies(job_id, its, ends.get(job_id, []), webhook)
    check_deleted_jobs(ends, deliveries, allowed)
    for receiver in receivers:
        check_receiver(receiver)


def deliveries_of_jobs() -> Deliveries:
    """Return the deliveries by webhook and job. The body has the job's ID also after the job was deleted."""
    found: Deliveries = defaultdict(list)
    for row in Delivery.objects.filter(type__in=EVENT_TYPES.values()).order_by("seq"):
        found[row.webhook_id, data_of(row)["jobId"]].append(row)
    return found


def data_of(row: Delivery) -> Any:
    return json.loads(row.body)["data"]


def check_events(job: Job, ended: list[Move], allowed: DeliberateChanges) -> None:
    ends = list(Event.objects.filter(job=job, kind=Event.Kind.STATUS, status__in=JOB_ENDED).order_by("seq"))
    assert [event.status for event in ends] == [move.became for move in ended], (
        f"I4: job {job.pk} has other terminal events {ends} than ends {ended}"
    )
    for webhook in Webhook.objects.filter(user=job.user):
        its = list(Delivery.objects.filter(job=job, webhook=webhook).order_by("seq").values_list("seq", flat=True))
        required = {event.seq for event in ends if must_be_delivered(event, webhook, allowed)}
        assert required <= set(its) <= {event.seq for event in ends}, (
            f"I4: the ends {required} of job {job.pk} have the deliveries {its}"
        )
        for row in Delivery.objects.filter(job=job, webhook=webhook):
            status = next(event.status for event in ends if event.seq == row.seq)
            assert data_of(row)["status"] == status, f"I4: delivery {row.pk} is not about its event"


def check_bodies(job_id: str, its: list[Delivery], ended: list[Move], webhook: UUID) -> None:
    """Check the deliveries of a job to a webhook by their bodies alone, because the job may have been deleted."""
    assert all(str(row.job_id or job_id) == job_id for row in its), f"I4: a delivery of {job_id} has another job"
    delivered = [data_of(row)["status"] for row in its]
    assert [row.type for row in its] == [EVENT_TYPES[JobStatus(status)] for status in delivered], (
        f"I4: the types of the deliveries of job {job_id} are not those of {delivered}"
    )
    numbers = [(row.seq or 0, json.loads(row.body)["timestamp"]) for row in its]
    assert all(earlier < later for pair in pairwise(numbers) for earlier, later in zip(*pair, strict=True)), (
        f"I4: job {job_id} was delivered more than once to {webhook}, or in another order: {numbers}"
    )
    remaining = iter(move.became for move in ended)
    assert all(status in remaining for status in delivered), (
        f"I4: job {job_id} ended with {ended}, and the deliveries have {delivered}"
    )


def check_deleted_jobs(ends: dict[str, list[Move]], deliveries: Deliveries, allowed: DeliberateChanges) -> None:
    """Check that the ends of deleted jobs were delivered. Their events were deleted with them."""
    deleted = ends.keys() - set(map(str, Job.objects.values_list("pk", flat=True))) - allowed.undelivered
    absent = {name for name, _, _ in allowed.absences}
    for job_id in deleted:
        for webhook in Webhook.objects.filter(user=ends[job_id][-1].owner).exclude(user__username__in=absent):
            required = [
                move.became for move in ends[job_id]
                if is_subscribed(webhook, move.became) and webhook.created_at <= move.at
            ]  # fmt: skip
            delivered = [data_of(row)["status"] for row in deliveries.get((webhook.pk, job_id), [])]
            remaining = iter(delivered)
            assert all(status in remaining for status in required), (
                f"I4: the deleted job {job_id} ended with {required}, and the deliveries have {delivered}"
            )


def check_receiver(receiver: Receiver) -> None:
    deliveries: dict[UUID, Delivery] = Delivery.objects.in_bulk()
    arrived: dict[Any, list[int]] = defaultdict(list)
    for received in receiver.received:
        row = deliveries.get(UUID(received.id))
        assert row, "I4: a receiver got a delivery without a row"
        assert received.body.decode() == row.body, f"I4: delivery {row.pk} arrived with another body"
    for number in dict.fromkeys(receiver.ids):  # in the order of the first attempts
        row = deliveries[UUID(number)]
        if row.type in EVENT_TYPES.values():
            arrived[row.webhook_id, data_of(row)["jobId"]].append(row.seq or 0)
    for (_, job_id), numbers in arrived.items():
        assert numbers == sorted(numbers), f"I4: the deliveries of job {job_id} arrived in the order {numbers}"
    succeeded = Delivery.objects.filter(webhook__url=receiver.url, status=Delivery.Status.DELIVERED)
    lost = set(map(str, succeeded.values_list("pk", flat=True))) - set(receiver.ids)
    assert not lost, f"I4: the deliveries {lost} are recorded as delivered, and did not arrive"


def must_be_delivered(event: Event, webhook: Webhook, allowed: DeliberateChanges) -> bool:
    """Return whether a webhook must get an event. A user who was deactivated at that time may get none."""
    assert event.told_at
    announced = event.told_at.timestamp()
    is_absent = any(
        name == webhook.user.username and began - 1 < announced < ended + 1 for name, began, ended in allowed.absences
    )
    return is_subscribed(webhook, event.status) and webhook.created_at <= event.at and not is_absent


def is_subscribed(webhook: Webhook, status: str) -> bool:
    return webhook.enabled and EVENT_TYPES[JobStatus(status)] in webhook.events
