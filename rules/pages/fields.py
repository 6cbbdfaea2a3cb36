"""The table of a schema's fields: converts a schema to rows, and applies edits of the rows to the schema.

The text of the schema is authoritative. The form contains the rows as they were shown and as the user has edited them,
and only the differences are applied to the text. So no edits are lost if the user has edited both the text and the
table.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import orjson

from config.platform.http.pointers import join, tokens

# Names of the form's inputs, such as `field-3-name`.
NAME = "field-{}-{}"
SHOWN = "fields_shown"
ADD, REMOVE = "add_field", "remove_field"
ROOT = "root"
MAX_ROWS = 200
MAX_LEVELS = 5
MAX_CHARACTERS = 100_000  # of all pointers, which repeat the name of a group for each of its fields
OTHER = "other"
TYPES = {
    "string": "Text",
    "number": "Number",
    "integer": "Whole number",
    "boolean": "Yes or no",
    "date": "Date",
    "strings": "List of texts",
    "object": "Group of fields",
    "objects": "List of groups",
    OTHER: "Other",
}
SCALARS = ("string", "number", "integer", "boolean")
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A field: a property of an object. `pointer` is the pointer to its subschema, and `kind` is one of TYPES."""

    pointer: str
    name: str
    kind: str
    description: str
    required: bool
    level: int = 0

    @property
    def has_children(self) -> bool:
        return self.kind in ("object", "objects")


class FieldError(ValueError):
    """The edits of a row cannot be applied. Has the number of the row and the reason for the user."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(detail)
        self.number, self.detail = number, detail


# ---- The rows of a schema -------------------------------------------------------------------------------------------
def rows_of(schema: Any) -> list[Row]:
    """Return the fields of a schema and of its groups, limited by MAX_ROWS and MAX_CHARACTERS."""
    rows: list[Row] = []
    characters = 0
    for row in walk(schema, "", 0):
        characters += len(row.pointer)
        if len(rows) == MAX_ROWS or characters > MAX_CHARACTERS:
            break
        rows.append(row)
    return rows


def walk(schema: Any, pointer: str, level: int) -> Iterator[Row]:
    group, place = group_in(schema, pointer)
    if group is None or level == MAX_LEVELS:
        return
    required = group.get("required")
    for name, inside in properties_of(group).items():
        at = join(join(place, "properties"), name)
        text = inside.get("description", "") if isinstance(inside, dict) else ""
        yield Row(
            pointer=at,
            name=one_line(name),
            kind=kind_of(inside),
            description=one_line(text) if isinstance(text, str) else "",
            required=isinstance(required, list) and name in required,
            level=level,
        )
        yield from walk(inside, at, level + 1)


def group_in(schema: Any, pointer: str) -> tuple[Schema | None, str]:
    """Return the object schema of a group or of a list's items, or None if there is none, and its pointer."""
    kind = kind_of(schema)
    if kind == "objects":
        return schema["items"], join(pointer, "items")
    return (schema if kind == "object" else None), pointer


def properties_of(group: Schema) -> Schema:
    found = group.get("properties")
    return found if isinstance(found, dict) else {}


def kind_of(schema: Any) -> str:
    if not isinstance(schema, dict):
        return OTHER
    kinds = types_of(schema)
    if kinds == ["array"]:
        return {"string": "strings", "object": "objects"}.get(kind_of(schema.get("items")), OTHER)
    if kinds == ["string"] and schema.get("format") == "date":
        return "date"
    return kinds[0] if len(kinds) == 1 and kinds[0] in (*SCALARS, "object") else OTHER


def types_of(schema: Schema) -> list[Any]:
    """Return the types of a schema except null."""
    found = schema.get("type")
    return [each for each in (found if isinstance(found, list) else [found]) if each != "null"]


def one_line(text: str) -> str:
    """Return a text on one line, as browsers convert the value of an input."""
    return " ".join(text.splitlines())


