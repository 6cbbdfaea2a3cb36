"""Findings of checks, and the subjects that checks belong to."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works now, but not safely or not for long
    FAILURE = "failure"  # does not work, or breaks a guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A state and its remedy. Neither contains a secret or a server's own message."""

    level: Level
    state: str
    remedy: str = ""


def ok(state: str) -> Finding:
    return Finding(level=Level.OK, state=state)


def warning(state: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, state=state, remedy=remedy)


def failure(state: str, remedy: str) -> Finding:
    return Finding(level=Level.FAILURE, state=state, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[T]):
    """A system to check.

    `open` returns the object that is passed to each check; if it raises, the remedy is `remedy_if_unreachable`. A
    function `check_version` of the subject `database` is reported as `database.version`.
    """

    name: str
    open: Callable[[], AbstractContextManager[T]]
    checks: tuple[Callable[[T], Finding | Iterator[Finding]], ...]
    remedy_if_unreachable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A finding with the name of its check."""

    check: str
    finding: Finding
