"""Buttons of webhooks and deliveries."""

from typing import Any
from uuid import UUID

from django.urls import reverse

from config.pages.base import Action
from exports import rates, representation, webhooks
from exports.models import Delivery
from exports.pages.deliveries import mine
from exports.pages.webhooks import FRESH


class WebhookAction(Action):
    throttle = rates.PerUser

    def then(self, *, webhook_id: UUID, **_: Any) -> str:
        return reverse("webhook", args=[webhook_id])


class Test(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        webhooks.ping(mine(self.user, webhook_id))
        return "A test is on its way. What comes of it is shown below."


class Enable(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        webhooks.change(mine(self.user, webhook_id), enabled=True)
        return "The webhook is enabled: what waited goes out now."


class Disable(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        webhooks.change(mine(self.user, webhook_id), enabled=False)
        return "The webhook is disabled. What waits goes out when you enable it again; what ends meanwhile is not told."


class NewSecret(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        webhooks.rotate_secret(mine(self.user, webhook_id))
        self.request.session[FRESH] = str(webhook_id)
        return "There is a new secret. The old one signs too for 24 hours, so that you can change over."


class Delete(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        webhooks.delete(mine(self.user, webhook_id))
        return "The webhook is deleted, with all that was sent to it, and was to be."

    def then(self, **_: Any) -> str:
        return "webhooks"


class RedeliverFailed(WebhookAction):
    def act(self, *, webhook_id: UUID) -> str:
        again = webhooks.redeliver_failed(mine(self.user, webhook_id))
        if not again:
            return "Nothing has failed: there is nothing to be sent again."
        return f"{again:,} {'delivery is' if again == 1 else 'deliveries are'} sent again, one after the other."


class Redeliver(WebhookAction):
    def act(self, *, webhook_id: UUID, delivery_id: UUID) -> str:
        sent = Delivery.objects.filter(webhook=mine(self.user, webhook_id))
        found = representation.with_log(sent).filter(pk=delivery_id).first()
        if found is None:
            raise webhooks.NoSuchDelivery
        waited = found.status == Delivery.Status.PENDING
        webhooks.redeliver(found)
        if waited:
            return "It is sent now. The attempts that it had count."
        return "It is sent again, with the same id and the same content."

    def then(self, *, webhook_id: UUID, **rest: Any) -> str:
        return reverse("delivery", args=[webhook_id, rest["delivery_id"]])
