"""Examples of keys that match a pattern, which pages show instead of the regular expression."""

import re

import pytest

from exports.core import key_patterns
from exports.models.dataset import DEFAULT_KEY_PATTERN


@pytest.mark.parametrize(
    ("pattern", "example"),
    [
        (DEFAULT_KEY_PATTERN, "ABCDE"),
        ("^[A-Z]{3}$", "ABC"),
        ("^BERLIN$", "BERLIN"),
        (r"(?:EU|US)-\d{4}", "EU-1234"),
        ("[^a-zA-Z0-9]", "_"),
        ("[ÄÖ]{2}", "ÄÄ"),
    ],
)
def test_it_finds_a_key_that_matches(pattern: str, example: str) -> None:
    assert key_patterns.example_of(pattern) == example
    assert re.fullmatch(pattern, example)


@pytest.mark.parametrize("pattern", [r"(?=.*Q)[A-Z]+", r"(a)\1", "[^\\x00-\U0010ffff]"])
def test_it_returns_no_example_if_it_does_not_match(pattern: str) -> None:
    assert key_patterns.example_of(pattern) == ""
