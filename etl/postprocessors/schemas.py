"""A rule's schema, made over for pieces and for servers, and asked while answers are merged.

What is made here guides and loosens; what a result must fit in the end is the rule's schema as it stands.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from config.platform.http.pointers import tokens
from rules.schema.subschemas import LISTS, MAPS, SINGLE

Schema = dict[str, Any]
MAX_STEPS = 200  # through references and alternatives, at one place of a value

# What part of an instance may break although the whole does not.
OF_WHOLES = frozenset(
    {"required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "minItems"}
    | {"contains", "minContains", "maxContains", "if", "then", "else", "not"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
REMARKS = frozenset(
    {"title", "description", "examples", "example", "default", "$comment", "deprecated", "readOnly", "writeOnly"}
)


# ---- Made over ------------------------------------------------------------------------------------------------------
def changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a schema in which each schema inside, and then it itself, went through `change`."""
    if not isinstance(schema, dict):
        return schema  # true, false, or what no validator looks at
    made = dict(schema)
    for name in SINGLE:
        if isinstance(made.get(name), dict):
            made[name] = changed(made[name], change)
    for name in LISTS:
        if isinstance(made.get(name), list):
            made[name] = [changed(inside, change) for inside in made[name]]
    for name in MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: changed(inside, change) for key, inside in made[name].items()}
    return change(made)


def relaxed(schema: Schema) -> Schema:
    """Return a schema that every part of a fitting instance fits: nothing is required, and null stands for absent."""
    made: Schema = changed(schema, loosened)
    return made


def loosened(schema: Schema) -> Schema:
    made = {name: inside for name, inside in schema.items() if name not in OF_WHOLES}
    if "oneOf" in made:
        made.setdefault("anyOf", made.pop("oneOf"))
        made.pop("oneOf", None)
    if "const" in made:
        made["enum"] = [made.pop("const")]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    if "type" in made:
        kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*kinds, "null"] if "null" not in kinds else kinds
    return made


def terse(schema: Schema) -> Schema:
    """Return the schema without what only people and models read: smaller to compile, and to compare."""
    made: Schema = changed(schema, lambda each: {name: each[name] for name in each if not is_remark(name)})
    return made


def is_remark(name: str) -> bool:
    return name in REMARKS or name.startswith("x-")


def envelope(schema: Schema, *, wants_evidence: bool) -> Schema:
    """Return the schema of `{"data": …, "evidence": …}`, for servers that hold a model to one."""
    found = {"type": "object", "properties": {"page": {"type": "integer"}, "quote": {"type": "string"}}}
    parts = {"data": moved(schema, "#/properties/data")}
    if wants_evidence:
        parts["evidence"] = {"type": "object", "additionalProperties": {**found, "required": ["page", "quote"]}}
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def moved(schema: Schema, place: str) -> Schema:
    """Return the schema as it has to be inside another one, at `place`: its references begin at the root."""

    def refer(each: Schema) -> Schema:
        target = each.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            each["$ref"] = f"{place}{target[1:]}"
        return {name: inside for name, inside in each.items() if not name.startswith("x-")}

    made: Schema = changed(schema, refer)
    return {name: inside for name, inside in made.items() if name not in ("$schema", "$id", "id")}


# ---- Asked ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What a schema says of one place in its instances. `parts`: the schemas that are applied there, those behind
    references and alternatives too."""

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
        return Guide.of(self.root, together(found or others))

    def item(self) -> "Guide":
        return Guide.of(
            self.root, together([part["items"] for part in self.parts if isinstance(part.get("items"), dict)])
        )

    def word(self, name: str) -> Any:
        """Return what a keyword says, where it stands first; None if it stands nowhere."""
        return next((part[name] for part in self.parts if name in part), None)

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The members by which items of a list are told to be the same, `"x-merge-key": "sku"` or `["sku", "size"]`."""
        told = self.word("x-merge-key")
        names = told if isinstance(told, list) else [told]
        return tuple(names) if all(isinstance(name, str) and name for name in names) else ()

    @property
    def is_concatenated(self) -> bool:
        return bool(self.word("x-merge") == "concat")

    @property
    def is_tuple(self) -> bool:
        """Whether a list's items have meanings by their places, as in `[latitude, longitude]`."""
        return any("prefixItems" in part or isinstance(part.get("items"), list) for part in self.parts)

    @property
    def is_unique(self) -> bool:
        return bool(self.word("uniqueItems"))

    def is_of(self, kind: str) -> bool:
        """Whether the schema says that values here are of this type, and of no other but null."""
        told = self.word("type")
        return set(told if isinstance(told, list) else [told]) - {"null"} == {kind}

    @property
    def is_choice(self) -> bool:
        """Whether the value is one of a few that the schema names: it need not stand in the document."""
        return any("enum" in part or "const" in part for part in self.parts)

    @property
    def takes_null(self) -> bool:
        return takes_null(self.root, self.schema, MAX_STEPS)

    def required(self) -> tuple[str, ...]:
        """Return the members that must be there, whichever alternative holds."""
        parts = applied(self.root, self.schema, through=("allOf",))
        names = dict.fromkeys(name for part in parts for name in as_list(part.get("required")))
        return tuple(name for name in names if isinstance(name, str))


def applied(root: Schema, schema: Any, through: tuple[str, ...] = ("allOf", "anyOf", "oneOf")) -> Iterator[Schema]:
    """Yield the schemas that are applied where this one is, in order, each once."""
    waiting, seen = [schema], dict[int, Schema]()  # which keeps them: what is gone gives its id to another
    while waiting and len(seen) < MAX_STEPS:
        each = waiting.pop(0)
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each.get("$ref"), str):
            waiting.append(target(root, each["$ref"]))
        for name in through:
            waiting.extend(as_list(each.get(name)))


def target(root: Schema, reference: str) -> Any:
    """Return what a reference inside a schema leads to; `{}` for kinds of reference that guide nothing."""
    found: Any = root
    if reference not in ("#", "") and not reference.startswith("#/"):
        return {}
    for name in tokens(reference):
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = as_map(found).get(name, {})
    return found


def takes_null(root: Schema, schema: Any, steps: int) -> bool:
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
        and all(takes_null(root, each, left) for each in as_list(schema.get("allOf")))
        and all(
            any(takes_null(root, each, left) for each in schema[name])
            for name in ("anyOf", "oneOf")
            if schema.get(name)
        )
        and ("$ref" not in schema or takes_null(root, target(root, str(schema["$ref"])), left))
    )


def together(schemas: list[Any]) -> Any:
    """Return one schema for those that stand for the same member; `{}` when there is none."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas} if schemas else {}


def as_map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
