"""Pages of a user's webhooks: the list, and each webhook with its settings and deliveries."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect

from config.platform.http.audit import CHANGES
from config.platform.http.problems import Problem
from config.platform.ui.base import Listing, is_htmx, show_in, validated
from config.platform.webhooks import representation, subscriptions, url_guard
from config.platform.webhooks.models import EventType
from exports.api.webhook_serializers import NewWebhookSerializer, WebhookChangeSerializer
from exports.models import Delivery, Webhook
from exports.pages import deliveries
from exports.pages.base import ExportsPage
from exports.pages.deliveries import NAMES

FRESH = "webhook_with_fresh_secret"  # session key: the webhook whose secret the next page shows, once
STATUSES = {"": "All", "pending": "Pending", "delivered": "Delivered", "failed": "Failed"}
EVENTS = [(hook.value, NAMES[hook.value]) for hook in EventType]


class WebhookForm(forms.Form):
    """The form for a webhook. The API's serializer validates it."""

    url = forms.CharField(
        label="URL", required=False, widget=forms.URLInput({"placeholder": "https://example.com/hooks", "size": 48}),
    )  # fmt: skip
    events = forms.MultipleChoiceField(
        label="Events", required=False, choices=EVENTS, widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, data: QueryDict | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["url"].help_text = f"Receives a signed JSON POST request per event. {allowed_urls()}"
        self.sent = data or QueryDict()

    def body(self) -> dict[str, Any]:
        return {"url": self.sent.get("url", "").strip(), "events": self.sent.getlist("events")}

    def refuse(self, problem: Problem) -> None:
        self.is_valid()  # Django requires it before add_error
        show_in(self, problem, fields=lambda pointer: pointer.split("/")[1] if pointer else None)


def allowed_urls() -> str:
    """Return a sentence about the URLs that the settings allow."""
    networks = url_guard.configured().allowed
    if not networks:
        return "Must be an https URL with a public address."
    return f"Must be an https URL with a public address, or any URL with an address in {', '.join(map(str, networks))}."


class WebhookListPage(ExportsPage):
    audited = CHANGES
    template_name = "webhooks/list.html"
    title = "Webhooks"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        found = Webhook.objects.filter(user=self.user).order_by("-created_at", "-pk")[: subscriptions.MAX_PER_USER]
        rows = [{"webhook": each, "events": [NAMES.get(name, name) for name in each.events]} for each in found]
        initial = {"events": [EventType.SUCCEEDED.value, EventType.FAILED.value]}
        return super().get_context_data(
            rows=rows,
            form=context.pop("form", None) or WebhookForm(initial=initial),
            limit=subscriptions.MAX_PER_USER,
            is_full=len(rows) >= subscriptions.MAX_PER_USER,
            **context,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        form = WebhookForm(request.POST)
        try:
            self.count()
            fields = validated(NewWebhookSerializer, form.body())
            return self.redirect_to(subscriptions.create(user_id=self.user.pk, **fields))
        except Problem as problem:
            form.refuse(problem)
        return self.render_to_response(self.get_context_data(form=form))

    def redirect_to(self, webhook: Webhook) -> HttpResponse:
        """Redirect to the page of a new webhook, which shows its secret once."""
        self.request.session[FRESH] = str(webhook.pk)
        messages.success(self.request, "Webhook created. Send a test to check your endpoint.")
        return redirect("webhook", webhook.pk)


class WebhookPage(ExportsPage):
    """A webhook with its deliveries. htmx polls the log while a delivery is pending."""

    audited = CHANGES
    template_name = "webhooks/webhook.html"
    fragment_name = "webhooks/_log.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        webhook = context.pop("webhook", None) or subscriptions.owned(self.kwargs["webhook_id"], user_id=self.user.pk)
        status = self.request.GET.get("status", "")
        sent = Delivery.objects.filter(webhook=webhook)
        if status in STATUSES and status:
            sent = sent.filter(status=status)
        listing = Listing(self.request, representation.with_log(sent), ordering=("-created_at", "-id"))
        rows = [deliveries.row_of(each) for each in listing.rows]
        test = deliveries.last_test(webhook)
        return super().get_context_data(
            webhook=webhook, rows=rows, listing=listing, status=status, statuses=STATUSES, test=test,
            is_testing=bool(test and not test.has_ended), failed=subscriptions.failed(webhook).count(),
            seconds=deliveries.poll_seconds([*rows, *([test] if test else [])]),
            form=context.pop("form", None) or WebhookForm(initial={"url": webhook.url, "events": webhook.events}),
            secret=self.fresh_secret(webhook), title=f"Webhook to {webhook.url}", **context,
        )  # fmt: skip

    def fresh_secret(self, webhook: Webhook) -> str:
        """Return the webhook's secret if it was just created, otherwise an empty string. It is shown only once."""
        if is_htmx(self.request) or self.request.session.get(FRESH) != str(webhook.pk):
            return ""
        del self.request.session[FRESH]
        return webhook.secret

    def post(self, request: HttpRequest, webhook_id: UUID) -> HttpResponse:
        """Change the URL and the events."""
        webhook = subscriptions.owned(webhook_id, user_id=self.user.pk)
        form = WebhookForm(request.POST)
        try:
            self.count()
            # An unchanged URL is not validated again: its host may now have an address that the SSRF guard refuses.
            new = {name: value for name, value in form.body().items() if value != getattr(webhook, name)}
            changes = validated(WebhookChangeSerializer, new)
            subscriptions.change(webhook, **changes)
            messages.success(request, "Webhook saved." if changes else "No changes to save.")
            return redirect("webhook", webhook.pk)
        except Problem as problem:
            form.refuse(problem)
        return self.render_to_response(self.get_context_data(webhook=webhook, form=form))
