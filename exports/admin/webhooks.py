"""Webhooks, what was sent to them, and what staff do about it: send again, switch off and on. Where one leads is shown
by its host alone, as many services put a secret into the path; the secret that signs is not shown at all."""

from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import Asking, Verb, WithVerbs, each
from config.platform.admin.display import ago, badge, instant, list_of, moment, number, page_of, short
from exports.admin.filters import ByEvent, OfJob
from exports.admin.staff_actions import when_ended
from exports.models import Delivery, Webhook
from exports.webhooks import subscriptions
from exports.webhooks.models import TEST

NEWEST = 50  # attempts that a delivery's page shows


# ---- Switching ------------------------------------------------------------------------------------------------------
def enable(webhook: Webhook, _asking: Asking) -> str:
    subscriptions.change(webhook, enabled=True)
    return "What waits goes out."


def disable(webhook: Webhook, _asking: Asking) -> str:
    subscriptions.change(webhook, enabled=False)
    return "Nothing more is sent to it."


SWITCHES = (
    Verb(
        name="enable",
        label="Enable",
        past="Enabled",
        icon="play_arrow",
        permission="exports.change_webhook",
        explanation="What failed is forgotten, and what waits goes out.",
        why_not=lambda webhook: "It is enabled." if webhook.enabled else "",
        do=each(enable),
        mark=lambda webhook: str(webhook.enabled),
    ),
    Verb(
        name="disable",
        label="Disable",
        past="Disabled",
        icon="pause",
        permission="exports.change_webhook",
        explanation="Nothing more is sent to it. What waits goes on waiting, and goes out when it is enabled again.",
        why_not=lambda webhook: "" if webhook.enabled else "It is disabled.",
        do=each(disable),
        mark=lambda webhook: str(webhook.enabled),
        is_danger=True,
    ),
)


@admin.register(Webhook)
class WebhookAdmin(WithVerbs):
    verbs = SWITCHES
    list_display = ("name", "host", "state", "user", "told_of", "failed_in_a_row", moment("created_at"), "sent")
    list_filter = ("enabled", "created_at")
    list_select_related = ("user",)
    search_fields = ("id", "user__username")
    search_help_text = "A whole webhook id, or a whole user name"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (("host", "state"), "disabled_reason", ("user", "told_of"), "sent")}),
        ("Failures", {"fields": (("failed_in_a_row", instant("failing_since")),)}),
        (
            "Times",
            {"fields": ((instant("created_at"), instant("updated_at")), instant("old_secret_until"))},
        ),
    )

    @admin.display(description="webhook")
    def name(self, webhook: Webhook) -> str:
        return short(webhook.pk)

    @admin.display(description="host")
    def host(self, webhook: Webhook) -> str:
        return str(urlsplit(webhook.url).hostname)

    @admin.display(description="state")
    def state(self, webhook: Webhook) -> str:
        return badge("enabled" if webhook.enabled else "disabled")

    @admin.display(description="told of")
    def told_of(self, webhook: Webhook) -> str:
        return ", ".join(event.removeprefix("export.") for event in webhook.events)

    @admin.display(description="failures in a row")
    def failed_in_a_row(self, webhook: Webhook) -> str:
        return number(webhook.failures)

    @admin.display(description="sent")
    def sent(self, webhook: Webhook) -> SafeString:
        return list_of("delivery", "Deliveries", {"webhook__id__exact": webhook.pk})


# ---- Deliveries -----------------------------------------------------------------------------------------------------
def why_not_send_again(delivery: Delivery) -> str:
    return subscriptions.DeliveryPending.detail if delivery.status == Delivery.Status.PENDING else why_deaf(delivery)


def why_not_send_now(delivery: Delivery) -> str:
    if delivery.status != Delivery.Status.PENDING:
        return "It has ended. Send it again."
    waits = delivery.token is None and delivery.available_at > timezone.now()
    return why_deaf(delivery) if waits else subscriptions.DeliveryPending.detail


def why_deaf(delivery: Delivery) -> str:
    is_deaf = not delivery.webhook.enabled and delivery.type != TEST
    return subscriptions.WebhookDisabled.detail if is_deaf else ""


def send_again(delivery: Delivery, _asking: Asking) -> str:
    subscriptions.redeliver(delivery)
    return "The same bytes, with all its attempts."


def send_now(delivery: Delivery, _asking: Asking) -> str:
    subscriptions.redeliver(delivery)
    return "It does not wait any longer. The attempts that it had count."


DELIVERIES = (
    Verb(
        name="redeliver",
        label="Send again",
        past="Sent again",
        icon="replay",
        permission="exports.change_delivery",
        explanation="The same bytes go out once more under the same webhook-id, with all their attempts.",
        why_not=why_not_send_again,
        do=each(send_again),
        mark=when_ended,
    ),
    Verb(
        name="send-now",
        label="Send now",
        past="Sent",
        icon="send",
        permission="exports.change_delivery",
        explanation="What waits for its next attempt is tried at once, without waiting for its time. The attempts "
        "that it had count.",
        why_not=why_not_send_now,
        do=each(send_now),
        mark=lambda delivery: f"{when_ended(delivery)} {delivery.attempts}",
    ),
)


@admin.register(Delivery)
class DeliveryAdmin(WithVerbs):
    verbs = DELIVERIES
    list_display = (
        "name", "state", "type", "of_job", "of_webhook", "attempts", moment("created_at"), moment("finished_at"),
    )  # fmt: skip
    list_filter = (OfJob, "status", ByEvent, "created_at", "finished_at")
    search_fields = ("id",)
    search_help_text = "A whole delivery id (the receiver's webhook-id)"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (("id", "type"), ("state", "attempts"), ("of_job", "of_webhook"))}),
        ("Attempts", {"fields": ("log",)}),
        ("Times", {"fields": ((instant("created_at"), instant("finished_at")), instant("available_at"))}),
        ("Body", {"classes": ("collapse",), "fields": ("body",)}),
        ("Lease", {"classes": ("collapse",), "fields": (("token", instant("lease_until")),)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Lists leave the bodies out."""
        return super().get_queryset(request).select_related("webhook").defer("body")  # type: ignore[no-any-return]

    @admin.display(description="delivery")
    def name(self, delivery: Delivery) -> str:
        return short(delivery.pk)

    @admin.display(description="status")
    def state(self, delivery: Delivery) -> str:
        return badge("sending" if delivery.token else delivery.status)

    @admin.display(description="job")
    def of_job(self, delivery: Delivery) -> SafeString | None:
        return page_of("job", delivery.job_id, short(delivery.job_id)) if delivery.job_id else None

    @admin.display(description="webhook")
    def of_webhook(self, delivery: Delivery) -> SafeString:
        return page_of("webhook", delivery.webhook_id, short(delivery.webhook_id))

    @admin.display(description="log")
    def log(self, delivery: Delivery) -> SafeString:
        """The newest attempts, the last one first: whoever has the same sent again and again makes an endless log."""
        lines = (
            (ago(each.at), each, number(each.duration_ms)) for each in delivery.log.order_by("-at", "-id")[:NEWEST]
        )
        rows = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{} ms</td></tr>", lines)
        head = SafeString("<tr><th>when</th><th>answer</th><th>took</th></tr>")
        return format_html('<table class="log">{}{}</table>', head, rows) if rows else SafeString("None yet.")
