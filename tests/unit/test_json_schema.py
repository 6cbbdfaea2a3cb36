"""JSON Schemas of users: errors with pointers, no outbound requests, and limited time. B17, B24."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rules.loading.system_rules import SHIPPED
from rules.schema import json_schema
from rules.schema.json_schema import SchemaRefused, check, errors
from rules.schema.subschemas import Parts

INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "number": {"type": ["string", "null"]},
        "date": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "seller": {"anyOf": [{"type": "object", "required": ["name"]}, {"type": "null"}]},
    },
    "required": ["number"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "object", "properties": {"amount": {"type": "number"}}}},
}


def errors_of(schema: Any) -> list[tuple[str, str]]:
    return [(error.pointer, error.code) for error in check(schema)]


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    used = time.process_time()
    yield
    assert time.process_time() - used < seconds


@pytest.fixture
def recording_server() -> Iterator[tuple[str, list[str]]]:
    """The URL of a server, and a list of the paths that were requested."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()
    thread.join()


# ---- Checking -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {},
        INVOICE,
        {"type": "array", "items": {"type": "string"}},
        {"$id": "https://example.org/invoice", "$ref": "#/$defs/a", "$defs": {"a": {"$anchor": "a"}}},
        {"properties": {"a": {"$ref": "#node"}}, "$defs": {"node": {"$anchor": "node"}}},
        {"properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}, "$defs": {"x/y z": True}},
        {"properties": {"$ref": {"type": "string"}, "default": {}, "$id": {"type": "string"}}},
        {"const": {"$ref": "https://example.org/data-not-schema"}, "default": {"$ref": "x"}},
        {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}},
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"properties": {"of": {"items": {"$ref": "#"}}}}]},
        {"oneOf": [{"const": number, "title": str(number)} for number in range(250)]},
        {"anyOf": [{"properties": {"kind": {"const": n}, f"of{n}": {}}} for n in range(30)]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"$id": "#a"}}, "$ref": "#a"},
        {"$schema": "http://json-schema.org/draft-04/schema", "exclusiveMinimum": True, "minimum": 0},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"a": {"$recursiveRef": "#"}}},
        {"$dynamicAnchor": "node", "properties": {"child": {"$dynamicRef": "#node"}}},
    ],
)
def test_typical_schemas_are_accepted(schema: dict[str, Any]) -> None:
    """B24."""
    assert check(schema) == []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("{}", [("", "invalid")]),
        (True, [("", "invalid")]),
        ({"type": "money"}, [("/type", "invalid_schema")]),
        ({"properties": {"total": {"type": "money"}}}, [("/properties/total/type", "invalid_schema")]),
        ({"properties": {"a/b": {"type": ["string", 5]}}}, [("/properties/a~1b/type", "invalid_schema")]),
        ({"minLength": -1, "required": "a"}, [("/minLength", "invalid_schema"), ("/required", "invalid_schema")]),
        ({"properties": {"a": 5}}, [("/properties/a", "invalid_schema")]),
        ({"$schema": "https://example.org/mine"}, [("/$schema", "unknown_draft")]),
        ({"$schema": 7}, [("/$schema", "unknown_draft")]),
        ({"pattern": "("}, [("/pattern", "invalid_pattern")]),
        ({"pattern": "(?=a)b"}, [("/pattern", "invalid_pattern")]),
        ({"pattern": r"(a)\1"}, [("/pattern", "invalid_pattern")]),
        ({"pattern": "((a{999}){999}){999}"}, [("/pattern", "invalid_pattern")]),
        ({"patternProperties": {"[": {}}}, [("/patternProperties/[", "invalid_pattern")]),
        ({"properties": {f"p{n}": {"pattern": "a"} for n in range(51)}}, [("", "too_many_patterns")]),
        ({"$ref": "#/$defs/none"}, [("/$ref", "unresolved")]),
        ({"items": {"$ref": "#none"}}, [("/items/$ref", "unresolved")]),
        ({"$ref": "#/title", "title": "x"}, [("/$ref", "unresolved")]),
        ({"$ref": "#"}, [("", "endless")]),
        ({"properties": {"a": {"not": {"$ref": "#/properties/a"}}}}, [("/properties/a", "endless")]),
        ({"properties": {"a": {"$id": "https://x/"}}}, [("/properties/a/$id", "misplaced")]),
        ({"$defs": {"x": {"type": 5}}}, [("/$defs/x/type", "invalid_schema")]),
        ({"x-note": {"type": "money"}, "$ref": "#/x-note"}, [("/x-note/type", "invalid_schema")]),
    ],
)
def test_errors_have_a_code_and_a_pointer(schema: Any, expected: list[tuple[str, str]]) -> None:
    """B24."""
    assert errors_of(schema) == [(f"/json_schema{pointer}", code) for pointer, code in expected]


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("target", ["/a", "a.json", "file:///etc/hostname", "HTTP", "urn:x:y", ""])
def test_external_references_are_refused(keyword: str, target: str, recording_server: tuple[str, list[str]]) -> None:
    """B24: they are refused at any location in a schema, and the server receives no request."""
    url, paths = recording_server
    reference = {keyword: url if target == "HTTP" else target}
    schema = {"$id": f"{url}/base", "properties": {"default": reference}, "x-more": [reference], "items": [reference]}
    assert {pointer for pointer, code in errors_of(schema) if code == "remote_reference"} == {
        f"/json_schema/properties/default/{keyword}",
        f"/json_schema/x-more/0/{keyword}",
        f"/json_schema/items/0/{keyword}",
    }
    assert paths == []


