"""Outbox of webhooks: turns events into deliveries, and deletes old deliveries.

Producers call `publish` in the transaction of the change that the event reports. Exports store their events in that
transaction, and call `add` for them later.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from rest_framework.renderers import JSONRenderer

from config.platform.db import sql
from config.platform.webhooks.models import TEST, Delivery
from config.platform.webhooks.wakeups import wake_senders

log = structlog.get_logger(__name__)

RETENTION = timedelta(days=30)
PRUNE_BATCH = 500

# A webhook receives no job events from before its creation. Other events are inserted as they happen, and their time
# may be that of another clock. FOR KEY SHARE waits for a webhook that is being deleted. A conflict of either unique
# key, that of jobs or that of other subjects, means that the delivery exists.
ADD = """
INSERT INTO exports_delivery (id, webhook_id, job_id, subject, seq, type, body, status, attempts)
SELECT gen_random_uuid(), w.id, %(job)s, %(subject)s, %(seq)s, %(type)s, %(body)s, 'pending', 0
FROM exports_webhook w JOIN auth_user u ON u.id = w.user_id
WHERE w.user_id = %(user)s AND u.is_active AND w.enabled AND %(type)s = ANY(w.events)
  AND (%(job)s::uuid IS NULL OR w.created_at <= %(at)s)
FOR KEY SHARE OF w
ON CONFLICT DO NOTHING
RETURNING id
"""


def publish(event_type: str, *, user_id: int, subject: str, seq: int, at: datetime, data: Mapping[str, Any]) -> int:
    """Add the deliveries of an event, and wake workers to send them after the commit. Return their number.

    Call it in the transaction that writes the final state, after the UPDATE whose row count shows that this process
    made the change. Then the final state and its event are always committed together. `etl.pipeline.completion.write`
    is an example.

    `subject`: a kind and an ID, such as `batch:7`, in at most 64 characters. The kind is the URL name of its page,
    which the delivery log links to. `seq`: increases with each event of a subject. A webhook receives the events of one
    subject in this order. Publishing the same subject and number again adds no delivery. `data`: the current state, in
    the format of the API's `GET`. A delivery never reads the subject again.
    """
    added = add(event_type, user_id=user_id, subject=subject, seq=seq, at=at, data=data)
    if added:
        transaction.on_commit(partial(wake_senders, waiting=added))
    return added


def add(
    event_type: str,
    *,
    user_id: int,
    job_id: UUID | None = None,
    subject: str = "",
    seq: int,
    at: datetime,
    data: Mapping[str, Any],
) -> int:
    """Add a delivery for each of the user's webhooks that subscribes to this type. Return their number.

    The caller sends them or wakes workers.
    """
    body = envelope(event_type, at=at, data=data)
    return len(
        sql.rows(ADD, job=job_id, subject=subject, seq=seq, type=str(event_type), body=body, user=user_id, at=at)
    )


def envelope(event_type: str, *, at: datetime, data: Mapping[str, Any]) -> str:
    """Return the body as defined by Standard Webhooks, with values rendered as in the API."""
    text: bytes = JSONRenderer().render({"type": event_type, "timestamp": at, "data": data})
    return text.decode()


def due(*, limit: int) -> int:
    """Return the number of due deliveries, at most `limit`."""
    is_free = Q(lease_until=None) | Q(lease_until__lt=Now())
    is_enabled = (Q(webhook__enabled=True) | Q(type=TEST)) & Q(webhook__user__is_active=True)
    found = Delivery.objects.filter(is_free, is_enabled, status=Delivery.Status.PENDING, available_at__lte=Now())
    return len(found.values_list("pk")[:limit])


def prune() -> int:
    """Delete deliveries that are older than 30 days, delivered or not."""
    pruned = sum(iter(prune_batch, 0))
    if pruned:
        log.info("deliveries_pruned", deliveries=pruned)
    return pruned


def prune_batch() -> int:
    """Delete a batch. Skip deliveries that are being sent, such as redeliveries of old ones."""
    old = Delivery.objects.filter(created_at__lt=Now() - RETENTION, token=None)
    with transaction.atomic():
        batch = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:PRUNE_BATCH])
        Delivery.objects.filter(pk__in=batch).delete()
    return len(batch)
