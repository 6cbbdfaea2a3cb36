"""`docs/requirements.md`, compared with the files and the tests that it names."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
    # The docstring of the module counts for all its tests, but only for C1 to C4, which whole modules are about.
    whole = " ".join(WHOLE.findall(ast.get_docstring(tree) or ""))
    return {function.name: f"{ast.get_docstring(function) or ''} {whole}" for function in functions}


def has_number(test: str, number: str) -> bool:
    """Return whether the docstring of a test, given as `file::function`, has the number of a requirement."""
    file, _, function = test.partition("::")
    path = TESTS / file
    return path.is_file() and bool(re.search(rf"\b{number}\b", docstrings(file).get(function, "")))


def test_it_has_a_row_for_every_requirement() -> None:
    assert [row.number for row in ROWS] == [
        *(f"A{number}" for number in range(1, 42)),
        *(f"B{number}" for number in (*range(1, 29), *range(30, 45))),
        *(f"C{number}" for number in (*range(1, 8), 9, 10, *range(12, 15))),
    ]


def test_every_listed_file_exists() -> None:
    assert [row.number for row in ROWS if not row.code] == []
    assert [(row.number, name) for row in ROWS for name in row.code if not (PROJECT / name).is_file()] == []


def test_every_listed_test_names_the_requirement() -> None:
    assert [row.number for row in ROWS if not row.tests] == []
    assert [(row.number, test) for row in ROWS for test in row.tests if not has_number(test, row.number)] == []