def test_no_reference_is_fetched(recording_server: tuple[str, list[str]], tmp_path: Path) -> None:
    """B24: a reference is fetched neither during the check of a schema nor during the validation of an instance."""
    url, paths = recording_server
    (tmp_path / "any.json").write_text("{}")
    for schema in (
        {"$ref": f"{url}/a"},
        {"$ref": f"file://{tmp_path}/any.json"},
        {"$id": f"{url}/base/", "properties": {"a": {"$id": "b/", "$ref": "c"}}},
        {"$schema": f"{url}/draft"},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$vocabulary": {f"{url}/v": True},
            "$ref": f"{url}/",
        },
    ):
        assert check(schema)
        with pytest.raises(SchemaRefused):
            errors(schema, {"a": 1})
    assert check({"$id": f"{url}/base", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}) == []
    assert paths == []


def test_schemas_are_limited_to_64_kilobytes_and_32_levels() -> None:
    """B24."""

    def nested(levels: int) -> Any:
        schema: dict[str, Any] = {}
        for _ in range(levels - 1):
            schema = {"not": schema}
        return schema

    assert errors_of(nested(32)) == []
    assert errors_of(nested(33)) == [("/json_schema", "too_deep")]
    assert errors_of({"title": "x" * (65_536 - len('{"title":""}'))}) == []
    assert errors_of({"title": "x" * (65_537 - len('{"title":""}'))}) == [("/json_schema", "too_large")]
    assert errors_of({"title": "é" * 32_763}) == [("/json_schema", "too_large")]


def test_it_reports_at_most_a_hundred_errors() -> None:
    assert len(check({"properties": {f"p{number}": 5 for number in range(500)}})) == 100


# ---- Hostile schemas ------------------------------------------------------------------------------------------------


