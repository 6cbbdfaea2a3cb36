"""The chunks of a request, and the paths of their files."""

from collections import Counter
from datetime import date
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exports.core import planning
from exports.core.planning import Dialect, Pair, Shape

pairs = st.builds(Pair, st.sampled_from(["A", "B", "C"]), st.dates())
shapes = st.builds(
    Shape,
    format=st.sampled_from(["csv", "jsonl", "json", "parquet"]),
    compression=st.sampled_from(["none", "gzip", "zstd"]),
    dialect=st.builds(
        Dialect,
        bom=st.booleans(),
        delimiter=st.sampled_from([",", ";", "\t", "|"]),
        formula_policy=st.sampled_from(["none", "escape"]),
    ),
).filter(lambda shape: (shape.format, shape.compression) != ("parquet", "gzip"))  # not allowed in requests


def test_a_path_has_the_documented_format() -> None:
    """A9."""
    key = planning.object_key("flights", Pair("JFK", date(2013, 2, 15)), Shape())
    assert key == "flights/2013/02/15/JFK_20130215.csv"


def test_years_have_four_digits() -> None:
    key = planning.object_key("a", Pair("K", date(7, 1, 2)), Shape(compression="gzip"))
    assert key == "a/0007/01/02/K_00070102.csv.gz"


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["JFK", "jfk", "LGA", "Jfk"], ["JFK_20130215", "jfk_20130215_2", "LGA_20130215", "Jfk_20130215_3"]),
        (["\u00e9", "e\u0301", "E\u0301"], ["\u00e9_20130215", "e\u0301_20130215_2", "E\u0301_20130215_3"]),
        (["a", "A_20130215_2", "A"], ["a_20130215", "A_20130215_2_20130215", "A_20130215_2"]),
    ],
)
def test_file_names_differ_in_more_than_case_and_unicode_normalization(keys: list[str], names: list[str]) -> None:
    taken: Counter[str] = Counter()
    pairs = [Pair(key, date(2013, 2, 15)) for key in keys]
    found = [planning.distinct_file_name(pair, Shape(compression="gzip"), taken) for pair in pairs]
    assert found == [f"2013/02/15/{name}.csv.gz" for name in names]


similar = st.builds(
    Pair, st.text("aAeE\u00e9\u0301\u00df\u1e9es_2", min_size=1, max_size=4), st.just(date(2013, 2, 15))
)


@given(st.lists(similar, unique=True, max_size=20))
def test_no_two_files_have_the_same_name_for_a_file_system(pairs: list[Pair]) -> None:
    taken: Counter[str] = Counter()
    names = [planning.distinct_file_name(pair, Shape(), taken) for pair in pairs]
    for form in (str.lower, str.upper, str.casefold):
        assert len({normalize("NFD", form(normalize("NFC", name))) for name in names}) == len(names)


@given(first=st.tuples(pairs, shapes), second=st.tuples(pairs, shapes))
def test_two_files_share_a_path_only_if_their_content_is_the_same(
    first: tuple[Pair, Shape], second: tuple[Pair, Shape]
) -> None:
    """A9."""
    same_path = planning.object_key("base", *first) == planning.object_key("base", *second)
    assert same_path == (meaning(*first) == meaning(*second))


def meaning(pair: Pair, shape: Shape) -> tuple[object, ...]:
    """Return the values on which the content of a file depends. The dialect affects CSV only."""
    return pair, shape.format, shape.compression, shape.dialect if shape.format == "csv" else None


@given(listed=st.lists(pairs, max_size=30))
def test_deduplication_keeps_the_first_of_equal_pairs(listed: list[Pair]) -> None:
    """A1."""
    unique, duplicates = planning.deduplicate(listed)
    assert len(unique) + duplicates == len(listed)
    assert unique == sorted(set(listed), key=listed.index)


@given(
    keys=st.lists(st.sampled_from(["A", "B", "C"]), unique=True),
    first=st.dates(date(2000, 1, 1), date(2001, 1, 1)),
    span=st.integers(0, 400),
)
def test_filters_expand_to_the_counted_number_of_pairs(keys: list[str], first: date, span: int) -> None:
    last = date.fromordinal(first.toordinal() + span)
    expanded = list(planning.expand(keys, first, last))
    assert len(expanded) == planning.count_pairs(keys, first, last) == len(set(expanded))


def test_billions_of_duplicates_fit_into_their_column() -> None:
    """A1."""
    pairs, duplicates = planning.from_filters(["A"] * 400_000, date(1950, 1, 1), date(1969, 12, 31))
    assert (len(pairs), duplicates) == (7305, 2**31 - 1)
