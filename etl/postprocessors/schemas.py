"""Variants of a rule's schema for pieces and for model servers, and a guide for merging.

The variants may accept more than the rule's schema. The final result is validated against the unchanged schema.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from config.platform.http.pointers import join, tokens
from rules.schema.subschemas import ANCHORS, LISTS, MAPS, SINGLE, Parts

Schema = dict[str, Any]
ROOT_COPY = "_whole"  # the name of the definition that contains the rule's schema in the schema of a piece
ITEMS = frozenset({"items", "prefixItems", "additionalItems"})
DEFINITION_KEYWORDS = ("$defs", "definitions")
SAFE_IN_REFERENCES = "/~!$&'()*+,;=:@"  # characters that need no percent-encoding
MAX_STEPS = 200  # references and alternatives to follow for one pointer

# Keywords that a part of an instance may violate even if the whole instance is valid.
WHOLE_INSTANCE_KEYWORDS = frozenset(
    {"required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "minItems"}
    | {"contains", "minContains", "maxContains", "if", "then", "else", "not"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
ANNOTATIONS = frozenset(
    {"title", "description", "examples", "example", "default", "$comment", "deprecated", "readOnly", "writeOnly"}
)


# ---- Variants -------------------------------------------------------------------------------------------------------
def transform(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a copy with `change` applied to each subschema, and then to the schema itself."""
    if not isinstance(schema, dict):
        return schema  # true, false, or an invalid schema, which validators ignore
    result = dict(schema)
    for name in SINGLE:
        if isinstance(result.get(name), dict):
            result[name] = transform(result[name], change)
    for name in LISTS:
        if isinstance(result.get(name), list):
            result[name] = [transform(inside, change) for inside in result[name]]
    for name in MAPS:
        if isinstance(result.get(name), dict):
            result[name] = {key: transform(inside, change) for key, inside in result[name].items()}
    return change(result)


def without_anchors(schema: Schema) -> Schema:
    """Return an equivalent schema with JSON Pointers in place of anchors.

    Anchors must be unique, so only a schema without them can be contained twice in another one.
    """
    anchors = {f"#{name}": pointer for name, pointer in Parts(schema).anchors.items()}

    def change(each: Schema) -> Schema:
        made = {name: inside for name, inside in each.items() if not is_anchor(name, inside)}
        for name in ("$ref", "$dynamicRef"):
            if made.get(name) in anchors and (name == "$ref" or "$ref" not in made):
                made["$ref"] = f"#{quote(anchors[made.pop(name)], safe=SAFE_IN_REFERENCES)}"
        return made

    result: Schema = transform(schema, change) if anchors else schema
    return result


def is_anchor(name: str, value: Any) -> bool:
    """Return whether a keyword defines an anchor. Draft 7 and earlier drafts use `$id` or `id` for this."""
    return name in ANCHORS or (name in ("$id", "id") and str(value).startswith("#"))


def relax(schema: Schema) -> Schema:
    """Return a schema that accepts every part of a valid instance. Nothing is required, and null means missing."""
    result: Schema = transform(schema, relax_one)
    return result


def relax_one(schema: Schema) -> Schema:
    result = {name: inside for name, inside in schema.items() if name not in WHOLE_INSTANCE_KEYWORDS}
    if "oneOf" in result:
        result.setdefault("anyOf", result.pop("oneOf"))
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if isinstance(result.get("enum"), list) and None not in result["enum"]:
        result["enum"] = [*result["enum"], None]
    if "type" in result:
        kinds = result["type"] if isinstance(result["type"], list) else [result["type"]]
        result["type"] = [*kinds, "null"] if "null" not in kinds else kinds
    return result


def for_pieces(schema: Schema) -> Schema:
    """Return the schema that the model is shown for a piece. It is relaxed, except for list items, because an item is
    complete in one piece. Items with an `x-merge-key` may be spread over several pieces, so they are relaxed too."""
    return PieceSchema(schema, lambda inside, _pointer: inside).build()


def checked_for_pieces(schema: Schema) -> Schema:
    """Return the schema that validates the response for a piece. Items are validated against a copy of the original
    schema, so their validation is exact even if a definition is used both in items and elsewhere."""
    short = strip_annotations(schema)
    place = f"#/$defs/{ROOT_COPY}"
    made = PieceSchema(
        schema, lambda _inside, pointer: {"$ref": f"{place}{quote(pointer, safe=SAFE_IN_REFERENCES)}"}
    ).build()
    made = strip_annotations(made)
    return made | {"$defs": {**as_map(made.get("$defs")), ROOT_COPY: rebase(short, place)}}


