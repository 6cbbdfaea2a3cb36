"""The table of a schema's fields, and its edits of the text. C1."""

from dataclasses import replace
from typing import Any

import pytest
from django.http import QueryDict
from hypothesis import assume, given
from hypothesis import strategies as st

from rules.pages import field_table, schema_text
from rules.pages.field_table import OTHER, TYPES, FieldRow

names = st.text("abc ./~", min_size=1, max_size=4).filter(str.strip)
plain = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "number", ["string", "null"], ["null", "integer"], "boolean", "text", 3])},
    optional={
        "description": st.text("xy\n", max_size=5),
        "format": st.sampled_from(["date", "email"]),
        "minimum": st.just(1),
    },
)
nested = st.fixed_dictionaries(
    {"type": st.sampled_from(["object", "array"])},
    optional={"properties": st.dictionaries(names, plain, max_size=2), "items": plain, "description": st.just("d")},
)
properties = st.dictionaries(
    names, plain | nested | st.booleans() | st.fixed_dictionaries({"$ref": st.just("#")}), max_size=5
)
schemas = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": properties},
    optional={
        "required": st.lists(names, unique=True, max_size=4),
        "additionalProperties": st.just(False),
        "x-more": st.just([1, {"deep": None}]),
    },
)


def table(schema: Any) -> list[FieldRow]:
    found = field_table.table_of(schema)
    assert found is not None
    return found.rows


def posted(before: list[FieldRow], after: list[FieldRow]) -> QueryDict:
    """The table as a browser sends it."""
    data = QueryDict(mutable=True)
    data["fields_before"] = field_table.FieldTable(rows=before, hidden=[]).before
    for number, row in enumerate(after):
        for name in ("origin", "name", "type", "description"):
            data.appendlist(f"field_{name}", getattr(row, name).replace("\n", "\r\n"))
        data.appendlist("field_number", str(number))
        if row.required:
            data.appendlist("field_required", str(number))
    return data


@given(schemas)
def test_an_untouched_table_changes_nothing(schema: dict[str, Any]) -> None:
    """Through the form, byte by byte."""
    rows = table(schema)
    data = posted(rows, rows)
    assert not field_table.is_edited(data)
    after = field_table.typed_rows(data)
    assert schema_text.write(field_table.apply(schema, field_table.rows_before(data), after)) == schema_text.write(
        schema
    )


@given(schemas, st.data())
def test_edits_show_in_the_table_and_lose_nothing(schema: dict[str, Any], data: st.DataObject) -> None:
    before = table(schema)
    after: list[FieldRow] = []
    for row in before:
        if data.draw(st.booleans()):
            kind = row.type if row.type == OTHER else data.draw(st.sampled_from(sorted(TYPES)))
            row = replace(row, type=kind, description=data.draw(st.text("pq", max_size=3)))  # noqa: PLW2901
            row = replace(row, name=row.name + data.draw(st.sampled_from(["", "9"])), required=data.draw(st.booleans()))  # noqa: PLW2901
        if data.draw(st.integers(0, 4)):
            after.append(row)
    if data.draw(st.booleans()):
        after.append(FieldRow(origin="", name="new", type="number?", description="It.", required=True))
    shown = [row.name for row in after]
    hidden = field_table.table_of(schema).hidden  # type: ignore[union-attr]
    assume(len({*shown, *hidden}) == len(shown) + len(hidden))
    # A name in `required` without a property is not in the table, unless a row takes that name.
    assume(not {*shown} & ({*schema.get("required", [])} - {*schema["properties"]}))

    sent = posted(before, after)
    edited = field_table.apply(schema, field_table.rows_before(sent), field_table.typed_rows(sent))
    assert sorted(table(edited), key=lambda row: row.name) == sorted(
        (replace(row, origin=row.name) for row in after), key=lambda row: row.name
    )
    for name in hidden:
        assert edited["properties"][name] == schema["properties"][name]
    for row in after:
        if row.origin:
            old, new = schema["properties"][row.origin], edited["properties"][row.name]
            kept = {"type", "description", "format"}
            assert {key: each for key, each in new.items() if key not in kept} == {
                key: each for key, each in old.items() if key not in kept
            }
    rest = {"properties", "required"}
    assert {k: v for k, v in edited.items() if k not in rest} == {k: v for k, v in schema.items() if k not in rest}


@pytest.mark.parametrize(
    ("before", "kind", "after"),
    [
        ({"type": "string"}, "date?", {"type": ["string", "null"], "format": "date"}),
        ({"type": "string", "format": "date"}, "number", {"type": "number"}),
        ({"type": "string", "format": "email"}, "string?", {"type": ["string", "null"], "format": "email"}),
        ({"type": ["null", "integer"], "maximum": 9}, "integer", {"type": "integer", "maximum": 9}),
    ],
)
def test_a_type_is_changed(before: dict[str, Any], kind: str, after: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": before}}
    [row] = table(schema)
    assert field_table.apply(schema, [row], [replace(row, type=kind)])["properties"]["a"] == after


def test_two_fields_cannot_have_one_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    one, other = table(schema)
    with pytest.raises(field_table.DuplicateName):
        field_table.apply(schema, [one, other], [one, replace(other, name="a")])


def test_a_field_can_be_added_to_an_empty_text() -> None:
    row = FieldRow(origin="", name="total", type="number", description="Paid.", required=True)
    assert field_table.apply(None, [], [row]) == {
        "type": "object",
        "properties": {"total": {"type": "number", "description": "Paid."}},
        "required": ["total"],
    }


@pytest.mark.parametrize(
    "schema", [True, [], {"type": "array"}, {"properties": 3}, {"type": "object", "required": "a"}]
)
def test_other_schemas_have_no_table(schema: Any) -> None:
    assert field_table.table_of(schema) is None


def test_invalid_hidden_fields_are_no_edit_of_anything() -> None:
    data = QueryDict(mutable=True)
    data["fields_before"] = '[{"origin": 1}]'
    assert field_table.rows_before(data) == []
    assert field_table.typed_rows(data) == []