def doubling(times: int, *, where: str) -> dict[str, Any]:
    """Return a schema in which each definition refers to the next one twice, so that there are 2**times paths."""
    parts: dict[str, Any] = {f"d{times}": {"type": "string"}}
    for number in range(times):
        onward = {"$ref": f"#/$defs/d{number + 1}"}
        parts[f"d{number}"] = (
            {"allOf": [{where: {"a": onward}}, {where: {"a": onward}}]} if where else {"allOf": [onward] * 2}
        )
    return {"$ref": "#/$defs/d0", "$defs": parts}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(13, where=""),
        doubling(400, where=""),
        doubling(20, where="properties"),
        doubling(20, where="patternProperties"),
        {**doubling(30, where=""), "unevaluatedProperties": False},
        {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]},
        {"allOf": [{"items": {"$ref": "#"}}, {"contains": {"$ref": "#"}}]},
        {"allOf": [{"items": {"$ref": "#"}}, {"prefixItems": [{"$ref": "#"}]}]},
        {"$ref": "#/$defs/d0", "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)} | {"d2000": {}}},
        {"anyOf": [{"properties": {f"p{n}": {}, f"q{n}": {}}, "additionalProperties": {}} for n in range(800)]},
    ],
)
def test_exponential_schemas_are_refused(schema: dict[str, Any]) -> None:
    """B24: with some of these, the validation of a few bytes would take years or exhaust the memory."""
    with cpu_limit(2):
        assert errors_of(schema) == [("/json_schema", "too_complex")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 200_000 + "b"),
        ({"pattern": "(x+x+)+y"}, "x" * 200_000),
        ({"pattern": r"^(\w+\s?)*$"}, "word " * 40_000 + "!"),
        ({"enum": list(range(11_000))}, -1),
        ({"enum": [{"a": [number]} for number in range(4_000)]}, {"a": [-1]}),
        (
            {"properties": {str(number): {} for number in range(6_000)}, "required": ["x"]},
            {str(n): n for n in range(9_000)},
        ),
        ({"items": {"type": "string"}}, list(range(300_000))),
        ({"uniqueItems": True}, [{"a": [number // 2]} for number in range(20_000)]),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, json.loads('{"a":' * 63 + "5" + "}" * 63)),
        (doubling(9, where=""), 5),
        ({**doubling(9, where=""), "unevaluatedItems": False}, []),
        ({"maxLength": 1e300, "multipleOf": 1e-300, "maximum": 10**400}, 1e300),
    ],
)
def test_expensive_schemas_are_checked_in_time(schema: dict[str, Any], instance: Any) -> None:
    """B24."""
    with cpu_limit(5):
        assert check(schema) == []
        assert len(errors(schema, instance)) <= 20


def test_a_too_deeply_nested_instance_is_invalid() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    assert errors({"items": {"$ref": "#"}}, deep) == [("", "Must not be nested deeper than 64 levels.")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "$ref", "allOf", "not", "enum", "$defs", "a", "pattern", "$id"]
            )
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@pytest.mark.slow
@hypothesis_settings(deadline=None, max_examples=150)
@given(schema=JSON, instance=JSON)
def test_any_json_can_be_checked_and_accepted_schemas_can_be_applied(schema: Any, instance: Any) -> None:
    """B24."""
    refusals = check(schema)
    assert all(error.pointer.startswith("/json_schema") and error.code and error.detail for error in refusals)
    if not refusals:
        assert all(pointer == "" or pointer[0] == "/" for pointer, _ in errors(schema, instance))


@pytest.mark.slow
def test_the_most_expensive_schemas_cost_two_seconds_and_50_mib_at_most() -> None:
    """B24: the schemas are known ones and those of a random search."""
    command = [sys.executable, "-m", "tests.unit.costly_schemas", "3", "60"]
    result = json.loads(subprocess.check_output(command))
    assert result["seconds"] < 2, result["slowest"]
    assert result["mebibytes"] < 50, result["largest"]
    assert result["schemas"] >= 8


def test_duplicate_anchors_are_refused() -> None:
    """B24: it is undefined which of several equal anchors a validator uses."""
    part = {"$anchor": "a", "$dynamicAnchor": "a", "type": "string"}
    assert errors_of({"$ref": "#a", "$defs": {"x": part}}) == []
    assert errors_of({"$ref": "#a", "$defs": {"x": part, "y": {"$anchor": "a"}}}) == [
        ("/json_schema/$defs/y/$anchor", "duplicate_anchor")
    ]
    assert errors_of({"allOf": [{}], "$ref": "#/allOf/00"}) == [("/json_schema/$ref", "unresolved")]


# ---- Applying -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", json_schema.DRAFTS.values())
def test_a_property_called_type_is_not_the_keyword(uri: str) -> None:
    def details(part: Any) -> list[str]:
        schema = {"$schema": uri, "type": "object", "properties": {"type": part}}
        return [error.detail for error in json_schema.check(schema)]

    assert details({"type": "string", "title": 5}) == ["Must be of type string."]
    assert details({"type": "money"})[0].startswith("Must be one of array")


def test_a_valid_instance_has_no_errors() -> None:
    """B17."""
    good = {"number": None, "date": "2024-02-29", "lines": [{"amount": 1.5}], "seller": {"name": "x"}}
    assert errors(INVOICE, good) == []


def test_errors_have_a_pointer_and_the_expected_value() -> None:
    """B17: messages do not contain values of the document."""
    invalid = {"date": "30.02.2024", "lines": [{"amount": 1}, {"amount": "secret"}], "seller": {}, "extra": "secret"}
    assert sorted(errors(INVOICE, invalid)) == [
        ("", "Must not have these members: 'extra'."),
        ("", "The member 'number' is missing."),
        ("/date", "Must be in the format date."),
        ("/lines/1/amount", "Must be of type number."),
        ("/seller", "The member 'name' is missing."),
    ]
    assert "secret" not in str(errors(INVOICE, invalid))
    assert len(errors({"items": {"type": "string"}}, [1] * 100)) == 20


@pytest.mark.parametrize(
    ("schema", "instance", "message"),
    [
        ({"const": True}, 1, "Must be true."),
        ({"enum": ["a", None]}, "b", 'Must be one of: "a", null'),
        ({"minimum": 3}, 1, "Must be at least 3."),
        ({"maxLength": 3}, "abcd", "Must have at most 3 characters."),
        ({"minItems": 1}, [], "Must have at least 1 item."),
        ({"pattern": "^[A-Z]{3}$"}, "eur", "Must match the pattern ^[A-Z]{3}$"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, 5, "Matches none of the alternatives in `oneOf`."),
        ({"oneOf": [{}, {"type": "integer"}]}, 5, "Matches more than one of the alternatives in `oneOf`."),
        ({"uniqueItems": True}, [1, 1], "Must not contain duplicate items."),
        ({"not": {}}, 5, "Must not match the schema in `not`."),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "The member 'b' is missing."),
    ],
)
def test_each_kind_of_error_has_a_text(schema: dict[str, Any], instance: Any, message: str) -> None:
    assert errors(schema, instance) == [("", message)]


