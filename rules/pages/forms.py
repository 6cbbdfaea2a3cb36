"""The form of the rule editor. It builds the body of the API request, and the API's serializer validates it.

Nothing is validated twice. The API's errors are shown at their place in the text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.utils.text import normalize_newlines

from config.platform.http.paging import whole_number
from config.platform.http.problems import BadInput, InputError
from config.platform.ui.base import show_in
from rules.library.editing import FIELDS
from rules.library.serializers import RuleSerializer
from rules.models import Rule, RuleVersion
from rules.pages import fields, schema_text
from rules.pages.fields import Row
from rules.pages.schema_text import Place, SchemaSize
from rules.schema.json_schema import PLACE

SCHEMA = "json_schema"
# The checkbox, and the value that a browser sends for it.
COMPLETE, CHECKED = "require_complete", "on"
MAX_SHOWN = 20
UNREADABLE = "The table was not applied, because the schema's text is not valid JSON. Fix the text first."
NEW_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": ["string", "null"], "description": "As printed in the document."}},
    "required": ["title"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormError:
    """An error that the API would return. `place` is the position in the schema's text, `pointer` in the schema."""

    field: str
    label: str
    detail: str
    pointer: str = ""
    place: Place | None = None

    @property
    def target(self) -> str:
        """The id of the input."""
        return f"id_{self.field}" if self.field in FIELDS else self.field


@dataclass(slots=True, kw_only=True)
class FieldTable:
    """The table of the schema's fields. `shown`: the rows that the page was sent with; `typed`: those that it returned;
    `rows`: those to show. `is_kept`: they stay as typed, because an edit was refused or the text cannot be read.
    """

    shown: list[Row] = field(default_factory=list)
    typed: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    is_edited: bool = False
    is_applied: bool = False  # the edits are in the text
    is_kept: bool = False
    has_group: bool = True  # the schema is an object or a list of objects, or there is none yet
    added: str = ""  # the pointer of a new field
    flaw: FormError | None = None
    refused_row: int | None = None

    @classmethod
    def of(cls, data: Any) -> "FieldTable":
        shown = fields.shown_in(data)
        typed = fields.typed_in(data, shown)
        return cls(shown=shown, typed=typed, is_edited=typed != shown or fields.ADD in data or fields.REMOVE in data)

    def show(self, text: str) -> None:
        """Set the rows of a text; those of a refused edit stay as they were typed."""
        try:
            schema = schema_text.read(text)
        except BadInput:
            self.is_kept = True
        else:
            self.has_group = not schema or fields.group_in(schema, "")[0] is not None
            self.is_kept = bool(self.flaw)
        self.rows = self.typed if self.is_kept else fields.rows_of(schema)

    @property
    def value(self) -> str:
        return fields.as_shown(self.shown if self.is_kept else self.rows)

    @property
    def is_current(self) -> bool:
        """Whether the browser already shows the rows. Replacing them would only interrupt the user."""
        return self.is_kept or fields.same_table(self.rows, self.typed, self.shown)


