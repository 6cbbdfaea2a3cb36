"""Admin of datasets and of their files."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import connection
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin, TabularInline
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldBooleanSwitchWidget

from config.platform.admin.confirmed_actions import StaffActionAdmin
from config.platform.admin.display import date_or_age, exact_time, list_of, number, side_by_side
from config.platform.admin.lists import RestrictedFilters
from config.platform.durations import duration
from exports.admin import staff_actions
from exports.admin.columns import BYTES, ROWS
from exports.jobs.columns import as_stored
from exports.models import Dataset, File, Grant
from exports.models.dataset import FORMATS
from exports.source.examination import examine


class DatasetForm(forms.ModelForm):
    formats = forms.MultipleChoiceField(
        choices=[(name, name.upper()) for name in FORMATS],
        initial=FORMATS,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text="Formats that clients may request.",
    )
    open_to_all = forms.BooleanField(
        label="Open to all users when the last grant is deleted",
        required=False,
        widget=UnfoldBooleanSwitchWidget(),
        help_text="Otherwise, the last grant cannot be deleted.",
    )

    class Meta:
        model = Dataset
        fields = "__all__"  # noqa: DJ007 - the fieldsets of the admin select the fields
        help_texts = {
            "name": "The name that clients use in requests.",
            "base_path": "Folder for the files in the bucket, with segments joined by '/'. It must not overlap with "
            "the folder of another dataset or of documents (etl). Existing files are not moved.",
            "key_pattern": "A regular expression that every key must match.",
        }


class GrantFormSet(BaseInlineFormSet):
    """Grants of a dataset. The last grant can only be deleted with the confirmation `open_to_all`."""

    def clean(self) -> None:
        super().clean()
        had_grants = any(form.instance.pk for form in self.forms)
        filled = [form for form in self.forms if form.has_changed() or form.instance.pk]
        if had_grants and all(form in self.deleted_forms for form in filled) and "open_to_all" not in self.data:
            raise forms.ValidationError(
                "This is the last grant. Without one, all users can export the dataset. Confirm this to delete it."
            )


class Grants(TabularInline):
    model = Grant
    formset = GrantFormSet
    verbose_name_plural = "grants (without any, all users can export this dataset)"
    fields = ("group", "key_pattern")
    ordering = ("pk",)
    extra = 0

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Add names for screen readers, because the inputs in a table of inlines have no labels."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field:
            getattr(field.widget, "widget", field.widget).attrs["aria-label"] = db_field.verbose_name.capitalize()
        return field


@admin.register(Dataset)
class DatasetAdmin(RestrictedFilters, ModelAdmin):
    form = DatasetForm
    inlines = (Grants,)
    list_display = (
        "name", "origin", "base_path", "formats_text", "granted", "max_calls", "timeout", "related",
    )  # fmt: skip
    search_fields = ("name", "function", "base_path")
    ordering = ("name",)
    sortable_by = ()
    show_full_result_count = False
    actions = None
    warn_unsaved_form = True
    times = (exact_time("created_at"), exact_time("updated_at"))
    readonly_fields = ("described", "related", *times)
    fieldsets = (
        ("Dataset", {"fields": ("name", "function", "key_pattern", "formats", "show_errors")}),
        ("Files", {"fields": ("base_path", "schema_version", "reuse_max_age")}),
        ("Limits", {"fields": (("statement_timeout", "max_concurrency"), "allow_writes")}),
    )
    access = ("Access", {"fields": ("open_to_all",)})
    about = (None, {"fields": ("described", "related", times)})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        if obj is None:
            return list(self.fieldsets)
        may_open = obj.grants.exists() and request.user.has_perm("exports.delete_grant")
        fieldsets = BUILT_IN if obj.built_in else self.fieldsets
        return [*fieldsets, *([self.access] if may_open else []), self.about]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("grants__group")  # type: ignore[no-any-return]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Lock a dataset that is changed, so that two concurrent requests cannot delete the last two grants."""
        found = super().get_object(request, object_id, from_field)
        if found and request.method == "POST" and connection.in_atomic_block:  # the history page has no transaction
            Dataset.objects.select_for_update(no_key=True).get(pk=found.pk)
        return found

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("name", "origin", *self.readonly_fields) if obj and obj.built_in else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allow the deletion of datasets without jobs and files, except built-in ones."""
        if obj is None or obj.built_in or obj.jobs.exists() or obj.files.exists():
            return False
        return bool(super().has_delete_permission(request, obj))

    def save_model(self, request: HttpRequest, obj: Dataset, form: Any, change: Any) -> None:
        if obj.built_in:
            super().save_model(request, obj, form, change)
            return
        found = examine(obj.schema_and_name, allow_writes=obj.allow_writes)
        obj.columns = None if found.refusal else as_stored(found.columns)
        super().save_model(request, obj, form, change)
        if text := found.refusal or found.warning:  # not an error: the function may be created or changed later
            self.message_user(request, f"Saved, but exports may fail: {text}", messages.WARNING)

    @admin.display(description="function", ordering="function")
    def origin(self, dataset: Dataset) -> str:
        return dataset.built_in.description if dataset.built_in else dataset.function

    @admin.display(description="formats")
    def formats_text(self, dataset: Dataset) -> str:
        return ", ".join(dataset.formats)

    @admin.display(description="granted to")
    def granted(self, dataset: Dataset) -> str:
        return ", ".join(str(grant.group) for grant in dataset.grants.all()) or "all users"

    @admin.display(description="columns")
    def described(self, dataset: Dataset) -> str:
        columns = [f"{column['name']} ({column['type']})" for column in dataset.columns or ()]
        return ", ".join(columns) or "Not known. Save the dataset again when its function exists."

    @admin.display(description="max concurrent calls")
    def max_calls(self, dataset: Dataset) -> str:
        return number(dataset.max_concurrency) if dataset.max_concurrency else "no limit"

    @admin.display(description="timeout")
    def timeout(self, dataset: Dataset) -> str:
        return duration(dataset.statement_timeout)

    @admin.display(description="related")
    def related(self, dataset: Dataset) -> SafeString:
        query = {"dataset__id__exact": dataset.pk}
        models = {"job": "Exports", "chunk": "Chunks", "file": "Files", "slot": "Slots"}
        return side_by_side([list_of(model, text, query) for model, text in models.items()])


BUILT_IN = (
    ("Dataset", {"fields": ("name", "origin", "formats")}),
    ("Limits", {"fields": (("statement_timeout", "max_concurrency"),)}),
)


@admin.register(File)
class FileAdmin(StaffActionAdmin):
    row_actions = staff_actions.FILES
    list_display = ("__str__", "dataset", "schema_version", ROWS, BYTES, date_or_age("data_as_of"), "path")
    list_filter = ("dataset",)
    list_select_related = ("dataset",)
    search_fields = ("path",)  # a search by key would read the whole table, which is the largest one
    search_help_text = "Exact path"
    ordering = ("path",)
    fieldsets = (
        (None, {"fields": (("key", date_or_age("effective_date")), ("dataset", "schema_version"), "chunks")}),
        (
            "Object",
            {"fields": ((ROWS, BYTES, "header_bytes"), exact_time("data_as_of"), "path", "sha256", "etag")},
        ),
    )

    @admin.display(description="chunks")
    def chunks(self, file: File) -> SafeString:
        return list_of("chunk", "Chunks that created or reused it", {"path": file.path})
