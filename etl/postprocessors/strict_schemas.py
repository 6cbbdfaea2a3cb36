"""A rule's schema in the subset of JSON Schema that servers enforce with `"strict": true`.

In this subset every object is closed, and every member is required. So each member may also be null, which stands for
one that is left out: a model that must fill in a member that the document does not have would make up a value.
Constraints such as `pattern` and `minLength` are left out, because servers differ in which they accept. The response is
validated against the rule's own schema, so this one may allow more, and never less: a schema that cannot be expressed,
such as one for objects with any members, is refused here, and requested without `strict`.

The subset: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from decimal import Decimal
from typing import Any

from etl.postprocessors.schemas import Guide, Schema, as_list, as_map, target

MAX_PARTS = 1_000  # after references are replaced by their definitions
MAX_LEVELS = 8
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Keywords that describe a value, other than constraints on one that is described elsewhere.
STRUCTURE = frozenset(
    {"type", "properties", "items", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "prefixItems"}
)
# Keywords with members or items that the subset cannot describe.
BEYOND = frozenset(
    {"patternProperties", "then", "else", "dependentSchemas", "dependencies", "prefixItems", "additionalItems"}
    | {"$dynamicRef", "$recursiveRef", "unevaluatedItems"}
)
EVIDENCE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"pointer": {"type": "string"}, "page": {"type": "integer"}, "quote": {"type": "string"}},
        "required": ["pointer", "page", "quote"],
        "additionalProperties": False,
    },
}


class NotStrict(Exception):
    """The schema has no equivalent in the subset."""


def strict(schema: Schema) -> Schema | None:
    """Return the schema in the subset, or None if the subset cannot express it."""
    try:
        return Conversion(schema).convert(schema, level=0)
    except NotStrict:
        return None


def strict_envelope(schema: Schema, *, wants_evidence: bool) -> Schema | None:
    """Return the schema of `{"data": …, "evidence": […]}` in the subset, or None."""
    data = strict(schema)
    return data and closed({"data": data} | ({"evidence": EVIDENCE} if wants_evidence else {}))


def closed(members: dict[str, Any]) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


class Conversion:
    """The conversion of one schema. References are replaced by their definitions, up to a size."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.parts = 0

    def convert(self, schema: Any, *, level: int, nullable: bool = False) -> Schema:
        """Return the schema of a value. Raises NotStrict, also for a schema that allows any value."""
        self.parts += 1
        if not isinstance(schema, dict) or level > MAX_LEVELS or self.parts > MAX_PARTS or BEYOND & schema.keys():
            raise NotStrict
        described = [name for name in STRUCTURE if name in schema and not is_constraint(name, schema[name])]
        if "$ref" in described:
            return self.alone(described, "$ref", self.referred(schema["$ref"]), level=level + 1, nullable=nullable)
        if "allOf" in described:
            inside = [each for each in schema["allOf"] if is_structure(each)]
            if len(inside) != 1:
                raise NotStrict
            return self.alone(described, "allOf", inside[0], level=level, nullable=nullable)
        for name in ("anyOf", "oneOf"):
            if name in described:
                return self.alternatives(schema[name], described, name, level=level, nullable=nullable)
        return self.typed(schema, level=level, nullable=nullable)

    def alone(self, described: list[str], name: str, schema: Any, *, level: int, nullable: bool) -> Schema:
        """Return the values that a keyword describes. Raises NotStrict if others describe the value too."""
        if described != [name]:
            raise NotStrict
        return self.convert(schema, level=level, nullable=nullable)

    def referred(self, reference: Any) -> Any:
        if not (isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))):
            raise NotStrict
        return target(self.root, reference)

    def alternatives(
        self, schemas: list[Any], described: list[str], name: str, *, level: int, nullable: bool
    ) -> Schema:
        if described != [name]:
            raise NotStrict
        made = [self.convert(each, level=level + 1) for each in schemas if each is not False]
        return either([*made, {"type": "null"}] if nullable else made)

    def typed(self, schema: Schema, *, level: int, nullable: bool) -> Schema:
        """Return a schema of values of the given types."""
        if "enum" in schema or "const" in schema:
            return listed(schema["enum"] if "enum" in schema else [schema["const"]], nullable=nullable)
        given = schema.get("type")
        kinds = list(dict.fromkeys(as_list(given) or [given]))
        if not kinds or any(kind not in TYPES for kind in kinds):
            raise NotStrict
        kinds += ["null"] if nullable and "null" not in kinds else []
        simple = [kind for kind in kinds if kind not in ("array", "object")]
        made: list[Schema] = []
        if "object" in kinds:
            made.append(self.object(schema, level=level))
        if "array" in kinds:
            made.append({"type": "array", "items": self.convert(schema.get("items"), level=level + 1)})
        if simple:
            made.append({"type": simple if len(simple) > 1 else simple[0]})
        return either(made)

    def object(self, schema: Schema, *, level: int) -> Schema:
        """Return a closed object. Members that a schema neither names nor mentions are not wanted."""
        members = as_map(schema.get("properties"))
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        is_map = others not in (None, False) or (not members and others is not False)
        if is_map or any(name not in members for name in as_list(schema.get("required"))):
            raise NotStrict
        return closed(
            {
                name: self.convert(inside, level=level + 1, nullable=True)
                for name, inside in members.items()
                if inside is not False
            }
        )


def is_constraint(name: str, value: Any) -> bool:
    """Return whether a combination only constrains a value, as `"anyOf": [{"required": ["a"]}, …]` does."""
    if name not in ("anyOf", "oneOf", "allOf"):
        return False
    return not any(is_structure(each) for each in as_list(value))


def is_structure(schema: Any) -> bool:
    """Return whether a schema describes a value, and does not only constrain one."""
    return not isinstance(schema, dict) or bool((STRUCTURE | BEYOND) & schema.keys())


def listed(values: Any, *, nullable: bool) -> Schema:
    """Return the schema of some values. Raises NotStrict for lists and objects."""
    values = [*as_list(values), None] if nullable and None not in as_list(values) else as_list(values)
    kinds = list(dict.fromkeys(map(kind_of, values)))
    if not kinds:
        raise NotStrict
    return {"type": kinds if len(kinds) > 1 else kinds[0], "enum": values}


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float | Decimal):
        return "number"
    raise NotStrict


def either(schemas: list[Schema]) -> Schema:
    """Return the schema of values that fit one of these."""
    schemas = [each for schema in schemas for each in schema.get("anyOf", [schema])]
    if not schemas:
        raise NotStrict
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


# ---- Responses ------------------------------------------------------------------------------------------------------
def without_nulls(guide: Guide, data: Any) -> Any:
    """Return data without the members that are null, optional, and must not be null: they stand for missing ones."""
    if isinstance(data, dict):
        required = guide.required()
        inside = ((name, guide.member(name), value) for name, value in data.items())
        return {
            name: without_nulls(member, value)
            for name, member, value in inside
            if value is not None or name in required or not member.parts or member.takes_null
        }
    if isinstance(data, list) and not guide.is_tuple:
        item = guide.item()
        return [without_nulls(item, each) for each in data]
    return data