class RuleForm(forms.Form):
    """A rule as typed; the template renders its fields. `since`: the version that the editing started from.

    `table` has the fields of the schema. Edits of the table are applied to the schema's text first.
    """

    name = forms.CharField(required=False, strip=False)
    description = forms.CharField(required=False, strip=False)
    postprocess_mode = forms.CharField(label="Mode", required=False)
    postprocess_strategy = forms.CharField(label="Strategy", required=False)
    require_complete = forms.CharField(label="Require complete documents", required=False)
    system_prompt = forms.CharField(label="Prompt", required=False, strip=False)
    json_schema = forms.CharField(label="JSON Schema", required=False, strip=False)

    def __init__(self, data: Any = None, *, rule: Rule | None = None, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial)
        self.rule = rule
        self.flaws: list[FormError] = []
        self.schema_size: SchemaSize | None = None
        self.lacks_name = False
        self.table = FieldTable()
        if data is not None:
            self.take_table(data)
        self.table.show(self.typed(SCHEMA))

    def take_table(self, data: Any) -> None:
        """Apply the edits of the table to the schema's text. A text that cannot be read stays, and so do the edits."""
        table = self.table = FieldTable.of(data)
        if not table.is_edited:
            return
        try:
            schema, table.added = fields.edited(schema_text.read(self.typed(SCHEMA)), data, table.shown)
        except BadInput:
            table.flaw = FormError(field=fields.SHOWN, label="Fields", detail=UNREADABLE)
        except fields.FieldError as error:
            at = fields.NAME.format(error.number, "name")
            table.flaw = FormError(field=at, label="Fields", detail=error.detail)
            table.refused_row = error.number
        else:
            self.table.is_applied = True
            self.replace_schema(schema)

    def replace_schema(self, schema: Any) -> None:
        """Replace the text of a bound form, and with it the rows of the table."""
        self.data = {**{name: self.data.get(name) for name in self.data}, SCHEMA: schema_text.write(schema)}
        self.table.show(self.typed(SCHEMA))

    def typed(self, name: str) -> str:
        """Return a field as the browser shows it, with LF line ends."""
        value = self.data.get(name, "") if self.is_bound else self.get_initial_for_field(self.fields[name], name)
        return normalize_newlines(str(value or ""))

    def body(self) -> tuple[dict[str, Any], list[InputError]]:
        """Return the body for the API, and errors if the schema is not JSON; then the body has an empty schema.

        Fields that the user did not edit keep their stored values, because a browser changes their line ends.
        """
        typed: dict[str, Any] = {name: self.typed(name) for name in FIELDS}
        untouched = editor_texts(self.rule) if self.rule else {}
        kept = {name: getattr(self.rule, name) for name in FIELDS if untouched.get(name) == typed[name]}
        typed[COMPLETE] = bool(typed[COMPLETE])
        broken: list[InputError] = []
        if SCHEMA not in kept:
            try:
                typed[SCHEMA] = schema_text.read(typed[SCHEMA])
            except BadInput as refused:
                typed[SCHEMA], broken = {}, list(refused.errors)
        return {**typed, **kept}, broken

    def read(self) -> dict[str, Any] | None:
        """Return the validated values. None: the API would refuse them; `flaws` and the fields have the errors."""
        body, errors = self.body()
        if not errors and body[SCHEMA] is not None:
            self.schema_size = schema_text.schema_size(body[SCHEMA])
        values: dict[str, Any] | None = None
        try:
            values = RuleSerializer.read(body)
        except BadInput as refused:
            errors += refused.errors
        if errors:
            self.show(errors)
        if self.table.flaw:
            self.flaws.append(self.table.flaw)
        return None if self.flaws else values

    def hide_missing_name(self) -> None:
        """Do not report the empty name of a new rule before the user saves it."""
        left = [flaw for flaw in self.flaws if flaw.field != "name" or self.typed("name")]
        self.lacks_name, self.flaws = len(left) < len(self.flaws), left

    def formatted(self) -> str | None:
        """Return the formatted schema, or None if it is not JSON or too large: indentation could make it gigabytes."""
        try:
            schema = schema_text.read(self.typed(SCHEMA))
        except BadInput:
            return None
        return schema_text.write(schema) if schema is None or schema_text.schema_size(schema).is_within else None

    def since(self) -> int | None:
        """Return the version that the editing started from, if the form has it."""
        return whole_number(str(self.data.get("since", ""))) or None

    def show(self, errors: list[InputError]) -> None:
        shown = errors[:MAX_SHOWN]
        seek = finder(self.typed(SCHEMA), [error.pointer.removeprefix(PLACE) for error in shown])
        for error in shown:
            field = field_of(error.pointer)
            inside = error.pointer.removeprefix(PLACE) if field == SCHEMA else ""
            label = str(self[field].label)
            found = seek(inside) if field == SCHEMA else None
            self.flaws.append(FormError(field=field, label=label, detail=error.detail, pointer=inside, place=found))
        if self.is_bound:
            self.is_valid()  # Django requires this before errors are added
            show_in(self, BadInput(*errors), fields=field_of)


def field_of(pointer: str) -> str:
    """Return the field of a pointer into the body. Errors of the whole body are shown at the schema."""
    name = pointer.split("/")[1] if pointer.startswith("/") else ""
    return name if name in FIELDS else SCHEMA


def finder(text: str, pointers: list[str]) -> Callable[[str], Place | None]:
    """Return a function that finds the position of one of these pointers in the schema's text, or of its nearest
    parent."""
    if not text.strip() or schema_text.is_too_long(text):
        return lambda _: None
    if broken := schema_text.broken_at(text):
        return lambda _: broken
    try:
        schema_text.read(text)
    except BadInput:  # too deep to be walked
        return lambda _: None
    known = schema_text.spans(text, pointers)

    def find(pointer: str) -> Place:
        while pointer not in known:
            pointer = pointer.rpartition("/")[0]
        return schema_text.place(text, known[pointer])

    return find


def editor_texts(rule: Rule | RuleVersion) -> dict[str, str]:
    """Return the content of a rule as texts of the editor's fields."""
    texts = {name: normalize_newlines(getattr(rule, name)) for name in FIELDS if name not in {SCHEMA, COMPLETE}}
    texts[COMPLETE] = CHECKED if rule.require_complete else ""
    return {**texts, "name": texts["name"].replace("\n", ""), SCHEMA: schema_text.write(rule.json_schema)}


def of_rule(rule: Rule) -> RuleForm:
    return RuleForm(rule=rule, initial={**editor_texts(rule), "since": rule.version})


def copy_of(rule: Rule) -> RuleForm:
    return RuleForm(initial={**editor_texts(rule), "name": f"{rule.name} (mine)"[:200]})


def empty() -> RuleForm:
    return RuleForm(initial={"postprocess_mode": "llm", SCHEMA: schema_text.write(NEW_SCHEMA)})
