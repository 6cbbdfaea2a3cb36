"""Webhooks, what was sent to them, and what staff do about it: send again, switch off and on. Where one leads is shown
by its host alone, as many services put a secret into the path; the secret that signs is not shown at all."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import ActionDialog
from unfold.decorators import action
from unfold.enums import ActionVariant

from config.admin.display import badge, list_of, moment, number, page_of, short
from config.admin.lists import ReadOnly, as_uuid
from exports import webhooks
from exports.admin.filters import OfJob
from exports.models import Delivery, Webhook


def confirm(title: str, description: str, button: str) -> ActionDialog:
    return ActionDialog(title=title, description=description, form_class=None, form_submit_text=button)


def back_to(request: HttpRequest, page: str, pk: object) -> HttpResponse:
    """Go back to a row's page: htmx, which sends the dialog's form, would put an ordinary redirect into the dialog."""
    url = reverse(f"admin:exports_{page}_change", args=[pk])
    return HttpResponse(headers={"HX-Redirect": url}) if "HX-Request" in request.headers else redirect(url)


def changed(webhook: Webhook, *, enabled: bool) -> bool:
    """Tell whether it was switched: its owner may have deleted it meanwhile."""
    try:
        webhooks.change(webhook, enabled=enabled)
    except webhooks.NoSuchWebhook:
        return False
    return True


@admin.register(Webhook)
class WebhookAdmin(ReadOnly):
    list_display = ("name", "host", "state", "user", "told_of", "failed_in_a_row", moment("created_at"), "sent")
    list_filter = ("enabled", "created_at")
    list_select_related = ("user",)
    search_fields = ("id", "user__username")
    search_help_text = "A whole webhook id, or a whole user name"
    ordering = ("-created_at", "-id")
    actions = ("enable_selected", "disable_selected")
    actions_detail = ("enable", "disable")
    fieldsets = (
        (None, {"fields": (("host", "state"), "disabled_reason", ("user", "told_of"), "sent")}),
        ("Failures", {"fields": (("failed_in_a_row", moment("failing_since")),)}),
        (
            "Times",
            {"fields": ((moment("created_at"), moment("updated_at")), moment("old_secret_until"))},
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

    # ---- Switching ----
    def has_switch_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("exports.change_webhook")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """One button: the way it is not."""
        pk = as_uuid(object_id)
        webhook = Webhook.objects.filter(pk=pk).first() if pk else None
        if webhook is None:
            return []
        fitting = "disable" if webhook.enabled else "enable"
        return [each for each in super().get_actions_detail(request, object_id) if each.path == fitting]

    @action(  # type: ignore[untyped-decorator]
        description="Enable",
        icon="play_arrow",
        variant=ActionVariant.PRIMARY,
        permissions=["switch"],
        dialog=confirm("Enable this webhook?", "What failed is forgotten, and what waits goes out.", "Enable"),
    )
    def enable(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        return self.switch_one(request, object_id, enabled=True)

    @action(  # type: ignore[untyped-decorator]
        description="Disable",
        icon="pause",
        permissions=["switch"],
        dialog=confirm("Disable this webhook?", "Nothing more is sent to it. What waits goes on waiting.", "Disable"),
    )
    def disable(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        return self.switch_one(request, object_id, enabled=False)

    def switch_one(self, request: HttpRequest, object_id: str, *, enabled: bool) -> HttpResponse:
        """Reached by POST alone: unfold answers GET with the dialog, and comes here when its form was sent."""
        webhook = get_object_or_404(Webhook, pk=as_uuid(object_id))
        self.switch(request, [webhook], enabled=enabled)
        return back_to(request, "webhook", webhook.pk)

    @admin.action(description="Enable", permissions=["switch"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Webhook]) -> None:
        self.switch(request, queryset, enabled=True)

    @admin.action(description="Disable", permissions=["switch"])
    def disable_selected(self, request: HttpRequest, queryset: QuerySet[Webhook]) -> None:
        self.switch(request, queryset, enabled=False)

    def switch(self, request: HttpRequest, among: Iterable[Webhook], *, enabled: bool) -> None:
        """Switch those that are not so already, and put it on record."""
        said = "Enabled" if enabled else "Disabled"
        others = [webhook for webhook in among if webhook.enabled != enabled and changed(webhook, enabled=enabled)]
        for webhook in others:
            self.log_change(request, webhook, f"{said}.")
        level = messages.SUCCESS if others else messages.WARNING
        self.message_user(request, f"{said} {len(others)} webhook{'s' * (len(others) != 1)}.", level)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnly):
    list_display = (
        "name", "state", "type", "of_job", "of_webhook", "attempts", moment("created_at"), moment("finished_at"),
    )  # fmt: skip
    list_filter = (OfJob, "status", "type", "created_at")
    search_fields = ("id",)
    search_help_text = "A whole delivery id (the receiver's webhook-id)"
    ordering = ("-created_at", "-id")
    actions = ("redeliver_selected",)
    actions_detail = ("redeliver",)
    fieldsets = (
        (None, {"fields": (("id", "type"), ("state", "attempts"), ("of_job", "of_webhook"))}),
        ("Attempts", {"fields": ("log",)}),
        ("Times", {"fields": ((moment("created_at"), moment("finished_at")), moment("available_at"))}),
        ("Body", {"classes": ("collapse",), "fields": ("body",)}),
        ("Lease", {"classes": ("collapse",), "fields": (("token", moment("lease_until")),)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("webhook")  # type: ignore[no-any-return]

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
        lines = (
            (f"{timezone.localtime(each.at):%Y-%m-%d %H:%M:%S}", each, number(each.duration_ms))
            for each in delivery.log.order_by("at", "id")
        )
        return format_html_join(SafeString("<br>"), "{} &nbsp; {} &nbsp; {} ms", lines) or SafeString("None yet.")

    # ---- Redelivery ----
    def has_redeliver_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("exports.change_delivery")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """The button is there when the delivery has ended."""
        pk = as_uuid(object_id)
        if pk is None or not Delivery.objects.exclude(status=Delivery.Status.PENDING).filter(pk=pk).exists():
            return []
        return list(super().get_actions_detail(request, object_id))

    @action(  # type: ignore[untyped-decorator]
        description="Send again",
        icon="replay",
        variant=ActionVariant.PRIMARY,
        permissions=["redeliver"],
        dialog=confirm(
            "Send this once more?", "The same bytes under the same webhook-id, with all its attempts.", "Send again"
        ),
    )
    def redeliver(self, request: HttpRequest, form: Form, object_id: str) -> HttpResponse:
        """Reached by POST alone."""
        delivery = get_object_or_404(Delivery.objects.select_related("webhook"), pk=as_uuid(object_id))
        self.send_again(request, [delivery])
        return back_to(request, "delivery", delivery.pk)

    @admin.action(description="Send again", permissions=["redeliver"])
    def redeliver_selected(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        self.send_again(request, queryset.select_related("webhook"))

    def send_again(self, request: HttpRequest, among: Iterable[Delivery]) -> None:
        outcomes = [self.send_one_again(request, delivery) for delivery in among]
        again = outcomes.count(True)
        said = f"{again} deliver{'y goes' if again == 1 else 'ies go'} out again."
        if others := len(outcomes) - again:
            said += f" {others} had not ended, or {'its webhook is' if others == 1 else 'their webhooks are'} disabled."
        self.message_user(request, said, messages.SUCCESS if again else messages.WARNING)

    def send_one_again(self, request: HttpRequest, delivery: Delivery) -> bool:
        try:
            webhooks.redeliver(delivery)
        except (webhooks.DeliveryPending, webhooks.WebhookDisabled, webhooks.NoSuchDelivery):
            return False
        self.log_change(request, delivery, "Sent again.")
        return True
