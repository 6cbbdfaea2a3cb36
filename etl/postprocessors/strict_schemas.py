"""Conversion of a rule's schema to the subset of JSON Schema that servers enforce with `"strict": true`.

In this subset, every object is closed, and every member is required. So each member may also be null, which means that
it is missing. If it could not, a model would have to invent values for members that the document does not have.
Constraints such as `pattern` and `minLength` are omitted, because servers differ in which of them they accept.

The response is validated against the rule's schema, so the converted schema may allow more, but must not allow less. A
schema that cannot be expressed in the subset, such as one for objects with arbitrary members, is used without `strict`.

The subset: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from decimal import Decimal
from typing import Any

from etl.postprocessors.schemas import Guide, Schema, as_list, as_map, target

MAX_PARTS = 1_000  # subschemas, after references are replaced by their definitions
MAX_LEVELS = 8
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Keywords that describe the structure of a value, as opposed to constraints.
STRUCTURE = frozenset(
    {"type", "properties", "items", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "prefixItems"}
)
# Keywords that the subset cannot express.
UNSUPPORTED = frozenset(
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
    """Return the schema converted to the subset, or None if the subset cannot express it."""
    try:
        return Conversion(schema).convert(schema, level=0)
    except NotStrict:
        return None


def strict_envelope(schema: Schema, *, wants_evidence: bool) -> Schema | None:
    """Return the schema of `{"data": …, "evidence": […]}` in the subset, or None if the subset cannot express it."""
    data = strict(schema)
    return data and closed_object({"data": data} | ({"evidence": EVIDENCE} if wants_evidence else {}))


def closed_object(members: dict[str, Any]) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


class Conversion:
    """The conversion of one schema. References are replaced by their definitions, up to MAX_PARTS subschemas."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.parts = 0

    def convert(self, schema: Any, *, level: int, nullable: bool = False) -> Schema:
        """Return the converted schema. Raises NotStrict, also for a schema that allows any value."""
        self.parts += 1
        if not isinstance(schema, dict) or level > MAX_LEVELS or self.parts > MAX_PARTS or UNSUPPORTED & schema.keys():
            raise NotStrict
        described = [name for name in STRUCTURE if name in schema and not is_constraint(name, schema[name])]
        if "$ref" in described:
            return self.convert_only(
                described, "$ref", self.referred(schema["$ref"]), level=level + 1, nullable=nullable
            )
        if "allOf" in described:
            structures = [each for each in schema["allOf"] if is_structure(each)]
            if len(structures) != 1:
                raise NotStrict
            return self.convert_only(described, "allOf", structures[0], level=level, nullable=nullable)
        for name in ("anyOf", "oneOf"):
            if name in described:
                return self.alternatives(schema[name], described, name, level=level, nullable=nullable)
        return self.typed(schema, level=level, nullable=nullable)

    def convert_only(self, described: list[str], name: str, schema: Any, *, level: int, nullable: bool) -> Schema:
        """Return the converted schema of the keyword `name`. Raises NotStrict if other keywords describe it too."""
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
        return any_of([*made, {"type": "null"}] if nullable else made)

    def typed(self, schema: Schema, *, level: int, nullable: bool) -> Schema:
        """Return the converted schema of values with the given types."""
        if "enum" in schema or "const" in schema:
            return enum_of(schema["enum"] if "enum" in schema else [schema["const"]], nullable=nullable)
        given = schema.get("type")
        kinds = list(dict.fromkeys(as_list(given) or [given]))
        if any(kind not in TYPES for kind in kinds):
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
        return any_of(made)

    def object(self, schema: Schema, *, level: int) -> Schema:
        """Return a closed object schema. It has only the members that the original names."""
        members = as_map(schema.get("properties"))
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        is_map = others not in (None, False) or (not members and others is not False)
        if is_map or any(name not in members for name in as_list(schema.get("required"))):
            raise NotStrict
        return closed_object(
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
    """Return whether a schema describes the structure of a value, and is not only a constraint."""
    return not isinstance(schema, dict) or bool((STRUCTURE | UNSUPPORTED) & schema.keys())


def enum_of(values: Any, *, nullable: bool) -> Schema:
    """Return a schema that lists the allowed values. Raises NotStrict for lists and objects."""
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


def any_of(schemas: list[Schema]) -> Schema:
    """Return a schema for values that match one of these schemas."""
    schemas = [each for schema in schemas for each in schema.get("anyOf", [schema])]
    if not schemas:
        raise NotStrict
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


# ---- Responses ------------------------------------------------------------------------------------------------------
def without_nulls(guide: Guide, data: Any) -> Any:
    """Return the data without optional members that are null although the schema does not allow null. In a response to
    a strict schema, these nulls mean that the member is missing."""
    if isinstance(data, dict):
        required = guide.required()
        inside = ((name, guide.member(name), value) for name, value in data.items())
        return {
            name: without_nulls(member, value)
            for name, member, value in inside
            if value is not None or name in required or not member.parts or member.allows_null
        }
    if isinstance(data, list) and not guide.is_tuple:
        item = guide.item()
        return [without_nulls(item, each) for each in data]
    return data
