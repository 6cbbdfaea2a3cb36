"""Webhook deliveries on pages: rows of the delivery log, the page of one delivery, and polling intervals."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import NoReverseMatch, reverse

from config.platform.db import clock
from config.platform.http.audit import CHANGES
from config.platform.http.outbound.client import user_agent
from config.platform.http.problems import require_first
from config.platform.webhooks import representation, schemas, subscriptions
from config.platform.webhooks.models import TEST
from exports.models import Delivery, Webhook
from exports.pages.base import ExportsPage

SOON = timedelta(seconds=15)
POLL_SOON, POLL_LATER = 2, 15  # seconds
NAMES = {
    "export.succeeded": "Export ready",
    "export.failed": "Export failed",
    "export.cancelled": "Export cancelled",
    "document.completed": "Document completed",
    "document.failed": "Document failed",
    "batch.completed": "Batch completed",
    TEST: "Test",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery in a list. `next_at` is None if no attempt is scheduled; `last` is the newest attempt."""

    delivery: Delivery
    name: str
    is_sending: bool
    next_at: datetime | None
    last: schemas.WebhookAttempt | None

    @property
    def has_ended(self) -> bool:
        return self.delivery.status != Delivery.Status.PENDING

    @property
    def status(self) -> str:
        if self.has_ended:
            return self.delivery.status
        return "running" if self.is_sending else "retrying" if self.delivery.attempts else "pending"

    @property
    def subject(self) -> tuple[str, str] | None:
        """Return the name and the page URL of the event's export, document, or batch, or None if it has no page."""
        if self.delivery.job_id:
            return f"export {str(self.delivery.job_id)[:8]}", reverse("export", args=[self.delivery.job_id])
        kind, _, name = self.delivery.subject.partition(":")
        if kind == "export":  # the job was purged
            return None
        try:
            return f"{kind} {name[:8]}", reverse(kind, args=[name])
        except NoReverseMatch:
            return None

    @property
    def waits(self) -> bool:
        """Return whether the next attempt is scheduled for later, so that "Send now" is useful."""
        return self.next_at is not None and self.next_at > clock.now()

    @property
    def is_due(self) -> bool:
        """Return whether an attempt is running or starts within seconds."""
        return self.is_sending or (self.next_at is not None and self.next_at < clock.now() + SOON)


def row_of(delivery: Delivery) -> DeliveryRow:
    """Return the row of a delivery that was read `with_log`."""
    shown = representation.delivery(delivery)
    return DeliveryRow(
        delivery=delivery,
        name=NAMES.get(delivery.type, delivery.type),
        is_sending=delivery.token is not None,
        next_at=shown["nextAttemptAt"],
        last=shown["log"][-1] if shown["log"] else None,
    )


def poll_seconds(rows: Iterable[DeliveryRow]) -> int:
    """Return the polling interval of a page in seconds, or 0 to stop polling."""
    waiting = [each for each in rows if each.is_sending or each.next_at]
    if not waiting:
        return 0
    return POLL_SOON if any(each.is_due for each in waiting) else POLL_LATER


def last_test(webhook: Webhook) -> DeliveryRow | None:
    tests = Delivery.objects.filter(webhook=webhook, job=None, seq=None)  # the columns of the unique index
    newest = representation.with_log(tests).order_by("-created_at").first()
    return row_of(newest) if newest else None


class DeliveryPage(ExportsPage):
    """The page of one delivery: payload, headers, and attempts."""

    audited = CHANGES
    template_name = "webhooks/delivery.html"
    fragment_name = "webhooks/_attempts.html"
    title = "Delivery"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        webhook = subscriptions.owned(self.kwargs["webhook_id"], user_id=self.user.pk)
        found = representation.with_log(Delivery.objects.filter(webhook=webhook)).defer(None)
        delivery = require_first(found.filter(pk=self.kwargs["delivery_id"]), subscriptions.NoSuchDelivery)
        row = row_of(delivery)
        return super().get_context_data(
            webhook=webhook, delivery=delivery, row=row, log=representation.delivery(delivery)["log"],
            seconds=poll_seconds([row]), headers=headers(delivery), payload=payload(delivery), title=row.name,
            **context,
        )  # fmt: skip


def payload(delivery: Delivery) -> str:
    """Return the body with line breaks and indentation. It is sent without them."""
    return json.dumps(json.loads(delivery.body), indent=2, ensure_ascii=False)


def headers(delivery: Delivery) -> dict[str, str]:
    """Return the headers that are the same for every attempt."""
    return {
        "Content-Type": "application/json",
        "User-Agent": user_agent(),
        "webhook-id": str(delivery.pk),
    }
