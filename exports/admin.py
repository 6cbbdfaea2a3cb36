"""The staff's view: everything can be looked at, little can be typed in. Outcomes are written by the workers alone."""

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin

from exports import control
from exports.models import Chunk, Dataset, Download, File, Job, Link, Receipt, Slot, Tick


class ReadOnly(ModelAdmin):
    """Rows that nobody makes or edits by hand."""

    show_full_result_count = False  # no COUNT over the whole table
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def link_to(model: str, pk: Any, text: Any) -> str:
    return format_html('<a href="{}">{}</a>', reverse(f"admin:exports_{model}_change", args=[pk]), text)


@admin.register(Dataset)
class DatasetAdmin(ModelAdmin):
    list_display = ("name", "function", "base_path", "schema_version", "max_concurrency", "statement_timeout")
    search_fields = ("name", "function")


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("job_id", "user", "dataset", "status", "progress", "rows", "created_at", "finished_at", "chunks")
    list_filter = ("status", "dataset", "format", "created_at")
    list_select_related = ("user", "dataset")
    search_fields = ("job_id__exact", "user__username__exact")
    ordering = ("-created_at", "-job_id")
    actions = ("retry_failed",)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("exports.change_job")

    @admin.display(description="progress")
    def progress(self, job: Job) -> str:
        ended = job.done + job.failed + job.cancelled
        return format_html(
            '<progress value="{}" max="{}"></progress> {}/{}{}',
            ended,
            job.total,
            ended,
            job.total,
            f", {job.failed} failed" if job.failed else "",
        )

    @admin.display(description="chunks")
    def chunks(self, job: Job) -> str:
        url = reverse("admin:exports_chunk_changelist") + f"?job__job_id__exact={job.job_id}"
        return format_html('<a href="{}">chunks</a>', url)

    @admin.action(description="Retry the failed chunks of these jobs", permissions=["retry"])
    def retry_failed(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        staff = cast("int", request.user.pk)
        retried, chunks, refused = 0, 0, 0
        for job in queryset:
            try:
                chunks += control.retry(job)
            except control.NotFailed:
                refused += 1
                continue
            retried += 1
            LogEntry.objects.log_actions(staff, [job], CHANGE, "Retried its failed chunks", single_object=True)
        self.message_user(
            request,
            f"{retried} jobs retried, {chunks} chunks; {refused} had not failed.",
            messages.SUCCESS if retried else messages.WARNING,
        )


@admin.register(Chunk)
class ChunkAdmin(ReadOnly):
    list_display = (
        "id",
        "key",
        "effective_date",
        "status",
        "attempts",
        "source",
        "rows",
        "bytes",
        "error_code",
        "of_job",
    )
    list_filter = ("status", "source", "error_code", "dataset")
    search_fields = ("job__job_id__exact", "key__exact")
    ordering = ("-id",)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return lookup == "job__job_id__exact" or super().lookup_allowed(lookup, value, request)

    @admin.display(description="job")
    def of_job(self, chunk: Chunk) -> str:
        return link_to("job", chunk.job_id, str(chunk.job_id)[:8])


@admin.register(Slot)
class SlotAdmin(ReadOnly):
    list_display = ("__str__", "token", "lease_until", "chunk_id", "backend")
    list_filter = ("dataset",)
    ordering = ("dataset", "number")


@admin.register(File)
class FileAdmin(ReadOnly):
    list_display = ("key", "effective_date", "dataset", "schema_version", "rows", "bytes", "data_as_of")
    list_filter = ("dataset",)
    search_fields = ("key__exact",)
    ordering = ("path",)


@admin.register(Receipt)
class ReceiptAdmin(ReadOnly):
    list_display = ("job", "files", "rows", "size_bytes", "issued_at", "expires_at", "deleted_at", "degraded")
    list_filter = ("degraded", "issued_at")
    ordering = ("-issued_at",)


@admin.register(Link)
class LinkAdmin(ReadOnly):
    list_display = ("link_id", "receipt", "created_at", "expires_at", "used_at", "revoked_at")
    list_filter = ("created_at",)
    search_fields = ("receipt__job__job_id__exact",)
    ordering = ("-created_at",)


@admin.register(Download)
class DownloadAdmin(ReadOnly):
    list_display = ("at", "outcome", "job", "address", "user_agent")
    list_filter = ("outcome", "at")
    search_fields = ("job__job_id__exact",)
    ordering = ("-at",)


@admin.register(Tick)
class TickAdmin(ReadOnly):
    list_display = ("name", "ran_at")
