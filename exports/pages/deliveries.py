"""What was sent to a webhook, as pages show it: a line of the log, one delivery, and how soon it is worth a look."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from exports.models import Delivery, Webhook
from exports.pages.base import ExportsPage
from exports.webhooks import representation, schemas, subscriptions
from exports.webhooks.models import TEST

SOON = timedelta(seconds=15)
LOOK_SOON, LOOK_LATER = 2, 15  # seconds between two looks of a page
NAMES = {
    "export.succeeded": "Export succeeded",
    "export.failed": "Export failed",
    "export.cancelled": "Export cancelled",
    TEST: "Test",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A delivery in a list. `next_at` is none where nothing more is going to be tried; `last` is its newest attempt."""

    delivery: Delivery
    name: str
    is_sending: bool
    next_at: datetime | None
    last: schemas.WebhookAttempt | None

    @property
    def has_ended(self) -> bool:
        return self.delivery.status != Delivery.Status.PENDING

    @property
    def waits(self) -> bool:
        """Whether nothing is tried before a time that a person may not want to wait for."""
        return self.next_at is not None and not self.is_sending and self.next_at > timezone.now()

    @property
    def is_due(self) -> bool:
        """Whether something is going to happen within seconds."""
        return self.is_sending or (self.next_at is not None and self.next_at < timezone.now() + SOON)


def line(delivery: Delivery) -> Line:
    """Wants it read `with_log`."""
    shown = representation.delivery(delivery)
    return Line(
        delivery=delivery,
        name=NAMES.get(delivery.type, delivery.type),
        is_sending=delivery.token is not None,
        next_at=shown["nextAttemptAt"],
        last=shown["log"][-1] if shown["log"] else None,
    )


def look_again(lines: Iterable[Line]) -> int:
    """Return in how many seconds there may be news, 0 for never."""
    waiting = [each for each in lines if each.is_sending or each.next_at]
    if not waiting:
        return 0
    return LOOK_SOON if any(each.is_due for each in waiting) else LOOK_LATER


def last_test(webhook: Webhook) -> Line | None:
    tests = Delivery.objects.filter(webhook=webhook, job=None, seq=None)  # in the words of the unique index
    newest = representation.with_log(tests).order_by("-created_at").first()
    return line(newest) if newest else None


class OneDelivery(ExportsPage):
    """What was sent, and what came of each attempt."""

    template_name = "webhooks/delivery.html"
    fragment_name = "webhooks/_attempts.html"
    title = "Delivery"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        webhook = subscriptions.owned(self.kwargs["webhook_id"], user_id=self.user.pk)
        found = representation.with_log(Delivery.objects.filter(webhook=webhook)).defer(None)
        delivery = found.filter(pk=self.kwargs["delivery_id"]).first()
        if delivery is None:
            raise subscriptions.NoSuchDelivery
        seen = line(delivery)
        return super().get_context_data(
            webhook=webhook, delivery=delivery, line=seen, log=representation.delivery(delivery)["log"],
            seconds=look_again([seen]), headers=headers(delivery), payload=payload(delivery), title=seen.name,
            **context,
        )  # fmt: skip


def payload(delivery: Delivery) -> str:
    """Return the body to be read; it goes out without white space."""
    return json.dumps(json.loads(delivery.body), indent=2, ensure_ascii=False)


def headers(delivery: Delivery) -> dict[str, str]:
    """Return what every attempt carries, as far as it does not change with each."""
    return {
        "Content-Type": "application/json",
        "User-Agent": f"Sluice/{settings.SPECTACULAR_SETTINGS['VERSION']}",
        "webhook-id": str(delivery.pk),
    }
