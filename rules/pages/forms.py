"""The form of the rule editor. It builds the body of an API request, which the API's serializer validates.

So there is only one validation. The errors of the API are shown at their positions in the text.
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
from rules.schema.json_schema import SCHEMA_POINTER

SCHEMA = "json_schema"
# The checkbox, and the value that a browser sends for it.
COMPLETE, CHECKED = "require_complete", "on"
MAX_SHOWN = 20  # number of errors
UNREADABLE = "The changes in the table were not applied, because the schema is not valid JSON. Fix the text first."
NEW_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": ["string", "null"], "description": "As printed in the document."}},
    "required": ["title"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormError:
    """An error that the API would return. `pointer` is its location in the schema, `place` that in the text."""

    field: str
    label: str
    detail: str
    pointer: str = ""
    place: Place | None = None

    @property
    def target(self) -> str:
        """The ID of the input."""
        return f"id_{self.field}" if self.field in FIELDS else self.field


@dataclass(slots=True, kw_only=True)
class FieldTable:
    """The table of the schema's fields.

    `shown`: the rows that the page was rendered with; `edited`: the same rows with the user's edits; `rows`: the rows
    to render now. `is_kept`: the edited rows are rendered, because an edit was refused or the text is not valid JSON.
    """

    shown: list[Row] = field(default_factory=list)
    edited: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    is_edited: bool = False
    is_applied: bool = False  # the edits were applied to the text
    is_kept: bool = False
    has_group: bool = True  # the schema is empty, an object, or a list of objects
    added: str = ""  # the pointer of a new field
    flaw: FormError | None = None
    refused_row: int | None = None

    @classmethod
    def of(cls, data: Any) -> "FieldTable":
        shown = fields.shown_rows(data)
        edited = fields.edited_rows(data, shown)
        has_edits = edited != shown or fields.ADD in data or fields.REMOVE in data
        return cls(shown=shown, edited=edited, is_edited=has_edits)

    def show(self, text: str) -> None:
        """Set the rows from the schema's text, or keep the edited rows if an edit was refused."""
        try:
            schema = schema_text.read(text)
        except BadInput:
            self.is_kept = True
        else:
            self.has_group = not schema or fields.group_in(schema, "")[0] is not None
            self.is_kept = bool(self.flaw)
        self.rows = self.edited if self.is_kept else fields.rows_of(schema)

    @property
    def value(self) -> str:
        return fields.serialize(self.shown if self.is_kept else self.rows)

    @property
    def is_current(self) -> bool:
        """Whether the browser already shows these rows. Replacing them would only interrupt the user."""
        return self.is_kept or fields.same_table(self.rows, self.edited, self.shown)


