"""The mutants of `make mutants` still fit the code. Whether tests kill them, only that command tells."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_one_place_and_names_tests_that_there_are(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(text), f"{mutant.old!r} is there {text.count(mutant.old)} times"
    assert mutant.tests
    assert mutant.missing(ROOT) == []


def test_each_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert len(MUTANTS) >= 30