class PieceSchema:
    """Builder of a relaxed copy of a schema. `keep`: a function that returns the schema to use for list items, given
    the original schema of the items and its pointer."""

    def __init__(self, root: Schema, keep: Callable[[Any, str], Any]) -> None:
        self.root, self.keep = root, keep
        self.references: set[str] = set()  # the references outside of items

    def build(self) -> Schema:
        result: Schema = self.relaxed(
            {name: self.root[name] for name in self.root if name not in DEFINITION_KEYWORDS}, ""
        )
        definitions = {home: dict(as_map(self.root[home])) for home in DEFINITION_KEYWORDS if home in self.root}
        pending = {join(f"/{home}", name): (home, name) for home in definitions for name in definitions[home]}
        while found := [pointer for pointer in pending if self.refers_to(pointer)]:
            for pointer in found:
                home, name = pending.pop(pointer)
                definitions[home][name] = self.relaxed(definitions[home][name], pointer)
        return result | definitions

    def refers_to(self, pointer: str) -> bool:
        return any(each == f"#{pointer}" or each.startswith(f"#{pointer}/") for each in self.references)

    def relaxed(self, schema: Any, pointer: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        guide = Guide.of(self.root, schema)
        self.references.add(unquote(str(schema.get("$ref"))))
        return relax_one(
            {
                name: self.inside(name, inside, f"{pointer}/{name}", is_keyed=guide.is_keyed)
                for name, inside in schema.items()
            }
        )

    def inside(self, name: str, value: Any, pointer: str, *, is_keyed: bool) -> Any:
        change = self.keep if name in ITEMS and not is_keyed else self.relaxed
        if isinstance(value, list) and name in LISTS:
            return [change(each, f"{pointer}/{at}") for at, each in enumerate(value)]
        if isinstance(value, dict) and name in MAPS:
            return {key: self.relaxed(each, join(pointer, key)) for key, each in value.items()}
        return change(value, pointer) if isinstance(value, dict) and name in SINGLE else value


def with_one_list(schema: Schema, pointer: str) -> Schema:
    """Return the schema with only those members that lead to a list. Schemas on the path that do not define the next
    member as a property are not changed."""
    return with_one_path(schema, list(tokens(pointer)))


def with_one_path(schema: Schema, path: list[str]) -> Schema:
    members = as_map(schema.get("properties"))
    if not path or not isinstance(inside := members.get(path[0]), dict):
        return schema
    made = schema | {"properties": {path[0]: with_one_path(inside, path[1:])}}
    return {name: inside for name, inside in made.items() if name != "required"}


def strip_annotations(schema: Schema) -> Schema:
    """Return the schema without annotations for people and models, so that it is faster to compile and compare."""
    result: Schema = transform(schema, lambda each: {name: each[name] for name in each if not is_annotation(name)})
    return result


def strip_extensions(schema: Schema) -> Schema:
    """Return the schema without `x-` keywords, which are instructions for merging and not for a model."""
    result: Schema = transform(schema, lambda each: {name: each[name] for name in each if not name.startswith("x-")})
    return result


def is_annotation(name: str) -> bool:
    return name in ANNOTATIONS or name.startswith("x-")


def envelope(schema: Schema, *, wants_evidence: bool) -> Schema:
    """Return the schema of `{"data": …, "evidence": …}`, for servers that enforce a schema."""
    found = {"type": "object", "properties": {"page": {"type": "integer"}, "quote": {"type": "string"}}}
    parts = {"data": rebase(schema, "#/properties/data")}
    if wants_evidence:
        parts["evidence"] = {"type": "object", "additionalProperties": {**found, "required": ["page", "quote"]}}
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def with_floats(schema: Schema) -> Schema:
    """Return the schema with its numbers as floats, for a library that does not support Decimal. Keywords whose numbers
    need more digits are omitted, because the response is validated against the exact schema anyway."""
    result: Schema = transform(
        schema, lambda each: {name: floats for name in each if (floats := as_floats(each[name])) is not NO_FLOAT}
    )
    return result


NO_FLOAT = object()


def as_floats(value: Any) -> Any:
    """Return a value with its numbers as floats, or NO_FLOAT if a float cannot represent one exactly."""
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else NO_FLOAT
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    made = [as_floats(each) for each in inside]
    if any(each is NO_FLOAT for each in made):
        return NO_FLOAT
    return (
        dict(zip(value, made, strict=True)) if isinstance(value, dict) else made if isinstance(value, list) else value
    )


def rebase(schema: Schema, place: str) -> Schema:
    """Return the schema for use inside another schema, at the reference `place`: with adapted references, and without
    `x-` keywords and the root's identifiers."""

    def refer(each: Schema) -> Schema:
        target = each.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            each["$ref"] = f"{place}{target[1:]}"
        return {name: inside for name, inside in each.items() if not name.startswith("x-")}

    result: Schema = transform(schema, refer)
    return {name: inside for name, inside in result.items() if name not in ("$schema", "$id", "id")}


# ---- Guide ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """The schema for one pointer of an instance. `parts`: the schemas that apply there, including those from references
    and alternatives."""

    root: Schema
    schema: Any
    parts: tuple[Schema, ...]

    @classmethod
    def of(cls, root: Schema, schema: Any = None) -> "Guide":
        schema = root if schema is None else schema
        return cls(root=root, schema=schema, parts=tuple(applied(root, schema)))

    def member(self, name: str) -> "Guide":
        found = [part["properties"][name] for part in self.parts if name in as_map(part.get("properties"))]
        others = [
            part["additionalProperties"] for part in self.parts if isinstance(part.get("additionalProperties"), dict)
        ]
        return Guide.of(self.root, combine(found or others))

    def item(self) -> "Guide":
        return Guide.of(
            self.root, combine([part["items"] for part in self.parts if isinstance(part.get("items"), dict)])
        )

    def keyword(self, name: str) -> Any:
        """Return the first value of a keyword, or None."""
        return next((part[name] for part in self.parts if name in part), None)

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The names of the members that identify an item: `"x-merge-key": "sku"` or `["sku", "size"]`."""
        key = self.keyword("x-merge-key")
        names = key if isinstance(key, list) else [key]
        return tuple(names) if all(isinstance(name, str) and name for name in names) else ()

    @property
    def item_key(self) -> tuple[str, ...]:
        """The names of the members that identify items of this list, declared by the list or by its items."""
        return self.merge_key or self.item().merge_key

    @property
    def is_keyed(self) -> bool:
        """Whether items of this list have a merge key, so that they may be spread over pieces."""
        return bool(self.item_key)

    @property
    def policy(self) -> str:
        """The merge policy for different values: the schema's `x-merge`, or ""."""
        policy = self.keyword("x-merge")
        return policy if isinstance(policy, str) else ""

    @property
    def is_tuple(self) -> bool:
        """Whether items of a list have a meaning by position, as in `[latitude, longitude]`."""
        return any("prefixItems" in part or isinstance(part.get("items"), list) for part in self.parts)

    @property
    def is_unique(self) -> bool:
        """Whether only one of equal items is kept."""
        return bool(self.keyword("uniqueItems")) or self.policy == "unique"

    def is_of(self, kind: str) -> bool:
        """Return whether the schema allows only this type, and possibly null."""
        kinds = self.keyword("type")
        return set(kinds if isinstance(kinds, list) else [kinds]) - {"null"} == {kind}

    @property
    def is_choice(self) -> bool:
        """Whether the schema lists the possible values. Such a value may not occur in the document literally."""
        return any("enum" in part or "const" in part for part in self.parts)

    @property
    def allows_null(self) -> bool:
        return allows_null(self.root, self.schema, MAX_STEPS)

    def required(self) -> tuple[str, ...]:
        """Return the members that are required in every alternative."""
        parts = applied(self.root, self.schema, through=("allOf",))
        names = dict.fromkeys(name for part in parts for name in as_list(part.get("required")))
        return tuple(name for name in names if isinstance(name, str))


def pointers_of_lists(guide: Guide, pointer: str = "", levels: int = 4) -> Iterator[str]:
    """Yield the pointers of the outermost lists in a schema."""
    if guide.is_of("array") and not guide.is_tuple:
        yield pointer
    elif levels > 0:
        for name in dict.fromkeys(name for part in guide.parts for name in as_map(part.get("properties"))):
            yield from pointers_of_lists(guide.member(name), join(pointer, name), levels - 1)


def applied(root: Schema, schema: Any, through: tuple[str, ...] = ("allOf", "anyOf", "oneOf")) -> Iterator[Schema]:
    """Yield the schemas that apply to the same value as this one, in order and without duplicates."""
    pending, seen = [schema], dict[int, Schema]()  # keeps the schemas alive, so that their IDs are not reused
    while pending and len(seen) < MAX_STEPS:
        each = pending.pop(0)
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each.get("$ref"), str):
            pending.append(target(root, each["$ref"]))
        for name in through:
            pending.extend(as_list(each.get(name)))


def target(root: Schema, reference: str) -> Any:
    """Return the target of a local reference, or `{}` for other kinds of references."""
    found: Any = root
    if reference not in ("#", "") and not reference.startswith("#/"):
        return {}
    for name in tokens(unquote(reference)):
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = as_map(found).get(name, {})
    return found


def allows_null(root: Schema, schema: Any, steps: int) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if steps <= 0:
        return False
    left = steps - 1
    kinds = schema.get("type", "null")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return (
        "null" in kinds
        and ("enum" not in schema or None in as_list(schema["enum"]))
        and schema.get("const") is None
        and all(allows_null(root, each, left) for each in as_list(schema.get("allOf")))
        and all(
            any(allows_null(root, each, left) for each in schema[name])
            for name in ("anyOf", "oneOf")
            if schema.get(name)
        )
        and ("$ref" not in schema or allows_null(root, target(root, str(schema["$ref"])), left))
    )


def combine(schemas: list[Any]) -> Any:
    """Return the combination of the schemas for one member, or `{}` if there is none."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas} if schemas else {}


def as_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