def test_a_member_whose_schema_is_false_is_not_allowed() -> None:
    assert errors({"properties": {"a": False}}, {"a": 5}) == [("/a", "Is not allowed here.")]


def test_an_invalid_schema_is_not_applied() -> None:
    with pytest.raises(SchemaRefused):
        errors({"type": "money"}, 5)


def test_a_schema_is_compiled_once() -> None:
    before = json_schema.compiled_from.cache_info().misses
    for _ in range(3):
        errors({"type": "string", "title": "compiled once"}, "x")
        errors({"title": "compiled once", "type": "string"}, "y")
    assert json_schema.compiled_from.cache_info().misses == before + 1


# ---- Extension keywords ---------------------------------------------------------------------------------------------
def member(**schema: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"x": schema, "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    } | {"$defs": {"row": {"type": "object", "properties": {"sku": {"type": "string"}, "amount": {"type": "number"}}}}}


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"type": kind, "x-merge": "first"}
            for kind in ("string", "number", "boolean", "object", ["integer", "null"])
        ),
        *({"type": "array", "x-merge": name} for name in ("concat", "unique")),
        {"type": "string", "x-merge": "concat"},
        {"type": "string", "format": "date", "x-merge": "max"},
        {"x-merge": "last"},
        {"$ref": "#/$defs/row", "x-merge": "error"},
        {"type": "array", "items": {"$ref": "#/$defs/row"}, "x-merge-key": ["sku", "amount"]},
        {"type": "array", "items": {"type": "object", "x-merge-key": "anything"}},
        {"type": "number", "x-sum-of": "/rows/*/amount"},
        {"type": "number", "x-other": 5},
    ],
)
def test_extension_keywords_are_accepted(schema: dict[str, Any]) -> None:
    assert json_schema.check(member(**schema)) == []


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"x-merge": "newest"}, "x-merge"),
        ({"x-merge": ["first"]}, "x-merge"),
        ({"type": "array", "x-merge": "last"}, "x-merge"),
        ({"type": "number", "x-merge": "concat"}, "x-merge"),
        ({"type": "string", "x-merge": "unique"}, "x-merge"),
        ({"type": "string", "x-merge": "max"}, "x-merge"),
        ({"$ref": "#/$defs/row", "x-merge": "max"}, "x-merge"),
        ({"type": "array", "x-merge-key": ""}, "x-merge-key"),
        ({"type": "array", "x-merge-key": []}, "x-merge-key"),
        ({"type": "array", "items": {"$ref": "#/$defs/row"}, "x-merge-key": "ean"}, "x-merge-key"),
        ({"type": "number", "x-sum-of": "rows"}, "x-sum-of"),
        ({"type": "number", "x-sum-of": "/rows/*/price"}, "x-sum-of"),
        ({"type": "number", "x-sum-of": "/rows"}, "x-sum-of"),
        ({"type": "boolean", "x-sum-of": "/rows/*/amount"}, "x-sum-of"),
        ({"x-require-complete": True}, "x-require-complete"),
    ],
)
def test_wrong_uses_of_extension_keywords_are_refused(schema: dict[str, Any], pointer: str) -> None:
    """B42: they would have no effect otherwise."""
    [error] = json_schema.check(member(**schema))
    assert (error.pointer, error.code) == (f"/json_schema/properties/x/{pointer}", "invalid_extension")
    assert json_schema.errors(member(**schema), {}) == []  # rules that were saved by an earlier release still work


KNOWN = {
    *("$schema", "title", "description", "type", "properties", "required", "additionalProperties", "items", "enum"),
    *("format", "pattern", "$ref", "$defs", "x-merge", "x-merge-key", "x-sum-of"),
}


@pytest.mark.parametrize("name", ["einvoice", "invoice", "receipt", "contract-summary"])
def test_shipped_rules_have_only_known_keywords(name: str) -> None:
    """A regression test: because of a comma in an unquoted YAML text, half of a description became a keyword."""
    schema = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())["json_schema"]
    assert json_schema.check(schema) == []
    for part in Parts(schema).parts.values():
        assert set(part.schema) <= KNOWN


def test_the_values_of_an_invoice_line_may_be_null() -> None:
    """A regression test: the prompt of the rule required null for missing values, but its schema did not allow it."""
    schema = yaml.safe_load((SHIPPED / "invoice.yaml").read_text())["json_schema"]
    line = dict.fromkeys(schema["properties"]["lines"]["items"]["required"])
    invoice = dict.fromkeys(schema["required"]) | {"lines": [line], "taxes": []}
    party = dict.fromkeys(("name", "address", "tax_id"))
    invoice |= {"seller": party, "buyer": party, "payment": dict.fromkeys(("iban", "bic", "reference", "terms"))}
    assert json_schema.errors(schema, invoice) == []
