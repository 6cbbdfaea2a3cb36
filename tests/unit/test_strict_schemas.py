"""Strict schemas, which servers enforce: they exclude no value that is valid under the rule's schema (B15)."""

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
    """A schema, and the values that fit it."""
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
    """Return a value as in a strict response: with null for each missing member."""
    for each in schema.get("anyOf", [schema]):
        made = value
        if isinstance(value, dict) and "properties" in each and value.keys() <= each["properties"].keys():
            made = {name: filled(inside, value.get(name)) for name, inside in each["properties"].items()}
        if isinstance(value, list) and "items" in each:
            made = [filled(each["items"], inside) for inside in value]
        if not json_schema.errors(each, made, 1):
            return made
    return value


def spellings(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all subschemas of a schema."""
    items = [schema["items"]] if "items" in schema else []
    inside = [*schema.get("anyOf", []), *schema.get("properties", {}).values(), *items]
    return [schema, *(each for one in inside for each in spellings(one))]


@given(st.data())
def test_every_valid_value_has_a_strict_response_that_is_read_as_that_value(data: st.DataObject) -> None:
    """B15: each value that fits the rule's schema has a strict response, which is read as that value."""
    schema, values = data.draw(cases())
    value = data.draw(values)
    made = strict(schema)
    assert made is not None
    response = filled(made, value)

    assert json_schema.errors(made, response, 3) == []
    meant = without_nulls(Guide.of(schema), response)
    assert any(not json_schema.errors(schema, each, 1) for each in (meant, response))
    assert without_empty(meant) == without_empty(value)


def without_empty(value: Any) -> Any:
    """Return a value without null members: a missing member means the same."""
    if isinstance(value, dict):
        return {name: without_empty(each) for name, each in value.items() if each is not None}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


@given(cases())
def test_it_uses_only_what_servers_enforce(case: tuple[dict[str, Any], Any]) -> None:
    made = strict_envelope(case[0], wants_evidence=True)
    assert made is not None
    for each in spellings(made):
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
    """B15: a closed form of these would exclude valid values."""
    assert strict(schema) is None


def test_references_and_constraints_are_resolved() -> None:
    schema = {
        "type": "object",
        "properties": {"seller": {"$ref": "#/$defs/party"}, "kind": {"const": "invoice"}},
        "anyOf": [{"required": ["seller"]}, {"required": ["kind"]}],
        "$defs": {"party": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^x"}}}},
    }

    made = strict(schema)

    assert made is not None
    assert made["properties"]["kind"] == {"type": ["string", "null"], "enum": ["invoice", None]}
    assert made["properties"]["seller"] == {
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


def test_required_nulls_stay_so_that_they_are_asked_for_again() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
    assert without_nulls(Guide.of(schema), {"a": None, "b": None, "c": None}) == {"a": None, "c": None}
