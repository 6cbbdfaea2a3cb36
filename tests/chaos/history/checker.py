"""The checker of a soak: verifies the guarantees of the API against the record alone.

Each rule yields violations, each with the lines that contradict it. A record can be checked again:
`python -m tests.chaos.history.checker .local/soak.jsonl`.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.history import access_rules, event_rules, file_rules, job_rules  # noqa: F401 - they register themselves
from tests.chaos.history.history import RULES, History, Violation
from tests.chaos.history.record import Line, read


def check(lines: list[Line]) -> list[Violation]:
    history = History(lines)
    return [Violation(each.__name__, text, its) for each in RULES for text, its in each(history)]


def answers_by_kind(lines: Iterable[Line]) -> Counter[str]:
    """Return how many answers there were of each operation and status."""
    return Counter(f"{line['op']} {line['status'] or 'none'}" for line in lines if line["kind"] == "answer") + Counter(
        f"{line['kind']} {line.get('how') or line.get('what') or line.get('status') or ''}".strip()
        for line in lines if line["kind"] in ("stream", "object", "webhook", "action")
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit("\n".join(map(str, check(read(Path(sys.argv[1]))))) or None)
