"""Buttons of webhooks and deliveries."""

from typing import Any
from uuid import UUID

from django.urls import reverse

from config.platform.ui.base import Action
from exports.api import rates
from exports.models import Delivery, Webhook
from exports.pages.webhooks import FRESH
from exports.webhooks import subscriptions


class WebhookAction(Action):
    """A button of a webhook. A stranger's webhook is 404, to staff too."""

    throttle = rates.PerUser

    def webhook(self, webhook_id: UUID) -> Webhook:
        return subscriptions.owned(webhook_id, user_id=self.user.pk)

    def then(self, *, webhook_id: UUID, **_: Any) -> str:
        return reverse("webhook", args=[webhook_id])


class Test(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.send_test(self.webhook(webhook_id))
        return "A test is on its way. What comes of it is shown below."


class Enable(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.change(self.webhook(webhook_id), enabled=True)
        return "The webhook is enabled: what waited goes out now."


class Disable(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.change(self.webhook(webhook_id), enabled=False)
        return "The webhook is disabled. What waits goes out when you enable it again; what ends meanwhile is not told."


class NewSecret(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.rotate_secret(self.webhook(webhook_id))
        self.request.session[FRESH] = str(webhook_id)
        return "There is a new secret. The old one signs too for 24 hours, so that you can change over."


class Delete(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        subscriptions.delete(self.webhook(webhook_id))
        return "The webhook is deleted, with all that was sent to it, and was to be."

    def then(self, **_: Any) -> str:
        return "webhooks"


class RedeliverFailed(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        again = subscriptions.redeliver_failed(self.webhook(webhook_id))
        if not again:
            return "Nothing has failed: there is nothing to be sent again."
        return f"{again:,} {'delivery is' if again == 1 else 'deliveries are'} sent again, one after the other."


class Redeliver(WebhookAction):
    def act(self, *, webhook_id: UUID, delivery_id: UUID) -> str:
        found = subscriptions.delivery_of(self.webhook(webhook_id), delivery_id)
        waited = found.status == Delivery.Status.PENDING
        subscriptions.redeliver(found)
        if waited:
            return "It is sent now. The attempts that it had count."
        return "It is sent again, with the same id and the same content."

    def then(self, *, webhook_id: UUID, **rest: Any) -> str:
        return reverse("delivery", args=[webhook_id, rest["delivery_id"]])
