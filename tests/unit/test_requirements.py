"""`docs/requirements.md`, held against the files and the tests that it names."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[2]
TESTS = PROJECT / "tests"
WHOLE = re.compile(r"\bC[1-4]\b")
PAGE = (PROJECT / "docs" / "requirements.md").read_text()


class Row(NamedTuple):
    number: str
    what: str
    code: list[str]
    tests: list[str]


ROWS = [
    Row(number, what, re.findall(r"`(.+?)`", code), re.findall(r"`(.+?)`", tests))
    for number, what, code, tests in re.findall(r"^\| ([ABC]\d+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
]


@cache
def docstrings(file: str) -> dict[str, str]:
    tree = ast.parse((TESTS / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    # A module that is about one requirement alone says so once.
    whole = ast.get_docstring(tree) or ""
    return {
        function.name: f"{ast.get_docstring(function) or ''} {whole if WHOLE.search(whole) else ''}"
        for function in functions
    }


def test_every_requirement_has_its_row() -> None:
    assert [row.number for row in ROWS] == [f"A{number}" for number in range(1, 29)] + [
        f"B{number}" for number in range(1, 28)
    ] + [f"C{number}" for number in range(1, 8)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_the_code_is_there(row: Row) -> None:
    assert row.code
    assert [name for name in row.code if not (PROJECT / name).is_file()] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_its_tests_name_it(row: Row) -> None:
    assert row.tests
    for each in row.tests:
        file, _, name = each.partition("::")
        assert re.search(rf"\b{row.number}\b", docstrings(file)[name]), each
