"""Datasets, the one thing of exports that is typed in, and the files that were made of them."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from config.platform.admin.confirmed_actions import WithVerbs
from config.platform.admin.display import instant, list_of, moment, number, side_by_side, size
from config.platform.admin.lists import OwnFilters
from exports.admin import staff_actions
from exports.core.errors import ExportError
from exports.models import Dataset, File
from exports.models.dataset import FORMATS
from exports.source import database


class DatasetForm(forms.ModelForm):
    formats = forms.MultipleChoiceField(
        choices=[(name, name.upper()) for name in FORMATS],
        initial=FORMATS,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text="What may be asked for.",
    )

    class Meta:
        model = Dataset
        fields = "__all__"  # noqa: DJ007  the fieldsets of the admin choose
        help_texts = {
            "name": "As clients write it in their requests.",
            "base_path": "The folder of its files in the bucket: segments joined by '/'. It may not hold, or lie in, "
            "that of another dataset. Files that exist stay where they are.",
            "key_pattern": "A regular expression that every key must match.",
        }


@admin.register(Dataset)
class DatasetAdmin(OwnFilters, ModelAdmin):
    form = DatasetForm
    list_display = ("name", "function", "base_path", "offered", "schema_version", "calls_at_once", "timeout", "related")
    search_fields = ("name", "function", "base_path")
    ordering = ("name",)
    sortable_by = ()
    show_full_result_count = False
    actions = None
    warn_unsaved_form = True
    times = (instant("created_at"), instant("updated_at"))
    readonly_fields = ("related", *times)
    fieldsets = (
        ("What", {"fields": ("name", "function", "key_pattern", "formats")}),
        ("Files", {"fields": ("base_path", "schema_version", "reuse_max_age")}),
        ("Limits", {"fields": (("statement_timeout", "max_concurrency"),)}),
    )
    about = (None, {"fields": ("related", times)})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return [*self.fieldsets, self.about] if obj else list(self.fieldsets)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only what nothing was made of yet; jobs and files would lose what tells what they are."""
        if obj is None or obj.jobs.exists() or obj.files.exists():
            return False
        return bool(super().has_delete_permission(request, obj))

    def save_model(self, request: HttpRequest, obj: Dataset, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        if trouble := trouble_with(obj):
            self.message_user(request, trouble, messages.WARNING)

    @admin.display(description="formats")
    def offered(self, dataset: Dataset) -> str:
        return ", ".join(dataset.formats)

    @admin.display(description="calls at once")
    def calls_at_once(self, dataset: Dataset) -> str:
        return number(dataset.max_concurrency) if dataset.max_concurrency else "no limit of its own"

    @admin.display(description="timeout")
    def timeout(self, dataset: Dataset) -> str:
        return f"{dataset.statement_timeout} s"

    @admin.display(description="related")
    def related(self, dataset: Dataset) -> SafeString:
        of_it = {"dataset__id__exact": dataset.pk}
        models = {"job": "Jobs", "chunk": "Chunks", "file": "Files", "slot": "Slots"}
        return side_by_side([list_of(model, text, of_it) for model, text in models.items()])


def trouble_with(dataset: Dataset) -> str:
    """Say why the dataset's function cannot be used, or nothing. No reason to refuse it: it may be made later."""
    try:
        with database.Session() as session:
            columns = session.columns(dataset.schema_and_name)
    except ExportError as error:
        return f"Saved, but {dataset.function} cannot be used now: {error.code} {error.detail}".strip()
    return "" if columns else f"Saved, but {dataset.function} returns no columns; it must return a table."


@admin.register(File)
class FileAdmin(WithVerbs):
    verbs = staff_actions.FILES
    list_display = ("__str__", "dataset", "schema_version", "row_count", "size", moment("data_as_of"), "path")
    list_filter = ("dataset",)
    list_select_related = ("dataset",)
    search_fields = ("path", "key")
    search_help_text = "A whole path, or a whole key"
    ordering = ("path",)
    fieldsets = (
        (None, {"fields": (("key", moment("effective_date")), ("dataset", "schema_version"), "chunks")}),
        (
            "Object",
            {"fields": (("row_count", "size", "header_bytes"), instant("data_as_of"), "path", "sha256", "etag")},
        ),
    )

    @admin.display(description="rows")
    def row_count(self, file: File) -> str:
        return number(file.rows)

    @admin.display(description="size")
    def size(self, file: File) -> str:
        return size(file.bytes)

    @admin.display(description="chunks")
    def chunks(self, file: File) -> SafeString:
        return list_of("chunk", "Chunks that made or use it", {"path": file.path})