# ---- The rows of a form ---------------------------------------------------------------------------------------------
def shown_rows(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows that the form showed, or [] if it has no table or an invalid one."""
    try:
        rows = [Row(**each) for each in orjson.loads(str(data.get(SHOWN, "")))][:MAX_ROWS]
    except (orjson.JSONDecodeError, TypeError):
        return []
    return rows if all(map(is_valid, rows)) else []


def is_valid(row: Row) -> bool:
    texts = (row.pointer, row.name, row.kind, row.description)
    if not all(isinstance(each, str) for each in texts) or not isinstance(row.level, int):
        return False
    return tokens(row.pointer)[-2:-1] == ["properties"] and isinstance(row.required, bool)


def serialize(rows: list[Row]) -> str:
    """Return rows as the value of the form's input SHOWN."""
    return orjson.dumps(rows).decode()


def edited_rows(data: Mapping[str, Any], shown: list[Row]) -> list[Row]:
    """Return the rows with the user's edits, in the order of `shown`."""
    return [edited_row(data, number, row) for number, row in enumerate(shown)]


def edited_row(data: Mapping[str, Any], number: int, row: Row) -> Row:
    def text(part: str, default: str) -> str:
        return str(data.get(NAME.format(number, part), default))

    kind = text("kind", row.kind)
    return replace(
        row,
        name=text("name", row.name),
        kind=kind if kind in TYPES else row.kind,
        description=text("description", row.description),
        required=NAME.format(number, "required") in data,
    )


def same_table(rows: list[Row], edited: list[Row], shown: list[Row]) -> bool:
    """Return whether the table in a browser, with the user's edits, equals these rows except for the pointers."""
    if [row.kind for row in shown] != [row.kind for row in rows]:
        return False  # only groups have a button to add fields
    return [replace(row, pointer="") for row in rows] == [replace(row, pointer="") for row in edited]


def apply_edits(schema: Any, data: Mapping[str, Any], shown: list[Row]) -> tuple[Any, str]:
    """Return the schema with the edits of a form's table, and the pointer of a field that was added, or "".

    Raises FieldError. Fields are added and removed first, because the buttons have the numbers of shown rows.
    """
    edited, added = edited_rows(data, shown), ""
    removed = row_of(data.get(REMOVE), shown)
    if removed:
        schema = remove(schema, removed.pointer)
        inside = f"{removed.pointer}/"
        # The removed rows stay in the lists, without their edits, because errors have the numbers of shown rows.
        edited = [
            before if f"{before.pointer}/".startswith(inside) else after
            for before, after in zip(shown, edited, strict=True)
        ]
    group = row_of(data.get(ADD), shown)
    if group or data.get(ADD) == ROOT:
        schema, added = add(schema, group.pointer if group else "", shown.index(group) if group else 0)
    return apply(schema, shown, edited), added


def row_of(number: object, shown: list[Row]) -> Row | None:
    """Return the row with the number in a button's value, or None."""
    numbers = {str(each): row for each, row in enumerate(shown)}
    return numbers.get(str(number))


# ---- The schema after the rows were edited --------------------------------------------------------------------------
def apply(schema: Any, shown: list[Row], edited: list[Row]) -> Any:
    """Return a copy of the schema with the differences between the rows applied. Raises FieldError.

    Children are changed before their groups, because renaming a group changes the pointers of its children.
    """
    changed = deepcopy(schema)
    for number in reversed(range(len(shown))):
        before, after = shown[number], edited[number]
        if before != after:
            change(changed, number, before, after)
    return changed


def change(schema: Any, number: int, before: Row, after: Row) -> None:
    group, name = owner_of(schema, before.pointer)
    properties = group.get("properties") if group else None
    if not isinstance(group, dict) or not isinstance(properties, dict) or name not in properties:
        raise FieldError(number, f"The field “{before.name}” no longer exists in the schema's text. Reload the table.")
    inside = properties[name]
    if not isinstance(inside, dict):
        inside = properties[name] = {}
    if after.kind not in (before.kind, OTHER):
        properties[name] = inside = of_kind(after.kind, inside)
    if after.description != before.description:
        describe(inside, after.description)
    if after.required != before.required:
        require(group, name, is_required=after.required)
    if after.name != before.name:
        rename(group, name, after.name, number)


def owner_of(schema: Any, pointer: str) -> tuple[Any, str]:
    """Return the object schema that contains the property at a pointer, and the property's name."""
    *path, _, name = tokens(pointer)
    found = schema
    for token in path:
        found = found.get(token) if isinstance(found, dict) else None
    return found, name


def of_kind(kind: str, earlier: Schema) -> Schema:
    """Return a subschema of another kind. It keeps the title, the description, and whether null is allowed."""
    kept: Schema = {name: earlier[name] for name in ("title", "description") if name in earlier}
    is_nullable = isinstance(earlier.get("type"), list) and "null" in earlier["type"]
    return {**new(kind, is_nullable=is_nullable), **kept}


def new(kind: str, *, is_nullable: bool) -> Schema:
    if kind == "object":
        return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    if kind in ("strings", "objects"):
        return {"type": "array", "items": new(kind.removesuffix("s"), is_nullable=False)}
    base = "string" if kind == "date" else kind
    return {"type": [base, "null"] if is_nullable else base} | ({"format": "date"} if kind == "date" else {})


def describe(inside: Schema, text: str) -> None:
    if text:
        inside["description"] = text
    else:
        inside.pop("description", None)


def require(group: Schema, name: str, *, is_required: bool) -> None:
    found = group.get("required")
    others = [each for each in found if each != name] if isinstance(found, list) else []
    group["required"] = [*others, name] if is_required else others


def rename(group: Schema, old: str, name: str, number: int) -> None:
    properties = group["properties"]
    if not name.strip():
        raise FieldError(number, "Enter a name.")
    if name in properties:
        raise FieldError(number, f"Another field has the name “{name[:60]}”.")
    group["properties"] = {name if each == old else each: inside for each, inside in properties.items()}
    if isinstance(group.get("required"), list):
        group["required"] = [name if each == old else each for each in group["required"]]


def add(schema: Any, pointer: str, number: int) -> tuple[Any, str]:
    """Return the schema with a new text field in the group at a pointer, and the field's pointer.

    `number`: that of the group's row, for errors. Raises FieldError.
    """
    changed = deepcopy(schema) or new("object", is_nullable=False)
    found = changed
    for token in tokens(pointer):
        found = found.get(token) if isinstance(found, dict) else None
    group, place = group_in(found, pointer)
    if group is None:
        raise FieldError(number, "Only a group can have fields. Choose the type “Group of fields” first.")
    properties = properties_of(group)
    numbered = (f"field_{number}" for number in count(2))
    name = next(each for each in chain(["field"], numbered) if each not in properties)
    group["properties"] = {**properties, name: new("string", is_nullable=True)}
    require(group, name, is_required=True)
    return changed, join(join(place, "properties"), name)


def schema_of(suggestions: list[dict[str, Any]]) -> Schema:
    """Return the schema of suggested fields.

    Each has `name`, `kind`, `description`, `required` and, for a list of groups, `fields`.
    """
    group = new("object", is_nullable=False)
    for each in suggestions:
        name = each["name"].strip()
        if not name or name in group["properties"]:
            continue
        inside = new(each["kind"], is_nullable=True)
        if each["kind"] == "objects":
            inside["items"] = schema_of(each["fields"] or [])
        describe(inside, each["description"])
        group["properties"][name] = inside
        if each["required"]:
            group["required"].append(name)
    return group


def remove(schema: Any, pointer: str) -> Any:
    """Return the schema without the field at a pointer."""
    changed = deepcopy(schema)
    group, name = owner_of(changed, pointer)
    if isinstance(group, dict) and isinstance(group.get("properties"), dict):
        group["properties"].pop(name, None)
        if isinstance(group.get("required"), list):
            require(group, name, is_required=False)
    return changed
