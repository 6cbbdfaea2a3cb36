"""`python manage.py doctor [--json] [--web URL]`: looks at everything, and says what to do about what is wrong."""

import json
import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from config.ops.doctor import (
    database,
    environment,
    examination,
    folders,
    peers,
    redis,
    source,
    storage,
    timeouts,
    workers,
)
from config.ops.doctor.findings import Level, Line, Subject

# As monitoring systems read them.
STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}


class Command(BaseCommand):
    help = (
        "Looks at settings, servers, permissions, clocks, bucket rules, timeouts and workers, "
        "and says what to do about what is wrong. "
        "Changes nothing. Exit status: 0 all is well, 1 there are warnings, 2 there are failures."
    )
    requires_system_checks = ()  # they are among its own, and must not keep it from the others

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="is_json", help="print one JSON document")
        parser.add_argument("--web", metavar="URL", help="also ask this web process whether it is ready")

    def handle(self, *, is_json: bool, web: str | None, **_later: Any) -> None:
        subjects: list[Subject[Any]] = [
            environment.SUBJECT, timeouts.SUBJECT, database.SUBJECT, source.SUBJECT, *redis.subjects(), storage.SUBJECT,
            folders.SUBJECT, workers.SUBJECT, peers.SUBJECT, *([peers.web(web)] if web else []),
        ]  # fmt: skip
        lines = in_silence(lambda: examination.examine(subjects))
        self.stdout.write(as_json(lines) if is_json else as_text(lines))
        self.stdout.flush()
        sys.exit(STATUS[examination.worst(lines)])


def in_silence(look: Callable[[], list[Line]]) -> list[Line]:
    """What drivers log of a server that is away is in the findings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return look()
    finally:
        logging.disable(before)


def as_json(lines: list[Line]) -> str:
    document = {
        "status": examination.worst(lines),
        "findings": [{"check": line.check, **asdict(line.finding)} for line in lines],
    }
    return json.dumps(document, indent=1)


def as_text(lines: list[Line]) -> str:
    width = max(len(line.check) for line in lines)
    shown = []
    for line in lines:
        found = line.finding
        shown.append(f"{found.level:8}{line.check:{width}}  {found.says}")
        if found.do:
            shown.append(f"{'':8}{'':{width}}  → {found.do}")
    counts = [f"{sum(line.finding.level is level for line in lines)} {level}" for level in Level]
    return "\n".join([*shown, "", ", ".join(counts) + "."])
