"""The form of the rule editor. It builds the body of the API request, and the API's serializer validates it.

Nothing is validated twice. The API's errors are shown at their place in the text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.text import normalize_newlines

from config.platform.http.paging import whole_number
from config.platform.http.problems import BadInput, InputError
from config.platform.ui.base import show_in
from rules.library.editing import FIELDS
from rules.library.serializers import RuleSerializer
from rules.models import Rule, RuleVersion
from rules.pages import schema_text
from rules.pages.schema_text import Place, SchemaSize
from rules.schema.json_schema import PLACE

SCHEMA = "json_schema"
# The checkbox, and what a browser sends for it.
COMPLETE, CHECKED = "require_complete", "on"
MOST_SHOWN = 20
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


class RuleForm(forms.Form):
    """A rule as typed; the template renders its fields. `since`: the version that the editing started from."""

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
        return None if errors else values

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
        shown = errors[:MOST_SHOWN]
        seek = finder(self.typed(SCHEMA), [error.pointer.removeprefix(PLACE) for error in shown])
        for error in shown:
            field = field_of(error.pointer)
            inside = error.pointer.removeprefix(PLACE) if field == SCHEMA else ""
            label = str(self[field].label)
            found = seek(inside) if field == SCHEMA else None
            self.flaws.append(FormError(field=field, label=label, detail=error.detail, pointer=inside, place=found))
        if self.is_bound:
            self.is_valid()  # which Django wants before errors are added
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
