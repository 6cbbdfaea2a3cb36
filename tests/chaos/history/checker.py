"""Verification of the API's guarantees from the record of a soak test alone.

Each rule yields a description of each violation, with the lines that prove it. A record can be checked again:
`python -m tests.chaos.history.checker .local/soak.jsonl`.
"""

import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.chaos.history import access_rules, event_rules, file_rules, job_rules  # noqa: F401 - the rules are registered on import
from tests.chaos.history.history import RULES, History, Violation
from tests.chaos.history.record import Line, read


def check(lines: list[Line]) -> list[Violation]:
    history = History(lines)
    return [Violation(rule.__name__, text, evidence) for rule in RULES for text, evidence in rule(history)]


# Responses, streams, files, webhooks, and actions without which a soak has not used the whole API.
REQUIRED = {
    "hook 201", "submit 202", "poll 200", "cancel 200", "retry 202", "replay 202", "link 200", "download 302",
    "download 403", "file 302", "limits 200", "limits 401", "list 200", "chunks 200", "stream ended", "stream left",
    "object 200", "webhook 204", "action register", "action revoke", "action activate",
}  # fmt: skip


def unused(lines: Collection[Line]) -> set[str]:
    """Return the required kinds that a record lacks. Without this check, an empty record would pass."""
    return REQUIRED - count_by_kind(lines).keys()


def count_by_kind(lines: Collection[Line]) -> Counter[str]:
    """Count responses by operation and status, and streams, objects, webhooks, and actions by kind and outcome."""
    responses = [f"{line['op']} {line['status'] or 'none'}" for line in lines if line["kind"] == "response"]
    others = [
        f"{line['kind']} {line.get('how') or line.get('what') or line.get('status') or ''}".strip()
        for line in lines
        if line["kind"] in ("stream", "object", "webhook", "action")
    ]
    return Counter(responses + others)


if __name__ == "__main__":
    sys.exit("\n".join(map(str, check(read(Path(sys.argv[1]))))) or None)
