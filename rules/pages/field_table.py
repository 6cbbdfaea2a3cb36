"""The fields of a schema as a table, beside its text: name, type, description, and whether it is required.

The text is what is saved. The table shows the properties of the root object; an edit of the table is applied to the
text as a difference, so that everything that the table does not show stays as it is: nested schemas, keywords, order,
and the digits of numbers.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.http import QueryDict
from django.utils.text import normalize_newlines

MAX_ROWS = 200
# Types that can be chosen, by their value in the form.
SCALARS = {"string": "Text", "number": "Number", "integer": "Whole number", "boolean": "Yes or no", "date": "Date"}
NULL = "null"
TYPES = {
    **SCALARS,
    **{f"{name}?": f"{label} or null" for name, label in SCALARS.items()},
}
OTHER = ""  # a type that only the text can change


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """A property. `origin`: its name in the text, "" for a new one. `type`: of TYPES, or OTHER."""

    origin: str
    name: str
    type: str
    description: str
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """The rows, and the names of properties that only the text shows."""

    rows: list[FieldRow]
    hidden: list[str]

    @property
    def before(self) -> str:
        """The rows as a hidden field of the form has them, to find out what was edited."""
        return json.dumps([asdict(row) for row in self.rows])


class DuplicateName(Exception):
    """Two rows have the same name."""


# ---- From the schema ------------------------------------------------------------------------------------------------
def table_of(schema: Any) -> FieldTable | None:
    """Return the table of a schema; None if its root is not an object with properties, or has too many."""
    schema = {} if schema is None else schema
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(properties) > MAX_ROWS or not is_object(schema):
        return None
    shown = {name: each for name, each in properties.items() if is_shown(name, each)}
    required = names_in(schema.get("required"))
    rows = [
        FieldRow(
            origin=name,
            name=name,
            type=type_of(each),
            description=normalize_newlines(each.get("description", "")),
            required=name in required,
        )
        for name, each in shown.items()
    ]
    return FieldTable(rows=rows, hidden=[name for name in properties if name not in shown])


def is_object(schema: dict[str, Any]) -> bool:
    return schema.get("type", "object") == "object" and isinstance(schema.get("required", []), list)


def is_shown(name: str, schema: Any) -> bool:
    """Return whether a row can show the property. Browsers change line ends in names."""
    is_name = bool(name.strip()) and not {"\n", "\r"} & set(name)
    return is_name and isinstance(schema, dict) and isinstance(schema.get("description", ""), str)


def names_in(value: Any) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def type_of(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    found = [each for each in kinds if each != NULL]
    if len(found) != 1 or found[0] not in SCALARS or len(kinds) > 2:  # noqa: PLR2004 - the type and null
        return OTHER
    name = "date" if found[0] == "string" and schema.get("format") == "date" else str(found[0])
    return f"{name}?" if NULL in kinds else name


# ---- From the form --------------------------------------------------------------------------------------------------
def typed_rows(data: QueryDict) -> list[FieldRow]:
    """Return the rows as typed, without those whose name is empty: new ones that were not filled in, or deleted ones.

    `field_required` has the numbers of the rows that are required.
    """
    columns = [data.getlist(f"field_{name}")[:MAX_ROWS] for name in ("origin", "name", "type", "description", "number")]
    required = set(data.getlist("field_required"))
    return [
        FieldRow(
            origin=origin,
            name=name,
            type=kind if kind in TYPES else OTHER,
            description=normalize_newlines(description),
            required=number in required,
        )
        for origin, name, kind, description, number in zip(*columns, strict=False)
        if name.strip()
    ]


def rows_before(data: QueryDict) -> list[FieldRow]:
    """Return the rows as they were shown. An invalid field counts as no rows, and then nothing was edited."""
    try:
        found = json.loads(data.get("fields_before", "[]"))
        return [FieldRow(**row) for row in found]
    except (ValueError, TypeError, RecursionError):
        return []


def is_edited(data: QueryDict) -> bool:
    return "fields_before" in data and typed_rows(data) != rows_before(data)


# ---- To the schema --------------------------------------------------------------------------------------------------
def apply(schema: Any, before: list[FieldRow], after: list[FieldRow]) -> Any:
    """Return the schema with the differences between the rows. Raises DuplicateName.

    A row whose property is no longer in the schema is skipped, unless it was edited.
    """
    if before == after:
        return schema
    schema = {"type": "object", "properties": {}} if schema is None else schema
    properties = schema.get("properties", {})
    old = {row.origin: row for row in before}
    new = {row.origin: row for row in after if row.origin}
    changed: list[tuple[str, Any]] = []
    for name, each in properties.items():
        if name not in old:
            changed.append((name, each))  # only in the text
        elif name in new:
            changed.append((new[name].name, with_row(each, old[name], new[name])))
    changed += [(row.name, with_row({}, None, row)) for row in after if not row.origin]
    result = {**schema, "properties": dict(changed)}
    if len(result["properties"]) < len(changed):
        raise DuplicateName
    required = required_names(schema.get("required", []), old, new, after)
    return {**result, "required": required} if required != schema.get("required", []) else result


def with_row(schema: dict[str, Any], old: FieldRow | None, new: FieldRow) -> dict[str, Any]:
    result = dict(schema)
    if new.type != OTHER and (old is None or new.type != old.type):
        kind = new.type.removesuffix("?")
        scalar = "string" if kind == "date" else kind
        result["type"] = [scalar, NULL] if new.type.endswith("?") else scalar
        if kind == "date":
            result["format"] = "date"
        elif old is not None and old.type.removesuffix("?") == "date":
            result.pop("format", None)
    if new.description != (old.description if old else ""):
        result["description"] = new.description
        if not new.description:
            del result["description"]
    return result


def required_names(
    names: list[Any], old: dict[str, FieldRow], new: dict[str, FieldRow], after: Iterable[FieldRow]
) -> list[Any]:
    """Return `required` in its order: renamed, without what is deleted or no longer required, then what is new."""
    kept = [new[name].name if name in new else name for name in names if stays(name, old, new)]
    added = [row.name for row in after if row.required and row.name not in kept and not was_required(row, old)]
    return [*kept, *added]


def stays(name: Any, old: dict[str, FieldRow], new: dict[str, FieldRow]) -> bool:
    if not isinstance(name, str) or name not in old:
        return True
    return name in new and (new[name].required or not old[name].required)


def was_required(row: FieldRow, old: dict[str, FieldRow]) -> bool:
    return bool(row.origin) and row.origin in old and old[row.origin].required
