"""Read-only admin of samples and evaluations of rules. It shows numbers and statuses, never content of documents."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.admin import TabularInline

from config.platform.admin.display import NOTHING, badge, date_or_age, exact_time
from config.platform.admin.lists import ReadOnly
from config.platform.http.paging import whole_number
from config.platform.ui.templatetags.pages import percent
from etl.models import Evaluation, Sample, SampleRun
from etl.models.task import RESULTS


@admin.register(Sample)
class SampleAdmin(ReadOnly):
    list_display = ("id", "rule", "task", date_or_age("created_at"))
    list_select_related = ()  # selected below, without the results
    search_fields = ("task__task_id",)
    search_help_text = "Document ID"
    ordering = ("-id",)
    fieldsets = ((None, {"fields": (("rule", "task"), exact_time("created_at"))}),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer the content of documents, which is large and confidential."""
        samples = super().get_queryset(request).select_related("rule", "task")
        return samples.defer("expected", *(f"task__{name}" for name in RESULTS))  # type: ignore[no-any-return]

    def equal_to(self, term: str) -> Q:
        task_id = whole_number(term)
        return Q(pk__in=()) if task_id is None else Q(task_id=task_id)


class Runs(TabularInline):
    model = SampleRun
    verbose_name = "sample"
    verbose_name_plural = "samples"
    fields = ("sample", "state", "attempts", "accuracy", "error_code", "calls", "duration_ms")
    readonly_fields = fields
    ordering = ("pk",)
    extra = 0
    max_num = 0
    can_delete = False
    per_page = 20

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        runs = super().get_queryset(request).select_related("sample")
        return runs.defer("misses", "sample__expected")  # type: ignore[no-any-return]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="status")
    def state(self, run: SampleRun) -> str:
        return badge(run.status)

    @admin.display(description="accuracy")
    def accuracy(self, run: SampleRun) -> str:
        values = sum(values for _, values in run.fields.values())
        return percent(sum(credit for credit, _ in run.fields.values()) / values) if values else NOTHING

    @admin.display(description="error")
    def error_code(self, run: SampleRun) -> str:
        return run.error["code"] if run.error else NOTHING


@admin.register(Evaluation)
class EvaluationAdmin(ReadOnly):
    list_display = (
        "__str__",
        "rule",
        "version",
        "state",
        "accuracy_percent",
        "samples",
        "user",
        date_or_age("created_at"),
    )
    list_select_related = ("rule", "user")
    search_fields = ("user__username",)
    search_help_text = "Exact username"
    ordering = ("-id",)
    inlines = (Runs,)
    fieldsets = (
        (
            None,
            {"fields": (("rule", "number", "version"), ("state", "accuracy_percent", "samples"), "user", "error_code")},
        ),
        ("Times", {"fields": ((exact_time("created_at"), exact_time("ended_at")),)}),
    )

    @admin.display(description="status")
    def state(self, evaluation: Evaluation) -> SafeString:
        return badge(evaluation.status)

    @admin.display(description="accuracy")
    def accuracy_percent(self, evaluation: Evaluation) -> str:
        return percent(evaluation.accuracy)

    @admin.display(description="error")
    def error_code(self, evaluation: Evaluation) -> str:
        return evaluation.error["code"] if evaluation.error else NOTHING
