"""Finding values in a document however they are written (B20)."""

import json
from contextlib import nullcontext, suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.core.stage_context import StageContext
from etl.postprocessors.citations import cite, support
from etl.postprocessors.document_text import clean
from etl.postprocessors.responses import Evidence, NotJson, ParsedResponse, evidence_of, parse, readings
from etl.postprocessors.strategies.base import StrategyResult
from etl.postprocessors.text_search import Index, folded, numbers_in
from tests.integration.llm_factories import ocr_of


def found(value: Any, *pages: str) -> str | None:
    """Return the text that a value was found as."""
    text = clean(ocr_of(*pages))
    hit = Index(text).value(value)
    return text.content[hit.start : hit.end] if hit else None


@pytest.mark.parametrize(
    ("value", "page", "there"),
    [
        ("ACME Ltd", "To: **Acme\n ltd**.", "Acme\n ltd"),
        ("ACME", "ACMEs", None),
        ("Straße 5", "STRASSE 5", "STRASSE 5"),
        ("ＡＢＣ１２", "abc12", "abc12"),
        ("a b", "a | b", "a | b"),
        ("a b", "<td>a</td><td>b</td>", "a</td><td>b"),
        ("Fish & Chips", "Fish &amp; Chips", "Fish &amp; Chips"),
        ("2", '<td colspan="2">x</td>', None),
        ("“x” – y", '"x" - y', '"x" - y'),
        ("合計", "請求書合計額", "合計"),
        (1234.5, "1,234.50", "1,234.50"),
        (1234.5, "1.234,50 €", "1.234,50"),
        (1234.5, "1 234,50", "1 234,50"),
        (1234.5, "1'234.50", "1'234.50"),
        (1234, "1.234", "1.234"),
        (1.234, "1.234", "1.234"),
        (1234567, "1,234,567", "1,234,567"),
        (-12.5, "(12.50)", "12.50"),
        (0.19, "19 % VAT", "19"),
        (17, "Room 170", None),
        (12, "12.5", None),
        ("1,234.50", "1.234,50", "1.234,50"),
        ("007", "Page 7", None),
        (True, "1", None),
        ("2024-02-29", "29.02.2024", "29.02.2024"),
        ("2024-02-29", "Feb 29, 2024", "Feb 29, 2024"),
        ("2024-02-29", "29 FEBRUARY 2024", "29 FEBRUARY 2024"),
        ("2024-02-29T00:00:00Z", "2/29/2024", "2/29/2024"),
        ("2024-02-29", "2024年2月29日", "2024年2月29日"),
        ("2024-02-29", "28.02.2024", None),
        ("2024-13-45", "13.45.2024", None),
        ("", "anything", None),
        ("x" * 5_000, "x" * 5_000, None),
    ],
)
def test_it_finds_values(value: Any, page: str, there: str | None) -> None:
    assert found(value, page) == there


def test_it_searches_likely_pages_first() -> None:
    index = Index(clean(ocr_of("ACME 500", "ACME 500", "ACME 500")))
    for value in ("ACME", 500):
        assert [getattr(index.value(value, likely=likely), "page", 0) for likely in (None, (2, 2), (3, 9))] == [1, 2, 3]


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from(" \n|*<>&;ßİﬁ"), max_size=100))
def test_places_are_inside_the_text(text: str) -> None:
    made = folded([(0, text)])
    places = [made.origin(place) for place in range(len(made.text))]
    assert places == sorted(places)
    assert all(0 <= place < len(text) for place in places)


@given(st.integers(0, 10**12), st.integers(0, 99))
def test_it_finds_numbers_in_common_notations(whole: int, cents: int) -> None:
    value = Decimal(f"{whole}.{cents:02}")
    for thousands, point in ((",", "."), (".", ","), (" ", ","), ("'", "."), ("", ".")):
        text = f"{whole:,}".replace(",", thousands) + f"{point}{cents:02}"
        assert any(number == value for _, _, number in numbers_in(text)), text


def test_hostile_texts_are_searched_in_time() -> None:
    for page in ("1" * 300_000, "1." * 150_000, "1 234 " * 50_000, "<a" * 150_000, "&" * 300_000, "a<" * 100_000):
        assert found("nowhere", page) is None


@pytest.mark.parametrize(
    ("value", "quote", "level"),
    [
        ("ACME", "To: ACME Ltd", "exact"),
        (12, "12 pieces", "exact"),
        (1200, "1,200", "numeric"),
        ("2024-02-29", "29 Feb 2024", "normalized"),
        ("A long sentence that says it all, and more.", "a long sentence that says it all", "normalized"),
        ("A long sentence that says it all, and more.", "a long", None),
        ("Beta", "To: ACME Ltd", None),
        (99, "Total 12.00", None),
    ],
)
def test_a_quote_counts_only_when_the_value_is_in_it(value: Any, quote: str, level: str | None) -> None:
    assert support(value, quote) == level


DATA = st.dictionaries(
    st.sampled_from("abc"),
    st.integers() | st.text(max_size=10) | st.booleans() | st.none() | st.floats(allow_nan=False),
)
EVIDENCE = st.dictionaries(
    st.sampled_from(["/a", "/b", "/x"]),
    st.builds(lambda page, quote: Evidence(page=page, quote=quote), st.integers(), st.text()),
)


@given(DATA, EVIDENCE, st.lists(st.text(max_size=60), min_size=1, max_size=3))
def test_every_citation_holds(data: Any, evidence: Any, pages: list[str]) -> None:
    """B20: whatever a model says, what is cited is there."""
    text = clean(ocr_of("first page", *pages))
    answer = ParsedResponse(data=data, evidence={pointer: each for pointer, each in evidence.items() if each.quote})
    for each in cite(StrategyResult(answer=answer), schema={}, text=text, context=StageContext(seconds=60)):
        assert each["quote"]
        assert each["quote"] in text.page(each["page"])
        assert each["pointer"][1:] in data


# ---- Answers --------------------------------------------------------------------------------------------------------
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_it_parses_json(value: Any) -> None:
    told = json.dumps(value)
    with pytest.raises(NotJson) if "\\u0000" in told else nullcontext():
        assert parse(told) == value


@given(st.text(max_size=100))
def test_any_text_is_parsed_or_refused_with_a_reason(text: str) -> None:
    with suppress(NotJson):
        read = parse(text)
        assert json.loads(json.dumps(read, allow_nan=False)) == read


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
