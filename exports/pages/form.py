"""The form of an export. It builds the very body that the API takes; what is wrong is said by the API's serializer."""

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.core.files.uploadedfile import UploadedFile
from rest_framework.exceptions import ValidationError

from config.platform.http import problems
from config.platform.http.problems import InputError
from exports.api.serializers import ExportRequestSerializer
from exports.core.planning import Dialect
from exports.jobs.submission import ExportRequest
from exports.models import Dataset, Job
from exports.models.dataset import FORMATS
from exports.pages import pasted_pairs

MAX_FILE = 5 * 1024 * 1024  # bytes; what the API takes as a body
ITEMS, FILTERS = "items", "filters"
SEPARATORS = re.compile(r"[\s,;]+")

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar |"}
# Named ways to write CSV: what most people want, without knowing what a BOM is.
DIALECTS = {
    "standard": Dialect(),
    "excel": Dialect(bom=True, formula_policy="escape"),
    "excel-semicolon": Dialect(bom=True, delimiter=";", formula_policy="escape"),
}
WRITTEN_FOR = [
    ("standard", "Programs: exactly what Postgres writes"),
    ("excel", "Excel: special characters are right, and no cell runs as a formula"),
    ("excel-semicolon", "Excel where a comma is in numbers (1,5): the same, with semicolons"),
    ("own", "My own choice"),
]
FORMAT_CHOICES = [
    ("csv", "CSV"),
    ("jsonl", "JSON Lines: one object a row"),
    ("json", "JSON: with names and types of columns"),
]
DELIVERIES = [
    ("auto", "As fits: one chunk as its file, more as a zip"),
    ("single", "One file: all chunks behind each other"),
    ("zip", "A zip: a file for each chunk"),
    ("manifest", "A list of files, each fetched by itself"),
]


