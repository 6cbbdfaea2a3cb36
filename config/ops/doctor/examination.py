"""Looks at subjects side by side, in bounded time. What one check cannot say keeps no other from speaking."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from config.ops.doctor.findings import Finding, Level, Line, Subject, failure
from config.platform.http import health
from config.platform.observability import logs

log = structlog.get_logger(__name__)

TOTAL_SECONDS = 20


@dataclass
class Examination:
    """Of one subject: what was found so far, and what is being looked at now."""

    subject: Subject[Any]
    lines: list[Line] = field(default_factory=list)
    now: str = "reachable"
    is_over: bool = False

    def run(self) -> None:
        try:
            with self.subject.open() as thing:
                for check in self.subject.checks:
                    self.now = check.__name__.removeprefix("check_")
                    self.look(check, thing)
        except Exception as error:  # noqa: BLE001  whatever a driver raises means that this cannot be looked at
            log.warning("doctor_cannot_look", subject=self.subject.name, error=logs.describe(error))
            self.note(failure(f"It {health.reason(error)}.", self.subject.away))
        finally:
            self.is_over = True

    def look(self, check: Any, thing: Any) -> None:
        try:
            for finding in check(thing):
                self.note(finding)
        except Exception as error:  # noqa: BLE001  a fault of one check must not hide what the others find
            kind = logs.describe(error)
            log.warning("doctor_cannot_look", subject=self.subject.name, check=self.now, error=kind)
            self.note(failure(f"This could not be looked at: {kind}.", "See what the log says at this time."))

    def note(self, finding: Finding) -> None:
        self.lines.append(Line(check=f"{self.subject.name}.{self.now}", finding=finding))

    def conclude(self) -> list[Line]:
        """Return what was found; of a subject that takes too long also where it hangs."""
        if not self.is_over:
            self.note(failure(f"This took longer than {TOTAL_SECONDS} seconds.", self.subject.away))
        return list(self.lines)


def examine(subjects: Sequence[Subject[Any]], *, seconds: float = TOTAL_SECONDS) -> list[Line]:
    """Return the findings of all checks, in order."""
    examinations = [Examination(subject) for subject in subjects]
    # Daemons: one that hangs, in a name server for example, must not keep the process from its end.
    threads = [threading.Thread(target=each.run, name=each.subject.name, daemon=True) for each in examinations]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
    return [line for each in examinations for line in each.conclude()]


def worst(lines: Sequence[Line]) -> Level:
    found = {line.finding.level for line in lines}
    return next((level for level in (Level.FAILURE, Level.WARNING) if level in found), Level.OK)
