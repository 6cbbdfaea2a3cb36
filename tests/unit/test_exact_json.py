"""JSON with numbers that keep their exact digits."""

import copy
import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.platform import exact_json
from config.platform.exact_json import Number, comparable

LITERALS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\Z")


@pytest.mark.slow
@given(st.recursive(LITERALS, lambda inner: st.lists(inner, max_size=4).map(lambda each: f"[{','.join(each)}]")))
def test_json_is_written_exactly_as_it_was_read(text: str) -> None:
    assert exact_json.dumps(exact_json.loads(text)).decode() == text


@given(LITERALS)
def test_a_number_has_its_exact_value(literal: str) -> None:
    assert exact_json.loads(literal) == Decimal(literal)


@given(LITERALS, LITERALS)
def test_equal_numbers_are_comparable(one: str, other: str) -> None:
    assert (comparable(Decimal(one)) == comparable(Decimal(other))) == (Decimal(one) == Decimal(other))


@pytest.mark.parametrize("literal", ["12.50", "1e22", "-0.0", "0.1234567890123456789012345678901234567890"])
def test_copies_keep_the_digits(literal: str) -> None:
    number = Number(literal)
    for each in (copy.copy(number), copy.deepcopy(number), pickle.loads(pickle.dumps(number))):  # noqa: S301 - trusted
        assert (str(each), repr(each), f"{each}") == (literal, literal, literal)


def test_a_format_applies_to_the_value() -> None:
    assert f"{Number('1234.50'):,.1f}" == "1,234.5"


def test_small_integers_are_integers() -> None:
    assert [type(each) for each in exact_json.loads("[7, -7, 123456789012345678, 1234567890123456789, -0]")] == [
        *(int, int, int),
        *(Number, Number),
    ]


@pytest.mark.parametrize("value", [Decimal("1.5"), object(), {1, 2}])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        exact_json.dumps([value])


def test_the_standard_library_agrees_on_the_structure() -> None:
    text = '{"b": [1.50, {"a": null}], "a": true, "": "\\u00e9"}'
    assert json.loads(exact_json.dumps(exact_json.loads(text))) == json.loads(text)
    assert list(exact_json.loads(text)) == ["b", "a", ""]


def test_an_exponent_out_of_range_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="exponent"):
        exact_json.loads('{"a": 0e99999999999999999999}')
