"""Admin of receipts, one-time links, and download attempts. Hides the URLs of links, because opening one uses it up."""

import re
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import StaffActionAdmin
from config.platform.admin.display import (
    badge,
    date_or_age,
    exact_time,
    list_of,
    page_of,
    short,
    shown,
    side_by_side,
    size,
    yes_or_no,
)
from config.platform.admin.lists import ReadOnly
from config.platform.db import clock
from exports.admin import staff_actions
from exports.admin.columns import ROWS, of_job
from exports.admin.filters import OfJob, OfJobByReceipt
from exports.models import Download, Link, Receipt

SIZE = shown("size_bytes", size, "size")
DEGRADED = shown("degraded", yes_or_no)
OUTCOME = shown("outcome", badge)


@admin.register(Receipt)
class ReceiptAdmin(StaffActionAdmin):
    row_actions = staff_actions.RECEIPTS
    list_display = (
        "file_name", "state", of_job, "files", ROWS, SIZE,
        date_or_age("issued_at"), date_or_age("expires_at"), "related",
    )  # fmt: skip
    list_filter = ("degraded", "issued_at", "expires_at")
    unindexed = frozenset({"degraded", "expires_at"})
    search_fields = ("job",)
    search_help_text = "Export ID or its first 8 digits"
    ordering = ("-issued_at",)
    fieldsets = (
        (None, {"fields": (("file_name", "state"), (of_job, "related"))}),
        ("Delivered object", {"fields": (("files", ROWS, SIZE), ("content_type", DEGRADED), "object_key",
                                         "checksum", "etag")}),
        ("Times", {"fields": ((exact_time("issued_at"), exact_time("expires_at")), exact_time("deleted_at"))}),
    )  # fmt: skip

    @admin.display(description="status")
    def state(self, receipt: Receipt) -> str:
        return badge("deleted" if receipt.deleted_at else "expired" if receipt.expires_at <= clock.now() else "open")

    @admin.display(description="related")
    def related(self, receipt: Receipt) -> SafeString:
        of_job = {"job": receipt.job_id}
        return side_by_side([list_of("link", "Links", of_job), list_of("download", "Downloads", of_job)])


@admin.register(Link)
class LinkAdmin(StaffActionAdmin):
    row_actions = staff_actions.LINKS
    list_display = (
        "link_id", "state", "of_receipt",
        date_or_age("created_at"), date_or_age("expires_at"), date_or_age("used_at"), date_or_age("revoked_at"),
    )  # fmt: skip
    list_filter = (OfJobByReceipt, "created_at", "used_at")
    unindexed = frozenset({"used_at"})
    indexed = frozenset({"job"})
    search_fields = ("link_id", "receipt")
    search_help_text = "Link ID or its first 8 digits, link URL or token"
    ordering = ("-created_at",)
    fieldsets = (
        (None, {"fields": (("link_id", "state"), ("of_receipt", "downloads"))}),
        ("Bound to", {"fields": (("network", "agent"),)}),
        (
            "Times",
            {
                "fields": (
                    (exact_time("created_at"), exact_time("expires_at")),
                    (exact_time("used_at"), exact_time("revoked_at")),
                )
            },
        ),
    )

    def equal_to(self, term: str) -> Q:
        return super().equal_to(id_in(term))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Any = None, **kwargs: Any
    ) -> Any:
        """Add the actions on the receipt: only revoking it prevents the owner from creating another link."""
        receipts: Any = self.admin_site.get_model_admin(Receipt)
        context["actions_detail"] = [
            {**receipts.button(action, obj.receipt), "title": f"{action.label} receipt"}
            for action in receipts.allowed(request)
            if obj is not None and not action.refusal(obj.receipt)
        ]
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    @admin.display(description="status")
    def state(self, link: Link) -> str:
        return badge(link.state_at(clock.now()))

    @admin.display(description="receipt")
    def of_receipt(self, link: Link) -> SafeString:
        return page_of("receipt", link.receipt_id, short(link.receipt_id))

    @admin.display(description="download attempts")
    def downloads(self, link: Link) -> SafeString:
        return list_of("download", "Downloads", {"link__link_id__exact": link.pk})


@admin.register(Download)
class DownloadAdmin(ReadOnly):
    list_display = (date_or_age("at"), OUTCOME, of_job, "of_link", "address", "user_agent")
    list_filter = (OfJob, "outcome", "at")
    unindexed = frozenset({"outcome", "at"})
    indexed = frozenset({"job"})
    search_fields = ("job",)
    search_help_text = "Export ID or its first 8 digits"
    ordering = ("-id",)
    fieldsets = ((None, {"fields": ((exact_time("at"), OUTCOME), (of_job, "of_link"), ("address", "user_agent"))}),)

    @admin.display(description="link", empty_value="-")
    def of_link(self, download: Download) -> SafeString | None:
        return page_of("link", download.link_id, short(download.link_id)) if download.link_id else None


def id_in(term: str) -> str:
    """Return the link's ID in a URL or a token, with or without a signature, or else the term itself."""
    found = re.search(r"(?:^|[?&]token=)([0-9a-fA-F]{32})(?:\.|&|$)", term)
    return found[1] if found else term