class RuleForm(forms.Form):
    """A rule with the typed texts. The template renders the fields.

    `table` contains the fields of the schema. Edits of the table are applied to the schema's text first.
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
            self.apply_table(data)
        self.table.show(self.typed(SCHEMA))

    def apply_table(self, data: Any) -> None:
        """Apply the edits of the table to the schema's text. Keep both unchanged if the text is not valid JSON."""
        table = self.table = FieldTable.of(data)
        if not table.is_edited:
            return
        try:
            schema, table.added = fields.apply_edits(schema_text.read(self.typed(SCHEMA)), data, table.shown)
        except BadInput:
            table.flaw = FormError(field=fields.SHOWN, label="Fields", detail=UNREADABLE)
        except fields.FieldError as error:
            name = fields.NAME.format(error.number, "name")
            table.flaw = FormError(field=name, label="Fields", detail=error.detail)
            table.refused_row = error.number
        else:
            table.is_applied = True
            self.replace_schema(schema)

    def replace_schema(self, schema: Any) -> None:
        """Replace the schema's text in a bound form, and update the table."""
        self.data = {**dict(self.data.items()), SCHEMA: schema_text.write(schema)}
        self.table.show(self.typed(SCHEMA))

    def typed(self, name: str) -> str:
        """Return the text of a field as the browser shows it, with LF line endings."""
        value = self.data.get(name, "") if self.is_bound else self.get_initial_for_field(self.fields[name], name)
        return normalize_newlines(str(value or ""))

    def body(self) -> tuple[dict[str, Any], list[InputError]]:
        """Return the body for the API, and the errors of a schema that is not JSON, which is empty in the body.

        Fields that the user did not edit keep their stored values, because browsers change line endings.
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
        """Return the validated values, or None if they are invalid: `flaws` and the fields have the errors then."""
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
        """Remove the error of a missing name, which is only reported when the user saves a new rule."""
        others = [flaw for flaw in self.flaws if flaw.field != "name" or self.typed("name")]
        self.lacks_name, self.flaws = len(others) < len(self.flaws), others

    def formatted(self) -> str | None:
        """Return the formatted schema, or None if it is invalid or too large. Indentation could take gigabytes."""
        try:
            schema = schema_text.read(self.typed(SCHEMA))
        except BadInput:
            return None
        return schema_text.write(schema) if schema is None or schema_text.schema_size(schema).is_within else None

    def since(self) -> int | None:
        """Return the version that the user started to edit, or None."""
        return whole_number(str(self.data.get("since", ""))) or None

    def show(self, errors: list[InputError]) -> None:
        shown = errors[:MAX_SHOWN]
        find = finder(self.typed(SCHEMA), [error.pointer.removeprefix(SCHEMA_POINTER) for error in shown])
        for error in shown:
            field = field_of(error.pointer)
            inside = error.pointer.removeprefix(SCHEMA_POINTER) if field == SCHEMA else ""
            label = str(self[field].label)
            place = find(inside) if field == SCHEMA else None
            self.flaws.append(FormError(field=field, label=label, detail=error.detail, pointer=inside, place=place))
        if self.is_bound:
            self.is_valid()  # Django requires this before errors are added
            show_in(self, BadInput(*errors), fields=field_of)


def field_of(pointer: str) -> str:
    """Return the field that a pointer into the body refers to. Errors of the whole body are shown at the schema."""
    name = pointer.split("/")[1] if pointer.startswith("/") else ""
    return name if name in FIELDS else SCHEMA


def finder(text: str, pointers: list[str]) -> Callable[[str], Place | None]:
    """Return a function that returns the position of one of these pointers, or of its nearest parent, in the text."""
    if not text.strip() or schema_text.is_too_long(text):
        return lambda _: None
    if syntax_error := schema_text.syntax_error_in(text):
        return lambda _: syntax_error
    try:
        schema_text.read(text)
    except BadInput:  # valid JSON that is refused, for example because it is nested too deeply
        return lambda _: None
    known = schema_text.spans(text, pointers)

    def find(pointer: str) -> Place:
        while pointer not in known:
            pointer = pointer.rpartition("/")[0]
        return schema_text.place(text, known[pointer])

    return find


def editor_texts(rule: Rule | RuleVersion) -> dict[str, str]:
    """Return the content of a rule as the texts of the editor's fields."""
    texts = {name: normalize_newlines(getattr(rule, name)) for name in FIELDS if name not in {SCHEMA, COMPLETE}}
    texts[COMPLETE] = CHECKED if rule.require_complete else ""
    return {**texts, "name": texts["name"].replace("\n", ""), SCHEMA: schema_text.write(rule.json_schema)}


def of_rule(rule: Rule) -> RuleForm:
    return RuleForm(rule=rule, initial={**editor_texts(rule), "since": rule.version})


def copy_of(rule: Rule) -> RuleForm:
    return RuleForm(initial={**editor_texts(rule), "name": f"{rule.name} (mine)"[:200]})


def empty() -> RuleForm:
    return RuleForm(initial={"postprocess_mode": "llm", SCHEMA: schema_text.write(NEW_SCHEMA)})
