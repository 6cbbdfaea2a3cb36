"""The form for an export. It builds the body of the API request, which the API's serializer validates."""

import re
from copy import copy
from typing import Any
from uuid import uuid4

from django import forms
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from rest_framework.exceptions import ValidationError

from config.platform.http import problems
from config.platform.http.paging import whole_number
from config.platform.http.problems import InputError
from exports.api.serializers import ExportRequestSerializer
from exports.core.planning import Dialect
from exports.jobs.submission import ExportRequest
from exports.models import Dataset
from exports.models.dataset import Kind
from exports.models.job import MAX_NAME
from exports.pages import pasted_pairs
from exports.pages.form_choices import (
    CSV_PRESETS,
    DELIMITERS,
    DELIVERIES,
    DIALECTS,
    DOCUMENT_STATUSES,
    FORMAT_CHOICES,
    lifetimes,
)
from exports.pages.form_errors import FORM_TEXTS, field_and_text
from exports.pages.recent_keys import recent_keys
from rules.library.choices import rules_for

MAX_FILE = 5 * 1024 * 1024  # bytes: the API's limit for a request body
ITEMS, FILTERS = "items", "filters"
SEPARATORS = re.compile(r"[\s,;]+")


class ExportForm(forms.Form):
    dataset = forms.ChoiceField(label="Dataset")
    name = forms.CharField(
        label="Name (optional)",
        required=False,
        max_length=MAX_NAME,
        help_text="Helps you find the export in the list.",
    )
    mode = forms.ChoiceField(
        label="Chunks",
        choices=[(ITEMS, "A list of keys and dates"), (FILTERS, "Keys and a date range")],
        widget=forms.RadioSelect,
        initial=ITEMS,
    )
    items = forms.CharField(
        label="Keys and dates, one pair per line",
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 8, "spellcheck": "false", "autocapitalize": "none", "placeholder": "JFK 2013-02-15"}
        ),
        help_text="Write JFK 2013-02-15 or JFK,2013-02-15, or paste columns from a spreadsheet.",
    )
    file = forms.FileField(
        label="Or upload a CSV file",
        required=False,
        help_text="One key and date per line. You can also drop the file on the list above.",
        widget=forms.FileInput(attrs={"accept": ".csv,.tsv,.txt,text/csv,text/plain"}),
    )
    keys = forms.CharField(
        label="Keys",
        required=False,
        widget=forms.Textarea(
            attrs={"rows": 3, "spellcheck": "false", "autocapitalize": "none", "placeholder": "JFK LGA"}
        ),
        help_text="Separate keys with spaces, commas or line breaks.",
    )
    date_from = forms.CharField(label="From", required=False, widget=forms.TextInput(attrs={"type": "date"}))
    date_to = forms.CharField(label="To (inclusive)", required=False, widget=forms.TextInput(attrs={"type": "date"}))
    rule = forms.ChoiceField(label="Rule", required=False)
    status = forms.ChoiceField(label="Status", required=False, choices=DOCUMENT_STATUSES)
    batch = forms.IntegerField(
        label="Batch",
        required=False,
        min_value=1,
        widget=forms.NumberInput(attrs={"placeholder": "All documents"}),
        help_text="The number of one of your batches.",
    )
    format = forms.ChoiceField(label="Format", choices=FORMAT_CHOICES, initial="csv")
    written_for = forms.ChoiceField(
        label="CSV dialect",
        choices=CSV_PRESETS,
        initial="standard",
        required=False,
        help_text="CSV only. Files are reused only within the same dialect.",
    )
    delimiter = forms.ChoiceField(label="Delimiter", choices=list(DELIMITERS.items()), required=False)
    bom = forms.BooleanField(label="Add a byte order mark, so that Excel detects UTF-8", required=False)
    guard = forms.BooleanField(label="Escape formulas: prefix text that starts with = + - or @ with '", required=False)
    compression = forms.ChoiceField(
        label="Compression",
        choices=[("none", "None"), ("gzip", "gzip (.gz files)"), ("zstd", "Zstandard (.zst files)")],
        initial="none",
        help_text="Parquet files are always compressed internally.",
    )
    columns = forms.CharField(
        label="Columns",
        required=False,
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none", "placeholder": "All columns"}),
        help_text="Names separated by commas, in the order of the file. Empty: all columns of the dataset.",
    )
    delivery = forms.ChoiceField(label="Delivery", choices=DELIVERIES, initial="auto")
    keep_for = forms.TypedChoiceField(
        label="Keep the delivery for",
        required=False,
        coerce=int,
        empty_value=None,
        help_text="During this time you can download as often as you like.",
    )
    reuse = forms.BooleanField(
        label="Reuse existing files",
        required=False,
        initial=True,
        help_text="Reused files are available immediately and use no quota. "
        "Otherwise all chunks are read from the source.",
    )
    allow_degraded = forms.BooleanField(
        label="Use older files if the source fails",
        required=False,
        initial=True,
        help_text="The receipt is then marked as degraded, and each chunk shows the age of its data. "
        "Otherwise the chunk fails.",
    )
    once = forms.UUIDField(required=False, widget=forms.HiddenInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, user_id: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user_id = user_id
        self.datasets = list(Dataset.objects.granted_to(user_id).in_order())
        choices = [(each.name, label_of(each)) for each in self.datasets]
        self.function_count = sum(each.kind == Kind.FUNCTION for each in self.datasets)
        first = [("", "Choose a dataset")] if self.function_count > 1 else []
        self.fields["dataset"].choices = [*first, *choices]  # type: ignore[attr-defined]
        self.fields["rule"].choices = [("", "All rules"), *self.rules()]  # type: ignore[attr-defined]
        self.fields["keep_for"].choices = lifetimes()  # type: ignore[attr-defined]
        self.lines: list[pasted_pairs.PastedLine] = []
        self.validated_request: ExportRequest | None = None
        self.body: dict[str, Any] = {}

    def full_clean(self) -> None:
        """Validate the fields, then the API request. Sets `body` and `validated_request`."""
        super().full_clean()
        if not self.is_bound or self.errors:
            return
        name = self.cleaned_data["name"]
        self.body = {**({"name": name} if name else {}), **self.as_body(self.cleaned_data)}
        try:
            self.validated_request = ExportRequestSerializer.read(self.body, self.user_id)
        except ValidationError as refusal:
            self.add_api_errors(list(problems.input_errors(refusal.detail)))

    def clean_file(self) -> str:
        """Return the text of the uploaded file. With JavaScript, the browser has already copied it into the list."""
        file: UploadedFile | None = self.cleaned_data["file"]
        if file is None:
            return ""
        if (file.size or 0) > MAX_FILE:
            raise forms.ValidationError(
                "The file is larger than 5 MB. Use keys and a date range, or split it into several exports."
            )
        try:
            return str(file.read(), "utf-8-sig")
        except UnicodeDecodeError:
            raise forms.ValidationError("The file is not UTF-8 text. Save it as CSV UTF-8.") from None

    def rules(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Return the rules in groups. The selected rule is included even if it was deleted."""
        _, groups = rules_for(User.objects.get(pk=self.user_id))
        rule = str(self["rule"].value() or "")
        is_listed = any(rule == value for _, rules in groups for value, _ in rules)
        return groups if is_listed or not whole_number(rule) else [*groups, ("Other", [(rule, f"Rule {rule}")])]

    def selected_dataset(self) -> Dataset | None:
        """Return the selected dataset. By default, the browser selects the first choice."""
        choices: Any = self.fields["dataset"].choices  # type: ignore[attr-defined]
        name = self["dataset"].value() or next((value for value, _ in choices), "")
        return next((each for each in self.datasets if each.name == name), None)

    def recent_keys(self) -> list[str]:
        return recent_keys(self.selected_dataset(), self.user_id)

    def is_of_documents(self) -> bool:
        dataset = self.selected_dataset()
        return dataset is not None and dataset.kind == Kind.DOCUMENTS

    def as_body(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the equivalent body of `POST /exports`."""
        shape: dict[str, Any] = {
            "format": data["format"],
            "compression": data["compression"],
            "delivery": data["delivery"],
        }
        if self.is_of_documents():
            choices: dict[str, Any] = {}
        else:
            choices = {"reuse": "if-present" if data["reuse"] else "never", "allowDegraded": data["allow_degraded"]}
            if columns := column_names(data["columns"]):
                choices["columns"] = columns
        if data["format"] == "parquet":
            del shape["compression"]
        if data["format"] == "csv":
            shape["csv"] = dialect(data).as_json()
        return {
            "dataset": data["dataset"],
            **self.selection(data),
            **shape,
            **choices,
            **({"deliveryTtlSeconds": data["keep_for"]} if data["keep_for"] else {}),
        }

    def selection(self, data: dict[str, Any]) -> dict[str, Any]:
        if self.is_of_documents():
            dates = {"dateFrom": data["date_from"], "dateTo": data["date_to"]}
            filters = {**document_filters(data), "batchId": data["batch"], **dates}
            return {"filters": {name: value for name, value in filters.items() if value}}
        if data["mode"] == FILTERS:
            keys = [key for key in SEPARATORS.split(data["keys"]) if key]
            return {"filters": {"keys": keys, "dateFrom": data["date_from"], "dateTo": data["date_to"]}}
        self.lines = pasted_pairs.read("\n".join(filter(None, (data["items"], data["file"]))))
        return {"items": pasted_pairs.items(self.lines)}

    def add_api_errors(self, errors: list[InputError]) -> None:
        """Add each error to its field. Errors in the list of pairs start with their line number."""
        of_items = [error for error in errors if error.pointer.startswith("/items")]
        for each in pasted_pairs.sentences(of_items, self.lines):
            self.add_error("items", FORM_TEXTS.get(each, each))
        for error in errors:
            if error not in of_items:
                name, text = field_and_text(error)
                self.add_error(name if name in self.fields else None, text)

    def renew_key(self) -> None:
        """Replace the idempotency key, which was used for a different export."""
        self.change("once", str(uuid4()))

    def keep_file(self) -> None:
        """Copy the lines of the file into the list: browsers don't send a file again, and errors have line numbers."""
        if text := self.cleaned_data.get("file"):
            self.change("items", "\n".join(filter(None, (self.cleaned_data.get("items"), text))))

    def change(self, name: str, value: str) -> None:
        """Replace a submitted value in the form."""
        data: Any = copy(self.data)
        data[name] = value
        self.data = data


def label_of(dataset: Dataset) -> str:
    return f"{dataset.name}: {dataset.built_in.description.lower()}" if dataset.built_in else dataset.name


def document_filters(data: dict[str, Any]) -> dict[str, Any]:
    """Return the filters for documents that exports and schedules share."""
    filters = {"ruleId": int(data["rule"]) if data["rule"] else None, "status": data["status"]}
    return {name: value for name, value in filters.items() if value}


def column_names(text: str) -> list[str]:
    """Return the names in a line of CSV, where names that contain commas are in quotes."""
    return [name for name in pasted_pairs.csv_cells(text) if name]


def dialect(data: dict[str, Any]) -> Dialect:
    preset = DIALECTS.get(data["written_for"] or "standard")
    return preset or Dialect(
        bom=data["bom"], delimiter=data["delimiter"] or ",", formula_policy="escape" if data["guard"] else "none"
    )
