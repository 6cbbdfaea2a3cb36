"""The form of a result's data: one control for each value, typed by the rule's schema.

The form is plain HTML. Its fields are named by JSON Pointers: `v/total` has the text of a value, `n/lines` the number
of rows of a list, and `drop/lines/2` marks a row to remove. A control whose text was not changed keeps its exact
value. Parts that are too large for one form have separate pages.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from django.forms.utils import flatatt
from django.utils.safestring import SafeString
from django.utils.text import normalize_newlines

from config.platform import exact_json
from config.platform.http.paging import whole_number
from config.platform.http.pointers import join, tokens
from etl.core.json_changes import ABSENT
from etl.pages.tree import Sources, resolve
from etl.postprocessors.responses import scalars
from etl.postprocessors.schemas import Guide, Schema, as_map

MAX_FIELDS = 300  # fields of a form, without those of added rows
ROWS = 25  # rows of a long list that a page shows
MAX_NEW_ROWS = 50  # rows that a form may add to a list
NEW_LEVELS = 3  # nesting of objects that the data lacks; a recursive schema would nest them without limit
MAX_NEW_FIELDS = 1_000  # members of such objects in a form, and in each added row: each level multiplies their number
LONG = 60  # characters; longer texts get a control with several lines
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
BOOLEANS = {"true": True, "false": False}
SCALARS = {"integer": "number", "number": "number", "boolean": "boolean", "string": "text"}


class InvalidEntry(Exception):
    """Entered text that is invalid for its field. `args[0]` describes valid values to the user."""


@dataclasses.dataclass(slots=True, kw_only=True)
class EditField:
    """A control, or a group of them. `result`: the value to save. `pointer` names the controls; `target` is
    the pointer into the entered data, where rows may be missing. `is_linked`: the part has a separate page."""

    name: str
    key: str  # suffix of the IDs of its HTML elements
    pointer: str
    kind: str  # object, array, text, long, date, number, boolean, choice
    description: str = ""
    text: str = ""
    options: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    children: "list[EditField]" = dataclasses.field(default_factory=list)
    source: dict[str, Any] | None = None
    error: str = ""
    result: Any = ABSENT
    target: str = ""
    size: int = 0
    is_required: bool = False
    is_linked: bool = False
    is_row: bool = False
    is_removed: bool = False
    is_new: bool = False  # in a row that was just added: gets the focus

    @property
    def is_group(self) -> bool:
        return self.kind in ("object", "array")

    @property
    def attributes(self) -> SafeString:
        """The HTML attributes of the control: its descriptions, its validity, and the focus."""
        described = [f"h{self.key}"] * bool(self.description) + [f"e{self.key}"] * bool(self.error)
        invalid = "true" if self.error else None
        return flatatt(
            {"aria-describedby": " ".join(described) or None, "aria-invalid": invalid, "autofocus": self.is_new}
        )

    @property
    def all(self) -> "Iterator[EditField]":
        yield self
        for child in self.children:
            yield from child.all


class EditForm:
    """The form for the part of the data at a pointer. A long list shows its rows from `first` on.

    `posted`: the submitted form, or None to show the data as it is. `add`: the pointer of the list that gets a row.
    """

    def __init__(
        self,
        schema: Schema,
        data: Any,
        sources: Sources,
        *,
        at: str = "",
        first: int = 0,
        posted: Mapping[str, str] | None = None,
        add: str | None = None,
    ) -> None:
        self.data, self.sources, self.at, self.posted, self.add = data, sources, at, posted, add
        # Fields of added rows are not counted, so that the submitted form has the same parts as the displayed one.
        self.remaining, self.field_count, self.is_counted = MAX_FIELDS, 0, True
        self.remaining_new = MAX_NEW_FIELDS
        self.errors: list[str] = []  # errors that belong to no field
        part = resolve(data, at)
        self.first = first if isinstance(part, list) and first < len(part) else 0
        guide, name = guide_at(Guide.of(schema), data, at), at.rpartition("/")[2]
        self.root = self.build_field(guide, part, at, name=name, is_required=True)  # the part cannot be removed
        set_targets(self.root, at)

    @property
    def entered(self) -> Any:
        """The whole data with the entered part."""
        return replaced(self.data, tokens(self.at), self.root.result)

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or any(each.error for each in self.root.all)

    @property
    def rows_after(self) -> int | None:
        """The index of the first row after the ones shown, or None."""
        after = self.first + ROWS
        return after if self.root.kind == "array" and after < self.root.size else None

    @property
    def rows_before(self) -> int | None:
        return max(0, self.first - ROWS) if self.first else None

    def add_error(self, pointer: str, reason: str) -> None:
        """Add an error to the field at a pointer into the entered data, or to its nearest parent."""
        by_target = {each.target: each for each in self.root.all if not each.is_removed}
        below = pointer
        while below not in by_target and below:
            below = below.rpartition("/")[0]
        found = by_target.get(below)
        if found is None or (found is self.root and found.is_group):
            self.errors.append(f"{pointer or 'The data'}: {reason}")
        else:
            found.error = found.error or (reason if below == pointer else f"{pointer}: {reason}")

    # ---- Fields -----------------------------------------------------------------------------------------------------
    def build_field(
        self,
        guide: Guide,
        base: Any,
        pointer: str,
        *,
        name: str,
        levels: int = NEW_LEVELS,
        is_required: bool = False,
    ) -> EditField:
        """Return the field for a value. `levels`: how many levels of new objects it may have."""
        kind, self.field_count = kind_of(guide, base), self.field_count + 1
        description = guide.keyword("description")
        field = EditField(name=name, key=str(self.field_count), pointer=pointer, kind=kind, is_required=is_required)
        field.description = description if isinstance(description, str) else ""
        if kind == "object":
            self.fill_object(field, guide, base, levels)
        elif kind == "array":
            self.fill_list(field, guide, base)
        else:
            self.fill_value(field, guide, base)
        return field

    def link_if_too_large(self, field: EditField, base: Any) -> bool:
        """If a part is too large, make it a link to its own page, and keep its data. Return whether it is a link."""
        if field.pointer == self.at or base is ABSENT or base is None:
            return False
        field.size = len(base)
        limit = max(0, self.remaining)  # negative if the schema has members that the data lacks, which count too
        field.is_linked = sum(1 for _ in islice(scalars(base), limit + 1)) > limit
        if field.is_linked:
            field.result = base
        return field.is_linked

    def fill_object(self, field: EditField, guide: Guide, base: Any, levels: int) -> None:
        if self.link_if_too_large(field, base):
            return
        is_new = not isinstance(base, dict)
        known = {} if is_new else base
        levels -= is_new
        named = [name for part in guide.parts for name in as_map(part.get("properties"))]
        required = guide.required()
        for name in dict.fromkeys([*named, *known]):
            if not is_new or (levels > 0 and self.remaining_new > 0):
                self.remaining_new -= is_new
                inside, pointer = known.get(name, ABSENT), join(field.pointer, name)
                is_required = name in required
                child = self.build_field(
                    guide.member(name), inside, pointer, name=name, levels=levels, is_required=is_required
                )
                field.children.append(child)
        results = {child.name: child.result for child in field.children}
        order = dict.fromkeys([*known, *results])  # members keep their order
        found = {name: results[name] for name in order if results[name] is not ABSENT}
        field.result = found if found or isinstance(base, dict) else base

    def fill_list(self, field: EditField, guide: Guide, base: Any) -> None:
        if self.link_if_too_large(field, base):
            return
        rows = base if isinstance(base, list) else []
        field.size = len(rows)
        is_window = field.pointer == self.at
        first = self.first if is_window else 0
        shown = rows[first : first + ROWS] if is_window else rows
        for number in range(self.rows_of(field.pointer, len(shown))):
            old = shown[number] if number < len(shown) else ABSENT
            pointer = join(field.pointer, first + number)
            outside = self.is_counted, self.remaining_new
            if old is ABSENT:  # limits of its own, so that other parts of the form stay the same
                self.is_counted, self.remaining_new = False, MAX_NEW_FIELDS
            row = self.build_field(guide.item(), old, pointer, name=str(first + number + 1))
            if old is ABSENT:
                self.is_counted, self.remaining_new = outside
            row.is_row = True
            row.is_removed = self.posted is not None and f"drop{pointer}" in self.posted
            field.children.append(row)
        if self.add == field.pointer and field.children:
            first_field = next((each for each in field.children[-1].all if not each.is_group), field.children[-1])
            first_field.is_new = True
        results = [row.result for row in field.children if not row.is_removed and row.result is not ABSENT]
        whole = rows[:first] + results + rows[first + len(shown) :]
        field.result = whole if whole or isinstance(base, list) else base

    def rows_of(self, pointer: str, shown: int) -> int:
        """Return the number of rows in the form, including added rows."""
        if self.posted is None:
            return shown
        number = whole_number(self.posted.get(f"n{pointer}", ""), maximum=shown + MAX_NEW_ROWS)
        number = shown if number is None else max(number, shown)
        return min(number + (self.add == pointer), shown + MAX_NEW_ROWS)

    def fill_value(self, field: EditField, guide: Guide, base: Any) -> None:
        self.remaining -= self.is_counted
        before = text_of(base)
        if field.kind == "choice":
            values = choices(guide)
            field.options = [(exact_json.dumps(each).decode(), text_of(each)) for each in values if each is not None]
            before = "" if base is ABSENT or base is None else exact_json.dumps(base).decode()
            if before and before not in dict(field.options):
                field.options.append((before, text_of(base)))
        if field.kind == "text" and (len(before) > LONG or "\n" in before):
            field.kind = "long"
        source = (self.sources or {}).get(field.pointer)
        field.source = source if source and source["page"] else None
        given = (self.posted or {}).get(f"v{field.pointer}")
        field.text = before if given is None else given
        # Browsers send line breaks as CRLF.
        if given is None or normalize_newlines(given) == normalize_newlines(before):
            field.result = base
            return
        try:
            field.result = value_of(normalize_newlines(given), field, guide)
        except InvalidEntry as reason:
            field.result, field.error = base, str(reason)


# ---- Values ---------------------------------------------------------------------------------------------------------
def kind_of(guide: Guide, value: Any) -> str:
    """Return the kind of control for a value or, if the value is missing, for its schema."""
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "array"
    named = guide.keyword("type")
    types = [each for each in (named if isinstance(named, list) else [named]) if each != "null"]
    is_missing = value is None or value is ABSENT
    if is_missing and (types == ["object"] or (not types and guide.keyword("properties"))):
        return "object"
    if is_missing and (types == ["array"] or (not types and guide.keyword("items"))):
        return "array"
    if choices(guide):
        return "choice"
    kinds = {SCALARS.get(str(each), "text") for each in types}
    if len(kinds) == 1:
        (kind,) = kinds
    elif isinstance(value, bool):
        kind = "boolean"
    else:
        kind = "text" if is_missing or isinstance(value, str) else "number"
    if kind == "text" and guide.keyword("format") == "date" and (is_missing or DATE.fullmatch(str(value))):
        return "date"
    return kind


def choices(guide: Guide) -> list[Any]:
    listed, only = guide.keyword("enum"), [part["const"] for part in guide.parts if "const" in part]
    found = listed if isinstance(listed, list) else only
    return [each for each in found if not isinstance(each, dict | list)]


def text_of(value: Any) -> str:
    if value is None or value is ABSENT:
        return ""
    return value if isinstance(value, str) else exact_json.dumps(value).decode()


def value_of(text: str, field: EditField, guide: Guide) -> Any:
    """Return the value that was entered. Raises InvalidEntry."""
    if not text.strip() and (field.kind not in ("text", "long") or not text):
        return empty_value(field, guide)
    if field.kind == "number":
        return number_of(text.strip())
    if field.kind == "boolean":
        if text not in BOOLEANS:
            raise InvalidEntry("Choose yes or no.")
        return BOOLEANS[text]
    if field.kind == "choice":
        if text not in dict(field.options):
            raise InvalidEntry("Choose one of the values.")
        return exact_json.loads(text)
    if "\0" in text:
        raise InvalidEntry("Remove the NUL character, which cannot be stored.")
    return text


def number_of(text: str) -> Any:
    if not NUMBER.fullmatch(text):
        raise InvalidEntry("Enter a number such as 1234.50, with a point and without spaces or a currency.")
    try:
        return exact_json.loads(text)
    except ValueError as error:
        raise InvalidEntry(str(error)) from None


def empty_value(field: EditField, guide: Guide) -> Any:
    """Return the value of an emptied field: null if the schema allows it, else ABSENT or "". Raises InvalidEntry."""
    if guide.allows_null:
        return None
    if not field.is_required:
        return ABSENT
    if field.kind in ("text", "long"):
        return ""
    raise InvalidEntry("Enter a value.")


# ---- Positions ------------------------------------------------------------------------------------------------------
def guide_at(guide: Guide, data: Any, pointer: str) -> Guide:
    for token in tokens(pointer):
        is_list = isinstance(data, list)
        guide, data = (guide.item(), data[int(token)]) if is_list else (guide.member(token), data[token])
    return guide


def set_targets(field: EditField, target: str) -> None:
    """Set `target` of the field and of the fields in it. `target`: the pointer of `field` into the entered data."""
    field.target = target
    if field.kind == "object":
        for child in field.children:
            set_targets(child, join(target, child.name))
    elif field.kind == "array" and field.children:
        at = int(field.children[0].pointer.rpartition("/")[2])
        for child in field.children:
            set_targets(child, join(target, at))
            at += not (child.is_removed or child.result is ABSENT)


def replaced(data: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    name, *rest = path
    if isinstance(data, list):
        at = int(name)
        return [*data[:at], replaced(data[at], rest, value), *data[at + 1 :]]
    return {**data, name: replaced(data[name], rest, value)}
