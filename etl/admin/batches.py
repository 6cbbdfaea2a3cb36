"""Admin of batches. It never shows the content of their documents."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from config.platform.admin.confirmed_actions import (
    StaffAction,
    StaffActionAdmin,
    change,
    naming_owners_quota,
    only_if_status,
)
from config.platform.admin.display import (
    badge,
    bar,
    below_each_other,
    date_or_age,
    exact_time,
    list_of,
    number,
    page_of,
)
from config.platform.http.paging import whole_number
from etl.admin.filters import ByBatchStatus
from etl.admin.staff_actions import MODEL_MAY_COST
from etl.core.states import BatchStatus
from etl.models import DocumentBatch
from etl.pipeline import batch_actions


def retry(batch: DocumentBatch) -> None:
    with naming_owners_quota():
        batch_actions.retry(batch)


def revision_of(batch: DocumentBatch) -> str:
    """Return a value that changes when the batch ends and when it is retried."""
    return f"{batch.completions} {batch.status}"


ACTIONS = (
    StaffAction(
        name="cancel",
        label="Cancel",
        past="Cancelled",
        icon="cancel",
        permission="etl.change_documentbatch",
        explanation="Cancels only documents that have not started or that wait for post-processing. The others "
        "continue.",
        refusal=only_if_status({BatchStatus.RUNNING}, batch_actions.NothingToCancel.detail),
        do=change(batch_actions.cancel, "The waiting documents will not be processed."),
        revision=revision_of,
        is_danger=True,
    ),
    StaffAction(
        name="retry",
        label="Retry failed documents",
        past="Retried",
        icon="replay",
        permission="etl.change_documentbatch",
        explanation="Repeats each failed document from the stage at which it failed, with the same version of the "
        f"rule. {MODEL_MAY_COST}",
        refusal=lambda batch: "" if batch.failed else batch_actions.NothingToRetry.detail,
        do=change(retry, "The failed documents are queued again."),
        revision=revision_of,
    ),
)


@admin.register(DocumentBatch)
class DocumentBatchAdmin(StaffActionAdmin):
    row_actions = ACTIONS
    list_display = ("batch_id", "state", "progress", "failures", "name", "user", "rule", date_or_age("created_at"))
    list_display_links = ("batch_id", "name")
    list_filter = (ByBatchStatus, "created_at")
    list_select_related = ("user", "rule")
    unindexed = frozenset({"status"})
    search_fields = ("batch_id", "user__username")
    search_help_text = "Batch ID or exact username"
    ordering = ("-created_at", "-batch_id")
    fieldsets = (
        (None, {"fields": (("state", "progress"), "name", ("user", "of_rule"), "documents")}),
        ("Documents", {"fields": ("numbers", "not_accepted")}),
        ("Times", {"fields": ((exact_time("created_at"), exact_time("updated_at")), exact_time("cancelled_at"))}),
        ("Internals", {"classes": ("collapse",), "fields": ("completions", "request_id")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).with_counts()  # type: ignore[no-any-return]

    def equal_to(self, term: str) -> Q:
        if (batch_id := whole_number(term)) is not None:
            return Q(pk=batch_id)
        return self.text_equal_to("user__username", term)

    def name_of(self, row: Any) -> str:
        return f"Batch {row.pk} of {row.user}, {row.status}"

    @admin.display(description="status")
    def state(self, batch: Any) -> str:
        return badge(batch.status)

    @admin.display(description="ended")
    def progress(self, batch: Any) -> SafeString:
        return bar(batch.completed + batch.failed + batch.cancelled + batch.deleted, batch.total)

    @admin.display(description="failed")
    def failures(self, batch: Any) -> str:
        return number(batch.failed)

    @admin.display(description="rule")
    def of_rule(self, batch: DocumentBatch) -> SafeString:
        return page_of("rules_rule", batch.rule_id, f"{batch.rule}, version {batch.rule_version}")

    @admin.display(description="documents")
    def documents(self, batch: DocumentBatch) -> SafeString:
        return list_of("etl_task", "Documents of this batch", {"batch__batch_id__exact": batch.pk})

    @admin.display(description="numbers")
    def numbers(self, batch: Any) -> SafeString:
        names = ("total", "completed", "failed", "cancelled", "deleted")
        return below_each_other([(name, number(getattr(batch, name))) for name in names])

    @admin.display(description="not accepted")
    def not_accepted(self, batch: Any) -> SafeString:
        """Return only the codes and how often each occurs, because file names can be confidential."""
        codes = [each["code"] for each in batch.refused]
        return below_each_other([(code, number(codes.count(code))) for code in sorted(set(codes))])
