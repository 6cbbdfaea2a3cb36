"""Admin of exports and chunks."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import linebreaksbr
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from config.platform.admin.confirmed_actions import StaffActionAdmin
from config.platform.admin.display import (
    bar,
    below_each_other,
    date_or_age,
    exact_time,
    list_of,
    page_of,
    short,
    shown,
    side_by_side,
    span,
    yes_or_no,
)
from config.platform.admin.lists import ReadOnly
from config.platform.http import staff
from exports.admin import staff_actions
from exports.admin.columns import BYTES, ROWS, STATUS, of_job
from exports.admin.errors import advice_on, title_of
from exports.admin.filters import ByChunkError, OfJob, OfPath, OfSchedule
from exports.core.errors import with_meaning
from exports.core.states import ChunkStatus
from exports.models import Chunk, File, Job, Receipt

ERROR = ("Error", {"fields": ("error_title", "advice", ("error_code", "reason"))})
MESSAGE = ("Message of the source database", {"fields": ("message",)})
MAX_KEYS = 20  # of a request, on its page


class ErrorAdmin(ReadOnly):
    """Base of admins of rows that may have failed. The page of a failed row explains its error."""

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        fieldsets = list(super().get_fieldsets(request, obj))
        return [fieldsets[0], ERROR, *fieldsets[1:]] if obj and obj.error_code else fieldsets

    @admin.display(description="error")
    def error_title(self, row: Job | Chunk) -> str:
        return title_of(row.error_code)

    @admin.display(description="advice")
    def advice(self, row: Job | Chunk) -> str:
        return advice_on(row.error_code)

    @admin.display(description="detail")
    def reason(self, row: Job | Chunk) -> str:
        return with_meaning(row.error_detail)

    @admin.display(description="duration")
    def took(self, row: Job | Chunk) -> str:
        return span(row.started_at, row.finished_at)


@admin.register(Job)
class JobAdmin(StaffActionAdmin, ErrorAdmin):
    row_actions = staff_actions.JOBS
    list_display = (
        "id_and_name", STATUS, "dataset", "user", "progress", ROWS, BYTES,
        date_or_age("created_at"), "took",
    )  # fmt: skip
    list_filter = (OfSchedule, "status", "dataset", "format", ByChunkError, "created_at", "finished_at")
    unindexed = frozenset({"dataset", "format", "error_code"})
    list_select_related = ()  # a join would read a user for each matching row before the sort
    search_fields = ("job_id", "user__username")
    search_help_text = "Export ID or its first 8 digits, exact username, or part of the name"
    change_form_outer_before_template = "admin/refresh.html"
    ordering = ("-created_at", "-job_id")
    fieldsets = (
        (None, {"fields": ((STATUS, "progress"), "counters", ("dataset", "user"), "related")}),
        ("Result", {"fields": ((ROWS, BYTES), ("reused", "degraded"))}),
        (
            "Times",
            {"fields": ((exact_time("created_at"), exact_time("started_at")), (exact_time("finished_at"), "took"))},
        ),
        (
            "Request",
            {
                "fields": (
                    "name",
                    ("job_id", "schema_version"),
                    "shape",
                    ("reuse", shown("allow_degraded", yes_or_no)),
                    ("ttl", "duplicates"),
                    ("dialect", "columns"),
                    "requested_chunks",
                    "request_id",
                    ("schedule_id", exact_time("planned_at")),
                )
            },
        ),
        (
            "Completion",
            {
                "classes": ("collapse",),
                "fields": ("completion_attempts", ("completion_token", exact_time("completion_lease_until"))),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer the filters of the request, which may be a megabyte. Prefetch users and datasets of a page's rows."""
        jobs = super().get_queryset(request).defer("filters")
        return jobs.prefetch_related("user", "dataset")  # type: ignore[no-any-return]

    def equal_to(self, term: str) -> Q:
        """Match a user, or else an ID or a name. An OR over two tables could not use their indexes."""
        users = list(User.objects.filter(username=term).values_list("pk", flat=True))
        return Q(user__in=users) if users else Job.matches(term)

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Reload the whole page when the export has ended, because its actions change then."""
        response = super().changeform_view(request, object_id, *args, **kwargs)
        job = getattr(response, "context_data", {}).get("original")
        if "HX-Request" in request.headers and job and job.has_ended:
            response["HX-Refresh"] = "true"
        return response

    def name_of(self, row: Job) -> str:
        return f"{short(row.job_id)}: {row.dataset} of {row.user}, {row.status}, {row.done:,} of {row.total:,} done"

    # ---- Columns ----
    @admin.display(description="export")
    def id_and_name(self, job: Job) -> SafeString | str:
        return format_html("{}<br>{}", short(job.pk), Truncator(job.name).chars(40)) if job.name else short(job.pk)

    @admin.display(description="progress")
    def progress(self, job: Job) -> SafeString:
        return list_of("chunk", bar(job.done, job.total), {"job": job.job_id})

    @admin.display(description="shape")
    def shape(self, job: Job) -> str:
        return f"{job.format}, compression {job.compression}, delivery {job.delivery}"

    @admin.display(description="chunks requested")
    def requested_chunks(self, job: Job) -> SafeString:
        if job.dataset.built_in:
            return below_each_other([*(job.filters or {"filters": "none"}).items()])
        return filters_of(job.filters) if job.filters else SafeString("A list of keys and dates. See the chunks.")

    @admin.display(description="chunks")
    def counters(self, job: Job) -> SafeString:
        """Return the chunk counts with links to the filtered lists."""
        counts = {ChunkStatus.DONE: job.done, ChunkStatus.FAILED: job.failed, ChunkStatus.RETRYING: job.retrying,
                  ChunkStatus.CANCELLED: job.cancelled}  # fmt: skip
        rest = job.total - sum(counts.values())
        links = [list_of("chunk", f"{job.total:,} in total", {"job": job.job_id})]
        links += [
            list_of("chunk", f"{count:,} {status}", {"job": job.job_id, "status__exact": status})
            for status, count in counts.items()
            if count
        ]
        return side_by_side([*links, format_html("{} pending or running", f"{rest:,}")] if rest else links)

    @admin.display(description="delivery")
    def related(self, job: Job) -> SafeString:
        of_job = {"job": job.job_id}
        sent = list_of("delivery", "Webhook deliveries", of_job)
        if not Receipt.objects.filter(pk=job.pk).exists():
            return side_by_side([SafeString("No receipt: only successful exports have one."), sent])
        links, downloads = list_of("link", "Links", of_job), list_of("download", "Downloads", of_job)
        return side_by_side([page_of("receipt", job.pk, "Receipt"), links, downloads, sent])


def filters_of(filters: dict[str, Any]) -> SafeString:
    """Return a summary of the filters with the first keys: there may be thousands."""
    keys = [str(key) for key in filters.get("keys") or []]
    more = f" and {len(keys) - MAX_KEYS:,} more" if len(keys) > MAX_KEYS else ""
    rest: list[tuple[object, object]] = [(name, str(value)[:200]) for name, value in filters.items() if name != "keys"]
    return below_each_other([("keys", ", ".join(keys[:MAX_KEYS]) + more), *rest])


def shows_message(request: HttpRequest, chunk: Chunk | None) -> bool:
    """Return whether the user may open data, and the chunk has a message of the source database."""
    return bool(chunk and chunk.source_message and staff.may_open(request.user, chunk.job.user_id))


@admin.register(Chunk)
class ChunkAdmin(StaffActionAdmin, ErrorAdmin):
    row_actions = staff_actions.CHUNKS
    list_display = (
        "__str__", STATUS, of_job, "dataset", "attempts", "source", ROWS, BYTES, "error_title",
        date_or_age("started_at"), "took",
    )  # fmt: skip
    list_filter = (OfJob, OfPath, "status", "source", ByChunkError, "dataset", "finished_at")
    unindexed = frozenset({"path", "source", "dataset", "finished_at", "q", "status__exact=cancelled"})
    indexed = frozenset({"job"})
    search_fields = ("job", "key")
    search_help_text = "Export ID or its first 8 digits, or exact key"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("key", date_or_age("effective_date")),
                    (STATUS, "attempts"),
                    (of_job, "owner", "dataset"),
                    "file",
                )
            },
        ),
        ("Result", {"fields": ((ROWS, BYTES), ("source", exact_time("data_as_of")), "path", "sha256", "etag")}),
        (
            "Times",
            {"fields": ((exact_time("started_at"), exact_time("finished_at")), ("took", exact_time("available_at")))},
        ),
        (
            "Queue and lease",
            {
                "classes": ("collapse",),
                "fields": (("seq", "rank", "reusable"), ("token", exact_time("lease_until"))),
            },
        ),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        fieldsets = super().get_fieldsets(request, obj)
        return [*fieldsets[:2], MESSAGE, *fieldsets[2:]] if shows_message(request, obj) else fieldsets

    @admin.display(description="message")
    def message(self, chunk: Chunk) -> SafeString:
        return linebreaksbr(chunk.source_message)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, obj: Any = None, **kwargs: Any) -> Any:
        """Record that staff open a chunk with a message of the source database, which may quote rows of its owner."""
        if shows_message(request, obj):
            staff.record_access(request.user, obj.job, f"Read the source's message of chunk {obj.pk}.")
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        chunks = super().get_queryset(request).select_related("dataset", "job")
        return chunks.defer("job__filters", "job__dialect")  # type: ignore[no-any-return]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Add the conditions of the partial indexes. All rows with the status meet them anyway."""
        status = request.GET.get("status__exact")
        if status == ChunkStatus.PENDING:
            queryset = queryset.filter(Q(reusable=True) | Q(reusable=False))
        elif status == ChunkStatus.FAILED and OfJob.parameter_name not in request.GET:
            queryset = queryset.exclude(error_code="")
        return super().get_search_results(request, queryset, search_term)

    def name_of(self, row: Chunk) -> str:
        return f"{row} of export {short(row.job_id)}, {row.status}"

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Order the chunks of a job as in the request, and all others newest first. Both orders use an index."""
        return ("seq",) if OfJob.parameter_name in request.GET else ("-id",)

    @admin.display(description="owner")
    def owner(self, chunk: Chunk) -> SafeString:
        return page_of("auth_user", chunk.job.user_id, chunk.job.user)

    @admin.display(description="file")
    def file(self, chunk: Chunk) -> SafeString:
        """Return a link to the current file at the chunk's path, which a later export may have written."""
        if not File.objects.filter(pk=chunk.path).exists():
            return SafeString("No reusable file at this path.")
        return page_of("file", chunk.path, "Current file at this path")
