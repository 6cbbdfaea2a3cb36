"""What a check finds: whether that is well, one sentence that says what is, and one that says what to do."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and will not, or not safely, some day
    FAILURE = "failure"  # something does not work, or promises are broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`says` and `do` are sentences of ours: no value of a setting that may be secret, no message of a server's."""

    level: Level
    says: str
    do: str = ""


def ok(says: str) -> Finding:
    return Finding(level=Level.OK, says=says)


def warning(says: str, do: str) -> Finding:
    return Finding(level=Level.WARNING, says=says, do=do)


def failure(says: str, do: str) -> Finding:
    return Finding(level=Level.FAILURE, says=says, do=do)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[T]):
    """`open` gives what the checks look at, or raises; `away` is what to do then. Each check is a verb and a noun,
    `check_version`, and is known by the noun: `database.version`."""

    name: str
    open: Callable[[], AbstractContextManager[T]]
    checks: tuple[Callable[[T], Iterator[Finding]], ...]
    away: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A finding, and whose it is."""

    check: str
    finding: Finding
