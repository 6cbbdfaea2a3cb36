"""Strict parsing of the responses of language models (B17)."""

import json
import time
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.platform import exact_json
from etl.postprocessors.responses import Evidence, NotJson, evidence_of, parse, readings


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
@example("\\u0000")
@example("\\\0")
def test_it_parses_json(value: Any) -> None:
    text = json.dumps(value)
    with pytest.raises(NotJson) if "\\u0000" in text.replace(r"\\", "") else nullcontext():
        assert parse(text) == value


@given(st.text(max_size=100))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(NotJson):
        read = parse(text)
        assert exact_json.loads(exact_json.dumps(read)) == read


def test_evidence_may_be_for_the_whole_data() -> None:
    """B31: for a rule whose data is a single value."""
    for pointer in ("", "#", "/data", "#/data", "data"):
        (answer, *_) = readings({"data": "a", "evidence": {pointer: {"page": 2, "quote": "a"}}}, has_data=False)
        assert answer.evidence_for("") == Evidence(page=2, quote="a")


def test_blank_lines_before_a_code_fence_take_linear_time() -> None:
    """B17."""
    blank = "\n" * 20_000
    began = time.process_time()
    assert parse(f'Here:{blank}```json\n{{"a": 1}}\n```') == {"a": 1}
    assert time.process_time() - began < 1


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x) | st.dictionaries(st.sampled_from(["data", "evidence", "page", "quote", "pointer", "/a"]), x)
        ),
    )
)
def test_any_response_is_parsed_without_an_exception(value: Any) -> None:
    assert readings(value, has_data=True)
    assert all(each.page >= 0 and each.quote for each in evidence_of(value).values())
