"""Actions on webhooks and webhook deliveries."""

from typing import Any
from uuid import UUID

from django.urls import reverse

from config.platform.plurals import counted
from config.platform.ui.base import Action
from config.platform.webhooks import subscriptions
from exports.api import rates
from exports.models import Delivery, Webhook
from exports.pages.webhooks import FRESH


class WebhookAction(Action):
    """An action on a webhook. Another user's webhook is a 404 error, even for staff."""

    throttle = rates.ExportThrottle

    def webhook(self, webhook_id: UUID) -> Webhook:
        return subscriptions.owned(webhook_id, user_id=self.user.pk)

    def next_url(self, *, webhook_id: UUID, **_: Any) -> str:
        return reverse("webhook", args=[webhook_id])


class TestWebhook(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.send_test(self.webhook(webhook_id))
        return "Test queued. The result appears below."


class EnableWebhook(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.change(self.webhook(webhook_id), enabled=True)
        return "Webhook enabled. Pending deliveries are sent now."


class DisableWebhook(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.change(self.webhook(webhook_id), enabled=False)
        return (
            "Webhook disabled. Pending deliveries are sent when you enable it again. "
            "Exports and documents that finish in the meantime are not reported."
        )


class RotateSecret(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.rotate_secret(self.webhook(webhook_id))
        self.request.session[FRESH] = str(webhook_id)
        return "Secret rotated. Requests are also signed with the old secret for 24 hours."


class DeleteWebhook(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.delete(self.webhook(webhook_id))
        return "Webhook deleted with its delivery log."

    def next_url(self, **_: Any) -> str:
        return "webhooks"


class RedeliverFailedDeliveries(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        count = subscriptions.redeliver_failed(self.webhook(webhook_id))
        if not count:
            return "There are no failed deliveries to resend."
        return f"{counted(count, 'failed delivery', 'failed deliveries')} queued."


class RedeliverDelivery(WebhookAction):
    def act(self, *, webhook_id: UUID, delivery_id: UUID) -> str:
        delivery = subscriptions.delivery_of(self.webhook(webhook_id), delivery_id)
        was_pending = delivery.status == Delivery.Status.PENDING
        subscriptions.redeliver(delivery)
        if was_pending:
            return "Delivery queued now. Earlier attempts still count."
        return "Delivery queued again with the same ID and payload."

    def next_url(self, *, webhook_id: UUID, **rest: Any) -> str:
        return reverse("delivery", args=[webhook_id, rest["delivery_id"]])
