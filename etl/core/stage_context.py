"""What a stage lends to the provider or processor that does its work: a clock, a voice, and a memory.

A stage run has an end (`ETL_TASK_TIMEOUT`), may lose its lease, shows progress, and may be killed at any line and run
again. Code that works for long asks `check()` between its steps and never waits longer than `remaining()`.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from etl.core.errors import Fenced, OutOfTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning:  # noqa: A001 - the contract's word, and nobody raises it
    """Something that a person should know about a result that is otherwise good. `page`: from 1."""

    code: str
    detail: str
    page: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail} | ({} if self.page is None else {"page": self.page})


@dataclass(slots=True, kw_only=True)
class Usage:
    """What a language model's server counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0

    def add(self, other: "Usage") -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.calls += other.calls

    def as_dict(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "calls": self.calls,
        }


class Journal(Protocol):
    """Remembers answers that cost money, so that a stage that is run again does not pay twice.

    Entries are JSON objects. `run` ones are for this run of the stage and its attempts: also answers that were no good,
    so that an attempt that takes up the work meets the same ones. The others are good for the whole task: pieces
    that were accepted, which a person's retry of a failed task need not pay for again.
    """

    def recall(self, key: str) -> dict[str, Any] | None: ...

    def keep(self, key: str, entry: dict[str, Any], *, run: bool) -> None: ...


class Forgetful:
    """The journal of work that is never taken up again: trying out a rule."""

    def recall(self, key: str) -> dict[str, Any] | None:
        return None

    def keep(self, key: str, entry: dict[str, Any], *, run: bool) -> None:
        pass


def nothing(*_args: Any) -> None:
    pass


@dataclass(slots=True, kw_only=True)
class Work:
    """One run of a stage, as seen from inside.

    `seconds`: how long it may take. `resumed`: the provider's id of a job that an earlier run has begun, or "".
    `secret`: bytes that nobody outside can guess, the same each time that this run is taken up again.
    """

    seconds: float
    resumed: str = ""
    secret: bytes = b""
    journal: Journal = field(default_factory=Forgetful)
    on_progress: Callable[[int, int], None] = nothing
    on_remember: Callable[[str], None] = nothing
    on_spend: Callable[[Usage], None] = nothing
    lost: threading.Event = field(default_factory=threading.Event)
    warnings: list[Warning] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    paid: Usage = field(default_factory=Usage)  # what of it this run paid, and no earlier one
    # What a model is asked by, and which: said as soon as it is known, so that a failure tells it too.
    strategy: str | None = None
    model: str | None = None
    began: float = field(default_factory=time.monotonic)

    def remaining(self) -> float:
        """Return the seconds that are left. Raises as `check` does."""
        self.check()
        return self.began + self.seconds - time.monotonic()

    def check(self) -> None:
        """Raise Fenced once the lease is lost, and OutOfTime at the end. Costs nothing."""
        if self.lost.is_set():
            raise Fenced
        if time.monotonic() >= self.began + self.seconds:
            raise OutOfTime

    def pause(self, seconds: float) -> None:
        """Wait, and wake at once when the lease is lost. Raises as `check` does."""
        self.lost.wait(min(seconds, self.remaining()))
        self.check()

    def progress(self, done: int, total: int) -> None:
        """Say that `done` of `total` pages, or calls, are done. Cheap: call it as often as there is news."""
        self.check()
        self.on_progress(done, total)

    def remember(self, provider_task_id: str) -> None:
        """Note the provider's id of the job that was begun there, for a run that has to take it up."""
        self.on_remember(provider_task_id)

    def spend(self, usage: Usage, *, recalled: bool = False) -> None:
        """Count what a call of a model cost; `recalled` when its answer came from the journal and was paid before."""
        self.usage.add(usage)
        if not recalled:
            self.paid.add(usage)
            self.on_spend(usage)

    def warn(self, code: str, detail: str, *, page: int | None = None) -> None:
        warning = Warning(code=code, detail=detail, page=page)
        if warning not in self.warnings:
            self.warnings.append(warning)
