"""Tasks as staff see them: what their rows say. An open one is pending here to its end; the API shows where it is."""

from typing import Any

from django.contrib import admin
from django.db.models import Q

from config.admin.display import NOTHING, badge, moment, size, span
from config.admin.lists import ReadOnly
from etl.models import Task

LONGEST_ID = 18  # digits; more do not fit a bigint


@admin.register(Task)
class TaskAdmin(ReadOnly):
    list_display = (
        "task_id", "state", "phase", "filename", "kind", "bytes", "user", "rule", moment("created_at"), "took",
        "error_code",
    )  # fmt: skip
    list_display_links = ("task_id", "filename")
    list_filter = ("status", "phase", "created_at")
    list_select_related = ("user", "rule")
    search_fields = ("task_id", "user__username")
    search_help_text = "A task id, or a whole user name"
    ordering = ("-created_at", "-task_id")
    fieldsets = (
        (None, {"fields": (("state", "phase", "progress"), ("filename", "kind", "bytes"), ("user", "rule"))}),
        ("How it ended", {"fields": ("error", "result", "metadata")}),
        ("Times", {"fields": ((moment("created_at"), moment("updated_at")), "took")}),
        (
            "Machinery",
            {
                "classes": ("collapse",),
                "fields": (("fence", "run"), ("ocr_run", "journal_run"), "rule_version", "document_key", "request_id"),
            },
        ),
    )

    def get_queryset(self, request: Any) -> Any:
        """Leave results out of lists: fifty of them may be megabytes."""
        tasks = super().get_queryset(request)
        is_list = bool(request.resolver_match and request.resolver_match.url_name == "etl_task_changelist")
        return tasks.defer("result", "metadata") if is_list else tasks

    def equal_to(self, term: str) -> Q:
        if term.isascii() and term.isdecimal() and len(term) <= LONGEST_ID:
            return Q(pk=int(term))
        return Q(user__username=term)

    @admin.display(description="status")
    def state(self, task: Task) -> str:
        return badge(task.status)

    @admin.display(description="size")
    def bytes(self, task: Task) -> str:
        return size(task.size)

    @admin.display(description="took")
    def took(self, task: Task) -> str:
        return span(task.created_at, task.updated_at) if task.has_ended else NOTHING

    @admin.display(description="error")
    def error_code(self, task: Task) -> str:
        return task.error["code"] if task.error else NOTHING
