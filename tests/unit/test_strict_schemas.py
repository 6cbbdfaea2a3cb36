"""Strict schemas, which model servers enforce. They allow every value that is valid under the rule's schema (B15)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.postprocessors.schemas import Guide
from etl.postprocessors.strict_schemas import strict, strict_envelope, without_nulls
from rules.schema import json_schema

TEXTS = st.sampled_from(["a", "b", "c"])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("xyz", max_size=3),
    "integer": st.integers(-9, 9),
    "number": st.integers(-9, 9) | st.sampled_from([0.5, -1.25]),
    "boolean": st.booleans(),
    "null": st.none(),
}


@st.composite
def cases(draw: st.DrawFn, levels: int = 3) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    """Draw a schema and a strategy for its valid values."""
    kinds = ["scalar", "choice", *(["object", "list", "either", "all"] if levels else [])]
    match draw(st.sampled_from(kinds)):
        case "scalar":
            names = draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=2, unique=True))
            limits = {"minLength": 0, "maximum": 9, "description": "…"} if draw(st.booleans()) else {}
            return {"type": names if len(names) > 1 else names[0], **limits}, st.one_of(*[SCALARS[n] for n in names])
        case "choice":
            choices = draw(st.lists(TEXTS | st.none() | st.booleans(), min_size=1, max_size=3, unique_by=repr))
            return {"enum": choices}, st.sampled_from(choices)
        case "object":
            return draw(objects(levels))
        case "list":
            schema, values = draw(cases(levels - 1))
            return {"type": "array", "items": schema, "minItems": 0}, st.lists(values, max_size=2)
        case "either":
            one, other = draw(cases(levels - 1)), draw(cases(levels - 1))
            return {"anyOf": [one[0], other[0]]}, one[1] | other[1]
        case _:
            schema, values = draw(cases(levels - 1))
            return {"allOf": [schema, {"description": "…"}]}, values


@st.composite
def objects(draw: st.DrawFn, levels: int) -> tuple[dict[str, Any], st.SearchStrategy[Any]]:
    members = draw(st.dictionaries(TEXTS, cases(levels - 1), min_size=1, max_size=3))
    required = [name for name in members if draw(st.booleans())]
    schema = {"type": "object", "properties": {name: each[0] for name, each in members.items()}, "required": required}
    values = st.fixed_dictionaries(
        {name: each[1] for name, each in members.items() if name in required},
        optional={name: each[1] for name, each in members.items() if name not in required},
    )
    return schema | ({"additionalProperties": False} if draw(st.booleans()) else {}), values


def filled(schema: dict[str, Any], value: Any) -> Any:
    """Return a value as in a strict response, in which missing members are null."""
    for each in schema.get("anyOf", [schema]):
        converted = value
        if isinstance(value, dict) and "properties" in each and value.keys() <= each["properties"].keys():
            converted = {name: filled(inside, value.get(name)) for name, inside in each["properties"].items()}
        if isinstance(value, list) and "items" in each:
            converted = [filled(each["items"], inside) for inside in value]
        if not json_schema.errors(each, converted, 1):
            return converted
    return value


def subschemas(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a schema and all of its subschemas."""
    items = [schema["items"]] if "items" in schema else []
    inside = [*schema.get("anyOf", []), *schema.get("properties", {}).values(), *items]
    return [schema, *(each for one in inside for each in subschemas(one))]


@pytest.mark.slow
@given(st.data())
def test_every_valid_value_has_a_strict_response_that_is_read_as_that_value(data: st.DataObject) -> None:
    """B15."""
    schema, values = data.draw(cases())
    value = data.draw(values)
    converted = strict(schema)
    assert converted is not None
    response = filled(converted, value)

    assert json_schema.errors(converted, response, 3) == []
    parsed = without_nulls(Guide.of(schema), response)
    assert any(not json_schema.errors(schema, each, 1) for each in (parsed, response))
    assert without_empty(parsed) == without_empty(value)


def without_empty(value: Any) -> Any:
    """Return a value without null members, which mean the same as missing members."""
    if isinstance(value, dict):
        return {name: without_empty(each) for name, each in value.items() if each is not None}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


@given(cases())
def test_it_uses_only_keywords_that_servers_enforce(case: tuple[dict[str, Any], Any]) -> None:
    converted = strict_envelope(case[0], wants_evidence=True)
    assert converted is not None
    for each in subschemas(converted):
        assert each.keys() <= {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"}
        if each.get("type") == "object":
            assert (each["required"], each["additionalProperties"]) == (list(each["properties"]), False)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "number"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {"^x": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "string"}}, "then": {"properties": {"b": {"type": "string"}}}},
        {"type": "array"},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"properties": {"a": {"type": "string"}}},
        {"allOf": [{"type": "object"}, {"type": "object", "properties": {"a": {"type": "string"}}}]},
        {"type": "object", "anyOf": [{"properties": {"a": {"type": "string"}}}]},
        {"$ref": "https://example.org/schema"},
        {"enum": [{"a": 1}]},
        {
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "$ref": "#/$defs/node",
        },
    ],
)
def test_schemas_that_allow_more_are_refused(schema: dict[str, Any]) -> None:
    """B15: closed objects would exclude values that are valid under these schemas."""
    assert strict(schema) is None


def test_references_and_constraints_are_resolved() -> None:
    schema = {
        "type": "object",
        "properties": {"seller": {"$ref": "#/$defs/party"}, "kind": {"const": "invoice"}},
        "anyOf": [{"required": ["seller"]}, {"required": ["kind"]}],
        "$defs": {"party": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^x"}}}},
    }

    converted = strict(schema)

    assert converted is not None
    assert converted["properties"]["kind"] == {"type": ["string", "null"], "enum": ["invoice", None]}
    assert converted["properties"]["seller"] == {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"type": ["string", "null"]}},
                "required": ["name"],
                "additionalProperties": False,
            },
            {"type": "null"},
        ]
    }


def test_null_values_of_required_members_are_kept_so_that_they_are_requested_again() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
    assert without_nulls(Guide.of(schema), {"a": None, "b": None, "c": None}) == {"a": None, "c": None}
