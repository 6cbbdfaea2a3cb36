"""Parallel examination of subjects in bounded time. An error in one check does not affect the others."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from config.ops.doctor.findings import CheckResult, Finding, Level, Subject, failure
from config.platform.http import health
from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT

log = structlog.get_logger(__name__)

TOTAL_SECONDS = 20


@dataclass
class Examination:
    """One subject's results so far, and the check that is running."""

    subject: Subject[Any]
    results: list[CheckResult] = field(default_factory=list)
    current: str = "reachable"
    is_finished: bool = False

    def run(self) -> None:
        try:
            with self.subject.open() as opened:
                for check in self.subject.checks:
                    self.current = check.__name__.removeprefix("check_")
                    self.run_check(check, opened)
        except Exception as error:  # noqa: BLE001  any error of a driver means that the subject is unreachable
            CAUGHT.labels("doctor").inc()
            log.warning("doctor_check_failed", subject=self.subject.name, error=logs.describe(error))
            self.add(failure(f"It {health.reason(error)}.", self.subject.remedy_if_unreachable))
        finally:
            self.is_finished = True

    def run_check(self, check: Callable[[Any], Finding | Iterator[Finding]], opened: Any) -> None:
        try:
            found = check(opened)
            for finding in [found] if isinstance(found, Finding) else found:
                self.add(finding)
        except Exception as error:  # an error of one check must not hide the findings of the others
            CAUGHT.labels("doctor").inc()
            kind = logs.describe(error)
            log.exception("doctor_check_failed", subject=self.subject.name, check=self.current, error=kind)
            self.add(failure(f"The check failed: {kind}.", "See doctor_check_failed in the output on stderr."))

    def add(self, finding: Finding) -> None:
        self.results.append(CheckResult(check=f"{self.subject.name}.{self.current}", finding=finding))

    def finish(self) -> list[CheckResult]:
        """Return the results; if the subject exceeded the time limit, also a failure of the running check."""
        if not self.is_finished:
            self.add(
                failure(
                    f"The checks did not finish within {TOTAL_SECONDS} seconds. This one was running.",
                    self.subject.remedy_if_unreachable,
                )
            )
        return list(self.results)


def examine(subjects: Sequence[Subject[Any]], *, seconds: float = TOTAL_SECONDS) -> list[CheckResult]:
    """Return the results of all checks, in order."""
    examinations = [Examination(subject) for subject in subjects]
    # Daemon threads: one that hangs, in name resolution for example, must not keep the process from exiting.
    threads = [threading.Thread(target=each.run, name=each.subject.name, daemon=True) for each in examinations]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    return [result for each in examinations for result in each.finish()]


def worst(results: Sequence[CheckResult]) -> Level:
    found = {result.finding.level for result in results}
    return next((level for level in (Level.FAILURE, Level.WARNING) if level in found), Level.OK)
