"""The table of mutants, compared with the code. `make mutants` checks whether the tests kill them."""

from collections import Counter
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]


def problems(mutant: Mutant) -> list[str]:
    file = ROOT / mutant.file
    if not file.is_file():
        return [f"{mutant.file} does not exist"]
    text = file.read_text(encoding="utf-8")
    found = [f"{test} does not exist" for test in mutant.missing(ROOT)]
    if not mutant.tests:
        found.append("it names no tests")
    if not mutant.applied(text):
        found.append(f"{mutant.file} contains {mutant.old!r} {text.count(mutant.old)} times")
    return found


def test_each_mutant_changes_one_place_and_names_existing_tests() -> None:
    assert {mutant.name: found for mutant in MUTANTS if (found := problems(mutant))} == {}


def test_each_mutant_has_a_unique_name() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert len(MUTANTS) >= 30
