"""`python manage.py doctor [--json] [--web URL]`: diagnose the installation."""

import json
import logging
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand

from config.ops.doctor import database, examination, peers, redis, source, storage, system_checks, workers
from config.ops.doctor.findings import CheckResult, Level, Subject

# The exit statuses that monitoring systems expect.
STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}


class Command(BaseCommand):
    help = (
        "Checks settings, servers, permissions, clocks, bucket rules, timeouts, folders and workers, "
        "and recommends a fix for each finding. Changes nothing. "
        "Exit status: 0 if everything is fine, 1 for warnings, 2 for failures."
    )
    requires_system_checks = ()  # the doctor reports them itself; their errors must not keep it from running

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="is_json", help="print one JSON document")
        parser.add_argument("--web", metavar="URL", help="also check that the web process at this URL is ready")

    def handle(self, *, is_json: bool, web: str | None, **_kwargs: Any) -> None:
        subjects: list[Subject[Any]] = [
            system_checks.SUBJECT, database.SUBJECT, source.SUBJECT, *redis.subjects(), storage.SUBJECT,
            workers.SUBJECT, peers.SUBJECT, *([peers.web(web)] if web else []),
        ]  # fmt: skip
        with logging_disabled():
            results = examination.examine(subjects)
        self.stdout.write(as_json(results) if is_json else as_text(results))
        self.stdout.flush()
        sys.exit(STATUS[examination.worst(results)])


@contextmanager
def logging_disabled() -> Iterator[None]:
    """Suppress the drivers' log lines about unreachable servers, because the findings report them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def as_json(results: list[CheckResult]) -> str:
    document = {
        "status": examination.worst(results),
        "findings": [as_object(result) for result in results],
    }
    return json.dumps(document, indent=1)


def as_object(result: CheckResult) -> dict[str, str]:
    """Return a finding as JSON. The field of the remedy is `do`."""
    finding = result.finding
    return {"check": result.check, "level": finding.level, "state": finding.state, "do": finding.remedy}


def as_text(results: list[CheckResult]) -> str:
    width = max(len(result.check) for result in results)
    lines = []
    for result in results:
        finding = result.finding
        lines.append(f"{finding.level:8}{result.check:{width}}  {finding.state}")
        if finding.remedy:
            lines.append(f"{'':8}{'':{width}}  → {finding.remedy}")
    counts = [f"{sum(result.finding.level is level for result in results)} {level}" for level in Level]
    return "\n".join([*lines, "", ", ".join(counts) + "."])
