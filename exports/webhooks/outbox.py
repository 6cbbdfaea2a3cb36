"""Outbox of webhooks: events become deliveries, and old deliveries are deleted."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from rest_framework.renderers import JSONRenderer

from config.platform.db import sql
from exports.webhooks.models import TEST, Delivery

log = structlog.get_logger(__name__)

RETENTION = timedelta(days=30)
PRUNE_BATCH = 500

# A webhook receives no events from before its creation. FOR KEY SHARE waits for a webhook that is being deleted.
ADD = """
INSERT INTO exports_delivery (id, webhook_id, job_id, seq, type, body, status, attempts)
SELECT gen_random_uuid(), w.id, %(job)s, %(seq)s, %(type)s, %(body)s, 'pending', 0
FROM exports_webhook w JOIN auth_user u ON u.id = w.user_id
WHERE w.user_id = %(user)s AND u.is_active AND w.enabled AND %(type)s = ANY(w.events) AND w.created_at <= %(at)s
FOR KEY SHARE OF w
ON CONFLICT (webhook_id, job_id, seq) DO NOTHING
RETURNING id
"""


def add(event_type: str, *, user_id: int, job_id: UUID, seq: int, at: datetime, data: Mapping[str, Any]) -> int:
    """Add a delivery for each of the user's webhooks that subscribes to this type. Returns their number.

    `job_id` and `seq` identify the event: adding it again adds no delivery.
    """
    body = envelope(event_type, at=at, data=data)
    return len(sql.rows(ADD, job=job_id, seq=seq, type=event_type, body=body, user=user_id, at=at))


def envelope(event_type: str, *, at: datetime, data: Mapping[str, Any]) -> str:
    """Return the body by Standard Webhooks, with values rendered as in the API."""
    text: bytes = JSONRenderer().render({"type": event_type, "timestamp": at, "data": data})
    return text.decode()


def due(*, limit: int) -> int:
    """Return how many deliveries are due, `limit` at most."""
    is_free = Q(lease_until=None) | Q(lease_until__lt=Now())
    is_wanted = (Q(webhook__enabled=True) | Q(type=TEST)) & Q(webhook__user__is_active=True)
    found = Delivery.objects.filter(is_free, is_wanted, status=Delivery.Status.PENDING, available_at__lte=Now())
    return len(found.values_list("pk")[:limit])


def prune() -> int:
    """Delete deliveries that are older than 30 days, delivered or not."""
    pruned = sum(iter(prune_batch, 0))
    if pruned:
        log.info("deliveries_pruned", deliveries=pruned)
    return pruned


def prune_batch() -> int:
    """Delete a batch, without deliveries that are being sent, such as the redelivery of an old one."""
    old = Delivery.objects.filter(created_at__lt=Now() - RETENTION, token=None)
    with transaction.atomic():
        batch = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:PRUNE_BATCH])
        Delivery.objects.filter(pk__in=batch).delete()
    return len(batch)
