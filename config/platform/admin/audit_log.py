"""Admin pages of the audit log and its export, and of Django's change history."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, time
from typing import Any

from asgiref.sync import sync_to_async
from django import forms
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from unfold.decorators import action
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from config.platform.admin.display import NOTHING, badge, date_or_age, exact_time, link, shown
from config.platform.admin.lists import ReadOnly
from config.platform.db import clock
from config.platform.http import audit
from config.platform.models import AuditEntry

BATCH_SIZE = 2_000  # entries that an export reads at a time
OBJECT_NAMES = (
    "job_id",
    "task_id",
    "batch_id",
    "rule_id",
    "schedule_id",
    "webhook_id",
    "delivery_id",
    "token_id",
    "sample_id",
    "factor_id",
    "name",
    "object_id",
    "argument",
)


def matches_object(term: str) -> Q:
    """Match an object by its ID or name, or as `job_id=…`."""
    return Q(object_ids__overlap=[term] if "=" in term else [f"{name}={term}" for name in OBJECT_NAMES])


class DateWidget(UnfoldAdminTextInputWidget):
    """A date field with the browser's calendar, in place of Django's scripts."""

    input_type = "date"


class ExportForm(forms.Form):
    since = forms.DateField(label="From", required=False, widget=DateWidget, help_text="UTC")
    until = forms.DateField(label="To", required=False, widget=DateWidget, help_text="UTC, inclusive")
    user = forms.CharField(
        required=False, max_length=150, widget=UnfoldAdminTextInputWidget, help_text="Exact username"
    )
    subject = forms.CharField(
        label="Object", required=False, max_length=300, widget=UnfoldAdminTextInputWidget, help_text="Exact ID or name"
    )
    via = forms.ChoiceField(
        required=False, choices=[("", "all"), *AuditEntry.Via.choices], widget=UnfoldAdminSelectWidget
    )
    outcome = forms.ChoiceField(
        required=False, choices=[("", "all"), *AuditEntry.Outcome.choices], widget=UnfoldAdminSelectWidget
    )

    def entries(self) -> QuerySet[AuditEntry]:
        filters = self.cleaned_data
        found = AuditEntry.objects.filter(**{name: filters[name] for name in ("via", "outcome") if filters[name]})
        if filters["since"]:
            found = found.filter(at__gte=datetime.combine(filters["since"], time.min, UTC))
        if filters["until"]:
            found = found.filter(at__lte=datetime.combine(filters["until"], time.max, UTC))
        if filters["user"]:
            found = found.filter(user__username=filters["user"])
        return found.filter(matches_object(filters["subject"])) if filters["subject"] else found


@admin.register(AuditEntry)
class Audit(ReadOnly):
    list_display = (
        date_or_age("at"),
        "account_name",
        "action_name",
        "named",
        shown("outcome", badge),
        "via",
        "address",
    )
    list_filter = ("at", "via", "outcome")
    unindexed = frozenset({"at", "via", "outcome"})
    list_select_related = ("user",)
    search_fields = ("request_id", "user__username")
    search_help_text = "Exact username, request ID, or object ID"
    ordering = ("-id",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    (exact_time("at"), "account_name"),
                    ("action_name", "named"),
                    ("outcome", "status"),
                    ("via", "address"),
                    ("request_id", "token"),
                )
            },
        ),
    )
    actions_list = ("export",)

    def equal_to(self, term: str) -> Q:
        return super().equal_to(term) | matches_object(term)

    @admin.display(description="user")
    def account_name(self, entry: AuditEntry) -> str:
        return str(entry.user or entry.account or NOTHING)

    @admin.display(description="action")
    def action_name(self, entry: AuditEntry) -> str:
        return str(entry)

    @admin.display(description="objects")
    def named(self, entry: AuditEntry) -> str:
        return ", ".join(entry.object_ids) or NOTHING

    @action(description="Export", url_path="export", permissions=["view"])  # type: ignore[untyped-decorator]
    def export(self, request: HttpRequest) -> HttpResponseBase:
        """Show the export form, or send the file. The audit log records the export too."""
        form = ExportForm(request.GET if "download" in request.GET else None)
        if not (form.is_bound and form.is_valid()):
            context = {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "title": "Export the audit log",
                "form": form,
            }
            return TemplateResponse(request, "admin/audit_export.html", context, status=400 if form.is_bound else 200)
        audit.mark_opened()
        return as_file(form.entries(), request)


def as_file(entries: QuerySet[AuditEntry], request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Stream the entries as JSON Lines, oldest first, without entries that are written during the export."""
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    batches = LineBatches(entries.filter(pk__lte=newest))
    name = f"audit-{clock.now():%Y-%m-%d}.jsonl"
    return StreamingHttpResponse(
        batches.asynchronous() if isinstance(request, ASGIRequest) else iter(batches),
        content_type="application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


class LineBatches:
    """Iterator over batches of lines, so that neither the process nor the database holds all entries in memory."""

    def __init__(self, entries: QuerySet[AuditEntry]) -> None:
        self.entries = entries.order_by("pk").values(*FIELDS)
        self.last = 0

    def next(self) -> bytes:
        """Return the next batch of lines, or b"" at the end. Release the database connection after each batch."""
        rows = list(self.entries.filter(pk__gt=self.last)[:BATCH_SIZE])
        if not connection.in_atomic_block:
            connection.close()
        if rows:
            self.last = rows[-1]["id"]
        return b"".join(map(line, rows))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.next, b"")

    async def asynchronous(self) -> AsyncIterator[bytes]:
        while batch := await sync_to_async(self.next)():
            yield batch


FIELDS = (
    "id", "at", "via", "user_id", "user__username", "account", "token", "method", "action", "object_ids", "status",
    "outcome", "request_id", "address",
)  # fmt: skip


def line(row: dict[str, Any]) -> bytes:
    row["username"] = row.pop("user__username")
    return json.dumps(row, default=text_of, separators=(",", ":")).encode() + b"\n"


def text_of(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


@admin.register(LogEntry)
class ChangeHistory(ReadOnly):
    """Descriptions of changes and accesses by staff, changes by commands, deletions, and changes to one's own account.

    The database does not protect them against changes.
    """

    list_display = (date_or_age("action_time"), "user", "kind", "row", "change")
    list_filter = ("action_time", "action_flag", "content_type")
    unindexed = frozenset({"q", "action_time", "action_flag"})
    list_select_related = ("user", "content_type")
    search_fields = ("object_id", "user__username")
    search_help_text = "Exact object ID or username"
    ordering = ("-id",)
    fieldsets = ((None, {"fields": ((exact_time("action_time"), "user"), ("kind", "row"), "change")}),)

    @admin.display(description="type")
    def kind(self, entry: LogEntry) -> str:
        return str(entry.content_type.name) if entry.content_type else NOTHING

    @admin.display(description="object")
    def row(self, entry: LogEntry) -> str | SafeString:
        url = entry.get_admin_url()
        return link(url, entry.object_repr) if url and not entry.is_deletion() else entry.object_repr

    @admin.display(description="change")
    def change(self, entry: LogEntry) -> str:
        return entry.get_change_message() or str(entry.get_action_flag_display())
