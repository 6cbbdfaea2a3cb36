"""Admin of webhooks and webhook deliveries.

It shows no signing secrets, and only the host of a URL, because many services put a secret into the path.
"""

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import StaffAction, StaffActionAdmin, change
from config.platform.admin.display import badge, date_or_age, exact_time, list_of, number, page_of, short, shown
from config.platform.db import clock
from config.platform.http import staff
from config.platform.ui.templatetags.pages import ago, milliseconds
from config.platform.webhooks import subscriptions
from config.platform.webhooks.models import TEST
from exports.admin.columns import of_job
from exports.admin.filters import ByEvent, OfJob
from exports.admin.staff_actions import end_time
from exports.models import Delivery, Webhook

NEWEST = 50  # number of attempts on a delivery's page
ID = shown("id", short, "ID")
FAILURES = shown("failures", number, "failures in a row")


# ---- Enabling -------------------------------------------------------------------------------------------------------
ENABLING = (
    StaffAction(
        name="enable",
        label="Enable",
        past="Enabled",
        icon="play_arrow",
        permission="exports.change_webhook",
        explanation="Resets the failure count and sends pending deliveries.",
        refusal=lambda webhook: "Already enabled." if webhook.enabled else "",
        do=change(partial(subscriptions.change, enabled=True), "Pending deliveries are sent."),
        revision=lambda webhook: str(webhook.enabled),
    ),
    StaffAction(
        name="disable",
        label="Disable",
        past="Disabled",
        icon="pause",
        permission="exports.change_webhook",
        explanation="Stops sending. Pending deliveries are kept and sent when the webhook is enabled again.",
        refusal=lambda webhook: "" if webhook.enabled else "Already disabled.",
        do=change(partial(subscriptions.change, enabled=False), "No more deliveries are sent."),
        revision=lambda webhook: str(webhook.enabled),
        is_danger=True,
    ),
)


@admin.register(Webhook)
class WebhookAdmin(StaffActionAdmin):
    row_actions = ENABLING
    list_display = (ID, "host", "state", "user", "events", FAILURES, date_or_age("created_at"), "sent")
    list_filter = ("enabled", "created_at")
    list_select_related = ("user",)
    search_fields = ("id", "user__username")
    search_help_text = "Webhook ID or its first 8 digits, or exact username"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (("host", "state"), "disabled_reason", ("user", "events"), "sent")}),
        ("Failures", {"fields": ((FAILURES, exact_time("failing_since")),)}),
        (
            "Times",
            {"fields": ((exact_time("created_at"), exact_time("updated_at")), exact_time("old_secret_until"))},
        ),
    )

    @admin.display(description="host")
    def host(self, webhook: Webhook) -> str:
        return str(urlsplit(webhook.url).hostname)

    @admin.display(description="status")
    def state(self, webhook: Webhook) -> str:
        return badge("enabled" if webhook.enabled else "disabled")

    @admin.display(description="events")
    def events(self, webhook: Webhook) -> str:
        return ", ".join(webhook.events)

    @admin.display(description="related")
    def sent(self, webhook: Webhook) -> SafeString:
        return list_of("delivery", "Webhook deliveries", {"webhook__id__exact": webhook.pk})


# ---- Deliveries -----------------------------------------------------------------------------------------------------
def resend_refusal(delivery: Delivery) -> str:
    if delivery.status != Delivery.Status.PENDING:
        return disabled_refusal(delivery)
    return "It waits for its next attempt. Use “Send now”." if waits(delivery) else subscriptions.DeliveryPending.detail


def send_now_refusal(delivery: Delivery) -> str:
    if delivery.status != Delivery.Status.PENDING:
        return "Already ended. Use “Send again”."
    return disabled_refusal(delivery) or ("" if waits(delivery) else subscriptions.DeliveryPending.detail)


def waits(delivery: Delivery) -> bool:
    """Return whether the next attempt is due later."""
    return delivery.token is None and delivery.available_at > clock.now()


def disabled_refusal(delivery: Delivery) -> str:
    is_disabled = not delivery.webhook.enabled and delivery.type != TEST
    return subscriptions.WebhookDisabled.detail if is_disabled else ""


DELIVERIES = (
    StaffAction(
        name="redeliver",
        label="Send again",
        past="Sent again",
        icon="replay",
        permission="exports.change_delivery",
        explanation="Sends the same payload again with the same webhook-id and a full set of attempts.",
        refusal=resend_refusal,
        do=change(subscriptions.redeliver, "Queued with a full set of attempts."),
        revision=end_time,
    ),
    StaffAction(
        name="send-now",
        label="Send now",
        past="Sent",
        icon="send",
        permission="exports.change_delivery",
        explanation="Starts the next attempt now instead of at its scheduled time. Earlier attempts count.",
        refusal=send_now_refusal,
        do=change(subscriptions.redeliver, "Queued now. Earlier attempts count."),
        revision=lambda delivery: f"{end_time(delivery)} {delivery.attempts}",
    ),
)


@admin.register(Delivery)
class DeliveryAdmin(StaffActionAdmin):
    row_actions = DELIVERIES
    list_display = (
        ID, "state", "type", of_job, "subject", "of_webhook", "attempts",
        date_or_age("created_at"), date_or_age("finished_at"),
    )  # fmt: skip
    list_filter = (OfJob, "status", ByEvent, "created_at", "finished_at")
    unindexed = frozenset({"type", "finished_at", "status__exact=delivered", "status__exact=failed"})
    indexed = frozenset({"job"})
    search_fields = ("id",)
    search_help_text = "Delivery ID (the webhook-id header) or its first 8 digits"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (("id", "type"), ("state", "attempts"), (of_job, "subject", "of_webhook"))}),
        ("Attempts", {"fields": ("log",)}),
        ("Times", {"fields": ((exact_time("created_at"), exact_time("finished_at")), exact_time("available_at"))}),
        ("Body", {"classes": ("collapse",), "fields": ("body",)}),
        ("Lease", {"classes": ("collapse",), "fields": (("token", exact_time("lease_until")),)}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Show the body only to staff who may open data."""
        fieldsets = list(super().get_fieldsets(request, obj))
        may_open = request.user.has_perm(staff.OPEN_DATA)
        return [each for each in fieldsets if may_open or each[0] != "Body"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer the bodies, which may be large."""
        return super().get_queryset(request).select_related("webhook").defer("body")  # type: ignore[no-any-return]

    @admin.display(description="status")
    def state(self, delivery: Delivery) -> str:
        return badge("sending" if delivery.token else delivery.status)

    @admin.display(description="webhook")
    def of_webhook(self, delivery: Delivery) -> SafeString:
        return page_of("webhook", delivery.webhook_id, short(delivery.webhook_id))

    @admin.display(description="log")
    def log(self, delivery: Delivery) -> SafeString:
        """Return the newest attempts, newest first. After many redeliveries, the whole log would be very long."""
        lines = (
            (ago(each.at), each, milliseconds(each.duration_ms))
            for each in delivery.log.order_by("-at", "-id")[:NEWEST]
        )
        rows = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", lines)
        head = SafeString("<tr><th>Time</th><th>Response</th><th>Duration</th></tr>")
        return format_html('<table class="log">{}{}</table>', head, rows) if rows else SafeString("No attempts yet.")
