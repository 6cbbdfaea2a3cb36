"""The form of a result's data: one control for each value, typed by the rule's schema.

The form is plain HTML. Its fields are named by JSON Pointers: `v/total` has the text of a value, `n/lines` the number
of rows of a list, and `drop/lines/2` marks a row to remove. A control whose text was not changed keeps its value as it
is, with every digit. Parts that are too large for one form have pages of their own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.forms.utils import flatatt
from django.utils.safestring import SafeString

from config.platform import exact_json
from config.platform.http.paging import whole_number
from config.platform.http.pointers import join, tokens
from etl.core.json_changes import ABSENT
from etl.pages.tree import Sources, resolve
from etl.postprocessors.responses import scalars
from etl.postprocessors.schemas import Guide, Schema, as_map

MAX_FIELDS = 300  # of a form, besides those of added rows
ROWS = 25  # of a long list, at a time
NEW_ROWS = 50  # that a form may add
NEW_LEVELS = 3  # of objects that do not exist yet, which a schema may nest without limit
LONG = 60  # characters; longer texts get several lines
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TRUTHS = {"true": True, "false": False}
SCALARS = {"integer": "number", "number": "number", "boolean": "truth", "string": "text"}


class InvalidEntry(Exception):
    """A text that is not a value of its field. `args[0]` describes the values, for the user."""


@dataclass(slots=True, kw_only=True)
class EditField:
    """A control, or a group of them. `result`: the value that was entered. `pointer` names the controls; `target` is
    the place in the entered data, where rows may be missing. `is_linked`: the part has a page of its own."""

    name: str
    key: str  # of the ids of its elements
    pointer: str
    kind: str  # object, array, text, long, date, number, truth, choice
    about: str = ""
    text: str = ""
    options: list[tuple[str, str]] = field(default_factory=list)
    children: "list[EditField]" = field(default_factory=list)
    source: dict[str, Any] | None = None
    error: str = ""
    result: Any = ABSENT
    target: str = ""
    size: int = 0
    is_required: bool = False
    is_linked: bool = False
    is_row: bool = False
    is_removed: bool = False
    is_new: bool = False  # was just added, and gets the focus

    @property
    def is_group(self) -> bool:
        return self.kind in ("object", "array")

    @property
    def attributes(self) -> SafeString:
        """The attributes of its control that depend on its texts and its state."""
        described = [f"h{self.key}"] * bool(self.about) + [f"e{self.key}"] * bool(self.error)
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
    """The fields of a part of the data, at a pointer; of a long list the rows from `first` on.

    `posted`: the submitted form, or None to show the data as it is. `add`: the list that gets a row.
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
        # Fields of added rows do not count: the same parts must be in the form when it is sent.
        self.left, self.count, self.counts = MAX_FIELDS, 0, True
        self.errors: list[str] = []  # that belong to no field
        part = resolve(data, at)
        self.first = first if isinstance(part, list) and first < len(part) else 0
        self.root = self.made(guide_at(Guide.of(schema), data, at), part, at, name=at.rpartition("/")[2])
        place(self.root, at)

    @property
    def entered(self) -> Any:
        """The whole data with the entered part."""
        return replaced(self.data, tokens(self.at), self.root.result)

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or any(each.error for each in self.root.all)

    @property
    def rows_after(self) -> int | None:
        """The first row after those of a long list, or None."""
        after = self.first + ROWS
        return after if self.root.kind == "array" and after < self.root.size else None

    @property
    def rows_before(self) -> int | None:
        return max(0, self.first - ROWS) if self.first else None

    def show(self, pointer: str, reason: str) -> None:
        """Show an error at the field of a pointer into the entered data, or at its nearest parent."""
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
    def made(
        self,
        guide: Guide,
        base: Any,
        pointer: str,
        *,
        name: str,
        levels: int = NEW_LEVELS,
        is_required: bool = False,
    ) -> EditField:
        """Return the field of a value. `levels`: the levels of new objects that may follow."""
        kind, self.count = kind_of(guide, base), self.count + 1
        about = guide.keyword("description")
        made = EditField(name=name, key=str(self.count), pointer=pointer, kind=kind, is_required=is_required)
        made.about = about if isinstance(about, str) else ""
        if kind == "object":
            self.fill_object(made, guide, base, levels)
        elif kind == "array":
            self.fill_list(made, guide, base)
        else:
            self.fill_value(made, guide, base)
        return made

    def is_too_large(self, made: EditField, base: Any) -> bool:
        """Return whether a part gets a page of its own. Here, it is kept unchanged."""
        if made.pointer == self.at or base is ABSENT or base is None:
            return False
        made.size = len(base)
        made.is_linked = sum(1 for _ in islice(scalars(base), self.left + 1)) > self.left
        if made.is_linked:
            made.result = base
        return made.is_linked

    def fill_object(self, made: EditField, guide: Guide, base: Any, levels: int) -> None:
        if self.is_too_large(made, base):
            return
        known = base if isinstance(base, dict) else {}
        if not isinstance(base, dict):
            levels -= 1
        named = [name for part in guide.parts for name in as_map(part.get("properties"))]
        required = guide.required()
        for name in dict.fromkeys([*named, *known]):
            if name in known or levels > 0:
                inside, pointer = known.get(name, ABSENT), join(made.pointer, name)
                is_required = name in required
                made.children.append(
                    self.made(guide.member(name), inside, pointer, name=name, levels=levels, is_required=is_required)
                )
        results = {child.name: child.result for child in made.children}
        order = dict.fromkeys([*known, *results])  # members keep their order
        found = {name: results[name] for name in order if results[name] is not ABSENT}
        made.result = found if found or isinstance(base, dict) else base

    def fill_list(self, made: EditField, guide: Guide, base: Any) -> None:
        if self.is_too_large(made, base):
            return
        rows = base if isinstance(base, list) else []
        made.size = len(rows)
        is_window = made.pointer == self.at
        first = self.first if is_window else 0
        shown = rows[first : first + ROWS] if is_window else rows
        for number in range(self.rows_of(made.pointer, len(shown))):
            old = shown[number] if number < len(shown) else ABSENT
            pointer = join(made.pointer, first + number)
            counts, self.counts = self.counts, self.counts and old is not ABSENT
            row = self.made(guide.item(), old, pointer, name=str(first + number + 1))
            self.counts = counts
            row.is_row = True
            row.is_removed = self.posted is not None and f"drop{pointer}" in self.posted
            made.children.append(row)
        if self.add == made.pointer and made.children:
            first_field = next((each for each in made.children[-1].all if not each.is_group), made.children[-1])
            first_field.is_new = True
        results = [row.result for row in made.children if not row.is_removed and row.result is not ABSENT]
        whole = rows[:first] + results + rows[first + len(shown) :]
        made.result = whole if whole or isinstance(base, list) else base

    def rows_of(self, pointer: str, shown: int) -> int:
        """Return the number of rows in the form, with those that were added."""
        if self.posted is None:
            return shown
        number = whole_number(self.posted.get(f"n{pointer}", ""), maximum=shown + NEW_ROWS)
        number = shown if number is None else max(number, shown)
        return min(number + (self.add == pointer), shown + NEW_ROWS)

    def fill_value(self, made: EditField, guide: Guide, base: Any) -> None:
        self.left -= self.counts
        before = text_of(base)
        if made.kind == "choice":
            values = choices(guide)
            made.options = [(exact_json.dumps(each).decode(), text_of(each)) for each in values if each is not None]
            before = "" if base is ABSENT or base is None else exact_json.dumps(base).decode()
            if before and before not in dict(made.options):
                made.options.append((before, text_of(base)))
        if made.kind == "text" and (len(before) > LONG or "\n" in before):
            made.kind = "long"
        source = (self.sources or {}).get(made.pointer)
        made.source = source if source and source["page"] else None
        given = (self.posted or {}).get(f"v{made.pointer}")
        made.text = before if given is None else given
        if given is None or lines(given) == lines(before):
            made.result = base
            return
        try:
            made.result = value_of(lines(given), made, guide)
        except InvalidEntry as reason:
            made.result, made.error = base, str(reason)


