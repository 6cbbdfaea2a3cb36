"""A mutant: a small change to the code, and the tests that must fail with it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A replacement of `old`, which occurs once in `file`, by `new`. One of `tests` must fail with it.

    `name`: the mutant's effect, as an imperative. `tests` are pytest node IDs; a file stands for all its tests.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str | None:
        """Return the text with the change, or None if `old` does not occur exactly once or equals `new`."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None

    def missing(self, root: Path) -> list[str]:
        """Return the named tests that do not exist."""
        return [test for test in self.tests if not has_test(test, root)]


def has_test(test: str, root: Path) -> bool:
    path, _, name = test.partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    if not (root / path).is_file():
        return False
    return not name or f"def {function}(" in (root / path).read_text(encoding="utf-8")


def tests_of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::test_{name}" for name in names)
