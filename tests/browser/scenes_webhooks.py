"""Scenes of the webhooks pages: empty, busy, and failed."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.db.models.functions import Now

from config.platform.webhooks import subscriptions
from config.platform.webhooks.models import TEST, EventType
from exports.models import Attempt, Delivery, Webhook
from tests.browser.scenes import Scene

BODY = '{"type":"export.succeeded","timestamp":"2026-03-01T09:30:00Z","data":{"jobId":"4b9c","status":"success"}}'

KINDS = [(EventType.SUCCEEDED, ""), (EventType.DOCUMENT_COMPLETED, "document:17")]


def make(user: User, number: int = 0, **changes: object) -> Webhook:
    webhook = subscriptions.create(
        user_id=user.pk, url=f"https://hooks.example.com/sluice/{number}", events=[EventType.SUCCEEDED.value]
    )
    Webhook.objects.filter(pk=webhook.pk).update(**changes)
    return webhook


def one(user: User) -> None:
    make(user)


def with_deliveries(user: User, *, count: int = 1000) -> None:
    """Create deliveries in every state, each with one attempt."""
    webhook = make(user)
    states = [("delivered", 204, ""), ("failed", 500, ""), ("pending", None, "no response in time")]
    deliveries = Delivery.objects.bulk_create(
        Delivery(
            webhook=webhook, type=KINDS[n % 2][0], subject=KINDS[n % 2][1], body=BODY,
            status=states[n % 3][0], attempts=n % 10 + 1,
            seq=n, available_at=Now() + timedelta(hours=1), created_at=Now() - timedelta(minutes=n),
            finished_at=Now() if n % 3 < 2 else None,
        )
        for n in range(count)
    )  # fmt: skip
    Attempt.objects.bulk_create(
        Attempt(delivery=each, status_code=states[n % 3][1], error=states[n % 3][2], duration_ms=31 + n)
        for n, each in enumerate(deliveries)
    )
    test = Delivery.objects.create(
        webhook=webhook, type=TEST, body=BODY, status="delivered", attempts=1, finished_at=Now()
    )
    Attempt.objects.create(delivery=test, status_code=204, duration_ms=18)


def broken(user: User) -> None:
    with_deliveries(user, count=6)
    Webhook.objects.filter(user=user).update(
        enabled=False, disabled_reason="No delivery has succeeded for three days.", failures=12,
        failing_since=Now() - timedelta(days=3),
    )  # fmt: skip
    Delivery.objects.filter(type=TEST).update(status="failed")
    Attempt.objects.filter(delivery__type=TEST).update(status_code=None, error="no response in time")


def many(user: User) -> None:
    for number in range(99):
        make(user, number)
    make(user, 99, enabled=False, disabled_reason="The endpoint returned 410 Gone.")
    Webhook.objects.filter(url__endswith="7").update(failures=3, failing_since=Now() - timedelta(hours=2))


def path_of(user: User, rest: str = "") -> str:
    return f"/app/webhooks/{Webhook.objects.filter(user=user).latest('created_at').pk}{rest}"


def of_delivery(user: User) -> str:
    delivery = Delivery.objects.filter(webhook__user=user, status="failed").order_by("-created_at").first()
    assert delivery
    return path_of(user, f"/deliveries/{delivery.pk}")


SCENES = [
    Scene(name="webhooks-empty", path=lambda _: "/app/webhooks"),
    Scene(name="webhooks-busy", path=lambda _: "/app/webhooks", prepare=many),
    Scene(name="webhook-empty", path=path_of, prepare=one),
    Scene(name="webhook-busy", path=path_of, prepare=with_deliveries),
    Scene(name="webhook-failed", path=path_of, prepare=broken),
    Scene(name="webhook-delivery", path=of_delivery, prepare=broken),
]
