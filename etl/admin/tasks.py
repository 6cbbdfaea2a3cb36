"""Admin of documents. It never shows the content of a document: neither its text nor its JSON."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet, prefetch_related_objects
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from config.platform.admin.confirmed_actions import StaffActionAdmin
from config.platform.admin.display import (
    NOTHING,
    badge,
    bar,
    below_each_other,
    date_or_age,
    exact_time,
    exact_time_and_age,
    link,
    list_of,
    milliseconds,
    number,
    page_of,
    shown,
    side_by_side,
    size,
    span,
)
from config.platform.http.paging import whole_number
from etl.admin import staff_actions
from etl.admin.filters import ByKind, ByReview, ByStatus, ByTaskError
from etl.api import answer, lookup
from etl.models import ReviewEvent, Task
from etl.runstate import whole_metadata

MAX_EVENTS = 50  # shown entries of the review history
BYTES = shown("size", size)
EXPLAINED = ("Error", {"fields": ("advice", ("error_code", "stage"), "answer")})


def attach_run_states(tasks: Sequence[Any]) -> None:
    """Attach the run-states of open tasks from Redis in one round trip, because open rows have only `pending`."""
    states = lookup.run_states(task.pk for task in tasks if not task.has_ended)
    for task in tasks:
        state = states.get(task.pk)
        is_current = state is not None and state.uuid == task.uuid and state.generation >= task.generation
        task.live = state if is_current else None


class TaskList(ChangeList):
    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        tasks: list[Any] = list(self.result_list)
        prefetch_related_objects(tasks, "user", "rule")
        attach_run_states(tasks)
        self.result_list = tasks


@admin.register(Task)
class TaskAdmin(StaffActionAdmin):
    row_actions = staff_actions.TASKS
    list_display = (
        "task_id", "state", "progress_now", "filename", BYTES, "user", "rule", date_or_age("created_at"), "took",
        "error_code",
    )  # fmt: skip
    list_display_links = ("task_id", "filename")
    list_filter = (ByStatus, ByReview, "phase", ByTaskError, ByKind, "created_at", "updated_at")
    list_select_related = ()  # a join would read the users of all matching rows, not only of the rows shown
    unindexed = frozenset({"phase", "error_code", "kind", "updated_at", "review"})
    search_fields = ("task_id", "user__username")
    search_help_text = "Document ID, exact username, or part of the file name"
    ordering = ("-created_at", "-task_id")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("state", "phase_now"),
                    "progress_now",
                    "filename",
                    ("kind", BYTES, "same_bytes"),
                    ("user", "of_rule"),
                    "of_batch",
                    "related",
                )
            },
        ),
        ("Result", {"fields": ("read", "einvoice", "processed", "warnings")}),
        ("Review", {"fields": ("approved", "history")}),
        ("Times", {"fields": ((exact_time("created_at"), exact_time("updated_at")), "took")}),
        (
            "Internals",
            {
                "classes": ("collapse",),
                "fields": ("runs", "attempts", "document_key", "request_id"),
            },
        ),
    )

    # ---- Reading ----
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer the results, which are large and confidential."""
        return super().get_queryset(request).without_results()  # type: ignore[no-any-return]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TaskList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        task = super().get_object(request, object_id, from_field)
        if task is not None:
            attach_run_states([task])
        return task

    def ask(self, request: HttpRequest, action: Any, rows: Sequence[Any], *, back: str) -> Any:
        attach_run_states(rows)
        return super().ask(request, action, rows, back=back)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        fieldsets = list(super().get_fieldsets(request, obj))
        return [fieldsets[0], EXPLAINED, *fieldsets[1:]] if obj and obj.error else fieldsets

    def return_url(self, request: HttpRequest) -> str:
        """Return the URL of the list if the document of the page was deleted."""
        back = super().return_url(request)
        is_deleted = request.path.endswith(f"/{staff_actions.DELETE}/") and back.endswith("/change/")
        return self.url_of("changelist") if is_deleted else back

    def equal_to(self, term: str) -> Q:
        if (task_id := whole_number(term)) is not None:
            return Q(pk=task_id)
        # Search for a user first, then for a file name: an OR of both conditions could use neither index.
        users = list(User.objects.filter(username=term).values_list("pk", flat=True))
        return Q(user__in=users) if users else Task.name_matches(term)

    def name_of(self, row: Any) -> str:
        return f"Document {row.pk} of {row.user}, {staff_actions.current_state(row).status}"

    # ---- Progress -------
    @admin.display(description="status")
    def state(self, task: Any) -> str:
        return badge(str(staff_actions.current_state(task).status))

    @admin.display(description="phase")
    def phase_now(self, task: Any) -> str:
        return str(staff_actions.current_state(task).phase)

    @admin.display(description="progress")
    def progress_now(self, task: Any) -> SafeString:
        return bar(staff_actions.current_state(task).progress, 100, unit=" %")

    @admin.display(description="duration")
    def took(self, task: Task) -> str:
        return span(task.created_at, task.updated_at) if task.has_ended else NOTHING

    # ---- Related rows ----------
    @admin.display(description="rule")
    def of_rule(self, task: Task) -> SafeString:
        return page_of("rules_rule", task.rule_id, f"{task.rule}, version {task.rule_version}")

    @admin.display(description="same file as")
    def same_bytes(self, task: Any) -> Any:
        earlier = staff_actions.current_state(task).duplicate_of
        return page_of("etl_task", earlier, f"document {earlier}") if earlier else NOTHING

    @admin.display(description="other documents")
    def related(self, task: Task) -> SafeString:
        of_rule, of_user = {"rule__rule_id__exact": task.rule_id}, {"user__id__exact": task.user_id}
        return side_by_side(
            [
                list_of("etl_task", "Same owner", of_user),
                list_of("etl_task", "Same rule", of_rule),
                list_of("etl_task", "Same owner and rule", of_user | of_rule),
            ]
        )

    @admin.display(description="batch")
    def of_batch(self, task: Task) -> SafeString | str:
        return page_of("etl_documentbatch", task.batch_id, task.batch_id) if task.batch_id else NOTHING

    @admin.display(description="runs")
    def runs(self, task: Task) -> SafeString:
        rows: list[tuple[object, object]] = [
            ("run", task.run),
            ("OCR result from run", task.ocr_run),
            ("stored model responses from run", task.journal_run),
            ("generation", task.generation),
        ]
        return below_each_other(rows)

    # ---- Result --------
    @admin.display(description="error")
    def error_code(self, task: Task) -> str:
        return task.error["code"] if task.error else NOTHING

    @admin.display(description="details and advice")
    def advice(self, task: Any) -> str:
        outlook = (
            "A retry may succeed."
            if task.error.get("retryable")
            else "A retry will fail again until the cause is fixed."
        )
        return f"{task.error.get('detail', '')} {outlook}".strip()

    @admin.display(description="model's response")
    def answer(self, task: Any) -> SafeString:
        """Return a link to the response, if it is stored. Opening it is recorded in the audit log."""
        url = reverse("document-answer", kwargs={"task_id": task.pk})
        return link(url, "Download") if answer.is_stored(task) else SafeString(NOTHING)

    @admin.display(description="stage")
    def stage(self, task: Any) -> str:
        return str(task.error.get("stage") or NOTHING)

    @admin.display(description="OCR")
    def read(self, task: Any) -> SafeString:
        metadata = metadata_of(task)
        ocr = metadata["ocr"]
        rows: list[tuple[object, object]] = [("provider", metadata["provider"] or NOTHING)]
        rows += [(name, ocr[name]) for name in ("pages", "version") if name in ocr]
        if isinstance(ocr.get("duration_ms"), int | float):
            rows.append(("duration", milliseconds(ocr["duration_ms"])))
        return below_each_other(rows)

    @admin.display(description="e-invoice")
    def einvoice(self, task: Any) -> SafeString:
        """Return only the codes of errors, because details can quote the document."""
        found = metadata_of(task)["ocr"].get("einvoice")
        if not found:
            return SafeString(NOTHING)
        codes = sorted({error["code"] for error in found["errors"]})
        profile = "unknown" if "profile" in codes else found["profile"]
        return below_each_other(
            [("syntax", found["syntax"].upper()), ("profile", profile), ("errors", ", ".join(codes) or "none")]
        )

    @admin.display(description="post-processing")
    def processed(self, task: Any) -> SafeString:
        done = metadata_of(task)["postprocess"]
        usage = done["usage"]
        return below_each_other(
            [
                *([("source", done["source"])] if done.get("source") else []),
                ("strategy", done["strategy"] or NOTHING),
                ("model", done["model"] or NOTHING),
                ("calls", number(usage["calls"])),
                ("input tokens", number(usage["prompt_tokens"])),
                ("output tokens", number(usage["completion_tokens"])),
            ]
        )

    @admin.display(description="warnings")
    def warnings(self, task: Any) -> SafeString:
        """Return only the codes, because details can quote the document."""
        codes = sorted({str(warning.get("code", "")) for warning in metadata_of(task)["warnings"]})
        return below_each_other([(code, "") for code in codes])

    @admin.display(description="approved")
    def approved(self, task: Task) -> str:
        at, by = task.review.approved_at, task.review.approved_by
        return format_html("by {}, {}", by, exact_time_and_age(at)) if at else "no"

    @admin.display(description="history")
    def history(self, task: Task) -> SafeString:
        """Return the changes and their users, without the values, which are content of the document."""
        events = ReviewEvent.objects.filter(task_id=task.pk).defer("change").select_related("user")[:MAX_EVENTS]
        return below_each_other([(exact_time_and_age(each.created_at), describe(each)) for each in events])

    @admin.display(description="attempts")
    def attempts(self, task: Any) -> str:
        tried = metadata_of(task)["attempts"]
        return ", ".join(f"{stage}: {count}" for stage, count in tried.items())


def describe(event: ReviewEvent) -> str:
    text = f"{event.get_kind_display()} by {event.user}"
    return f"{text}: {event.pointer or 'all'}" if event.kind == ReviewEvent.Kind.CORRECTED else text


def metadata_of(task: Any) -> dict[str, Any]:
    return whole_metadata(staff_actions.current_state(task).metadata)