class ExportForm(forms.Form):
    dataset = forms.ChoiceField(label="Dataset")
    how = forms.ChoiceField(
        label="What to export",
        choices=[(ITEMS, "A list of keys and dates"), (FILTERS, "Some keys, every day from … to …")],
        widget=forms.RadioSelect,
        initial=ITEMS,
    )
    items = forms.CharField(
        label="Keys and dates, a pair a line",
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 8, "spellcheck": "false", "autocapitalize": "none", "placeholder": "JFK 2024-02-29"}
        ),
        help_text="KEY 2024-02-29 or KEY,2024-02-29. Columns copied from a spreadsheet are fine too.",
    )
    file = forms.FileField(
        label="Or a CSV file with them",
        required=False,
        help_text="A key and a date in each line. You can also drop it on the list above.",
        widget=forms.FileInput(attrs={"accept": ".csv,.tsv,.txt,text/csv,text/plain"}),
    )
    keys = forms.CharField(
        label="Keys",
        required=False,
        widget=forms.Textarea(
            attrs={"rows": 3, "spellcheck": "false", "autocapitalize": "none", "placeholder": "JFK LGA"}
        ),
        help_text="With spaces, commas or new lines between them.",
    )
    date_from = forms.CharField(label="From", required=False, widget=forms.TextInput(attrs={"type": "date"}))
    date_to = forms.CharField(label="To, included", required=False, widget=forms.TextInput(attrs={"type": "date"}))
    format = forms.ChoiceField(label="Format", choices=FORMAT_CHOICES, initial="csv")
    written_for = forms.ChoiceField(
        label="CSV is for",
        choices=WRITTEN_FOR,
        initial="standard",
        required=False,
        help_text="Counts for CSV only. Each way of writing has files of its own: those of another are not reused.",
    )
    delimiter = forms.ChoiceField(label="Between cells", choices=list(DELIMITERS.items()), required=False)
    bom = forms.BooleanField(label="Begin with a byte order mark: Excel then knows it is UTF-8", required=False)
    guard = forms.BooleanField(
        label="Put ' before text that begins with = + - or @, so that no spreadsheet runs it", required=False
    )
    compression = forms.ChoiceField(
        label="Compression", choices=[("none", "None"), ("gzip", "gzip: each file as .gz")], initial="none"
    )
    delivery = forms.ChoiceField(label="Delivered as", choices=DELIVERIES, initial="auto")
    reuse = forms.BooleanField(
        label="Take files that are there already",
        required=False,
        initial=True,
        help_text="They cost nothing and come at once. Without it everything is read anew from the source.",
    )
    allow_degraded = forms.BooleanField(
        label="If the source fails for good, take an older file",
        required=False,
        initial=True,
        help_text="The receipt then says so, and each chunk says of when its data is. Without it such a chunk fails.",
    )
    once = forms.UUIDField(required=False, widget=forms.HiddenInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, datasets: Iterable[Dataset], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(each.name, each.name) for each in datasets]
        self.fields["dataset"].choices = [("", "Choose one"), *choices] if len(choices) != 1 else choices  # type: ignore[attr-defined]
        self.lines: list[pasted_pairs.Line] = []
        self.wanted: ExportRequest | None = None
        self.body: dict[str, Any] = {}

    def full_clean(self) -> None:
        """Check it as a form, then as the API does. A form that is valid has `body` and `wanted`."""
        super().full_clean()
        if not self.is_bound or self.errors:
            return
        self.body = self.as_body(self.cleaned_data)
        try:
            self.wanted = ExportRequestSerializer.read(self.body)
        except ValidationError as refusal:
            self.say(list(problems.input_errors(refusal.detail)))

    def clean_file(self) -> str:
        """Return the text of a file; browsers that run scripts have put it into the list."""
        file: UploadedFile | None = self.cleaned_data["file"]
        if file is None:
            return ""
        if (file.size or 0) > MAX_FILE:
            raise forms.ValidationError("A list may have 5 MB. Ask by keys and dates from … to, or in several exports.")
        try:
            return str(file.read(), "utf-8-sig")
        except UnicodeDecodeError:
            raise forms.ValidationError("This is not text in UTF-8. Save it as CSV UTF-8.") from None

    def as_body(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the body of `POST /exports` that says the same."""
        shape = {"format": data["format"], "compression": data["compression"], "delivery": data["delivery"]}
        if data["format"] == "csv":
            shape["csv"] = dialect(data).as_json()
        return {
            "dataset": data["dataset"],
            **self.what(data),
            **shape,
            "reuse": "if-present" if data["reuse"] else "never",
            "allowDegraded": data["allow_degraded"],
        }

    def what(self, data: dict[str, Any]) -> dict[str, Any]:
        if data["how"] == FILTERS:
            keys = [key for key in SEPARATORS.split(data["keys"]) if key]
            return {"filters": {"keys": keys, "dateFrom": data["date_from"], "dateTo": data["date_to"]}}
        self.lines = pasted_pairs.read("\n".join(filter(None, (data["items"], data["file"]))))
        return {"items": pasted_pairs.items(self.lines)}

    def say(self, errors: list[InputError]) -> None:
        """Put each error at the field that made it; those of the list with the numbers of their lines."""
        of_items = [error for error in errors if error.pointer.startswith("/items")]
        for each in pasted_pairs.told(of_items, self.lines):
            self.add_error("items", WORDS.get(each, each))
        for error in errors:
            if error not in of_items:
                name, words = place(error)
                self.add_error(name if name in self.fields else None, words)

    def again(self) -> None:
        """Give the form a new key: what it made under the old one is made, and this is something else."""
        self.change("once", str(uuid4()))

    def keep_file(self) -> None:
        """Show the lines of a file in the list: a browser does not send a file twice, and errors name the lines."""
        if text := self.cleaned_data.get("file"):
            self.change("items", "\n".join(filter(None, (self.cleaned_data.get("items"), text))))

    def change(self, name: str, value: str) -> None:
        """Have the form show something else than what was sent."""
        data: Any = self.data
        self.data = data.copy()
        data = self.data
        data[name] = value


FIELDS = {
    "/dataset": "dataset",
    "/filters/keys": "keys",
    "/filters/dateFrom": "date_from",
    "/filters/dateTo": "date_to",
    "/filters": "keys",
    "/csv/delimiter": "delimiter",
    "/csv": "written_for",
    "/format": "format",
    "/compression": "compression",
    "/delivery": "delivery",
}
NOT_A_DAY = "Write it as 2024-02-29."
WORDS = {
    "Must not be empty.": "Write at least one pair of key and date.",
    "Must be a list of keys that is not empty.": "Write at least one key.",
    "Must be a date written YYYY-MM-DD.": NOT_A_DAY,
    "Must not be before dateFrom.": "This is before the first day.",
}


def place(error: InputError) -> tuple[str | None, str]:
    """Return the field of an error, and the words for it: a key is told by its number among the keys."""
    name = next((field for start, field in FIELDS.items() if within(error.pointer, start)), None)
    words = WORDS.get(error.detail, error.detail)
    number = re.fullmatch(r"/filters/keys/(\d+)", error.pointer)
    return name, f"Key {int(number[1]) + 1}: {words}" if number else words


def within(pointer: str, start: str) -> bool:
    return pointer == start or pointer.startswith(f"{start}/")


def dialect(data: dict[str, Any]) -> Dialect:
    known = DIALECTS.get(data["written_for"] or "standard")
    return known or Dialect(
        bom=data["bom"], delimiter=data["delimiter"] or ",", formula_policy="escape" if data["guard"] else "none"
    )


# ---- What it begins with --------------------------------------------------------------------------------------------


def fresh_initial() -> dict[str, Any]:
    return {"once": uuid4()}


def initial_like(job: Job) -> dict[str, Any]:
    """Return what the form begins with to ask for the same as a job."""
    written = job.shape.dialect
    known = next((name for name, each in DIALECTS.items() if each == written), "own")
    return {
        **fresh_initial(),
        "dataset": job.dataset.name,
        **asked(job),
        "format": job.format if job.format in FORMATS else "csv",
        "written_for": known,
        "delimiter": written.delimiter,
        "bom": written.bom,
        "guard": written.formula_policy == "escape",
        "compression": job.compression,
        "delivery": job.delivery,
        "reuse": job.reuse == "if-present",
        "allow_degraded": job.allow_degraded,
    }


def asked(job: Job) -> dict[str, Any]:
    if job.filters:
        filters = job.filters
        return {
            "how": FILTERS,
            "keys": "\n".join(filters["keys"]),
            "date_from": filters["dateFrom"],
            "date_to": filters["dateTo"],
        }
    pairs = job.chunks.in_request_order().values_list("key", "effective_date")
    return {"how": ITEMS, "items": pasted_pairs.text_of(pairs)}


def once_of(value: UUID | None) -> str:
    """Return the key that the form came with. A form without one is one of its own."""
    return str(value or uuid4())
