"""One way to break the product, and the tests that must notice."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`old` stands in `file` exactly once; with `new` in its place one of `tests` has to fail.

    `name` finishes the sentence "what if …". Tests are pytest's node ids; a file is all tests in it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str | None:
        """Return the text with the change; None where the code has moved on from under the mutant."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 and self.old != self.new else None

    def missing(self, root: Path) -> list[str]:
        """Return the tests that there are not, by the names of files and functions."""
        return [test for test in self.tests if not is_there(test, root)]


def is_there(test: str, root: Path) -> bool:
    path, _, name = test.partition("::")
    function = name.partition("[")[0].rpartition("::")[2]
    if not (root / path).is_file():
        return False
    return not name or f"def {function}(" in (root / path).read_text(encoding="utf-8")


def tests_of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::test_{name}" for name in names)