# ---- Values ---------------------------------------------------------------------------------------------------------
def kind_of(guide: Guide, value: Any) -> str:
    """Return the kind of control: by the value or, without one, by the schema."""
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
        kind = "truth"
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


def lines(text: str) -> str:
    """Normalize line breaks, which browsers send as CRLF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def value_of(text: str, made: EditField, guide: Guide) -> Any:
    """Return the value that was entered. Raises InvalidEntry."""
    if not text.strip() and (made.kind not in ("text", "long") or not text):
        return nothing(made, guide)
    if made.kind == "number":
        return number_of(text.strip())
    if made.kind == "truth":
        if text not in TRUTHS:
            raise InvalidEntry("Choose yes or no.")
        return TRUTHS[text]
    if made.kind == "choice":
        if text not in dict(made.options):
            raise InvalidEntry("Choose one of the values.")
        return exact_json.loads(text)
    return without_nul(text)


def number_of(text: str) -> Any:
    if not NUMBER.fullmatch(text):
        raise InvalidEntry("Enter a number such as 1234.50, with a point and without spaces or a currency.")
    try:
        return exact_json.loads(text)
    except ValueError as error:
        raise InvalidEntry(str(error)) from None


def without_nul(text: str) -> str:
    if "\0" in text:
        raise InvalidEntry("Remove the NUL character, which cannot be stored.")
    return text


def nothing(made: EditField, guide: Guide) -> Any:
    """Return the value of an emptied field: null if the schema allows it, else ABSENT or "". Raises InvalidEntry."""
    if guide.takes_null:
        return None
    if not made.is_required:
        return ABSENT
    if made.kind in ("text", "long"):
        return ""
    raise InvalidEntry("Enter a value.")


# ---- Places ---------------------------------------------------------------------------------------------------------
def guide_at(guide: Guide, data: Any, pointer: str) -> Guide:
    for token in tokens(pointer):
        is_list = isinstance(data, list)
        guide, data = (guide.item(), data[int(token)]) if is_list else (guide.member(token), data[token])
    return guide


def place(made: EditField, target: str) -> None:
    """Set the places of the fields in the entered data."""
    made.target = target
    if made.kind == "object":
        for child in made.children:
            place(child, join(target, child.name))
    elif made.kind == "array" and made.children:
        at = int(made.children[0].pointer.rpartition("/")[2])
        for child in made.children:
            place(child, join(target, at))
            at += not (child.is_removed or child.result is ABSENT)


def replaced(data: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    name, *rest = path
    if isinstance(data, list):
        at = int(name)
        return [*data[:at], replaced(data[at], rest, value), *data[at + 1 :]]
    return {**data, name: replaced(data[name], rest, value)}
