"""Index of a record for the rules, and violations of the rules.

A happened before B only if A ended before B began. A request without a response, or with status 5xx, may have been
executed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from tests.chaos.history.record import Line

FAULT_SECONDS = 5  # until processes are connected again after a fault
MAX_LINES = 12  # of an excerpt
SHOWN = (
    "user", "token", "op", "method", "path", "what", "endpoint", "id", "status", "how", "after", "item", "schema",
    "dataset", "version", "slices",
)  # fmt: skip


@dataclass(frozen=True)
class Violation:
    rule: str
    text: str
    lines: list[Line] = field(default_factory=list)

    def __str__(self) -> str:
        omitted = len(self.lines) - MAX_LINES
        lines = [*self.lines[:2], *self.lines[-MAX_LINES + 2 :]] if omitted > 0 else self.lines
        note = f" ({omitted} lines after the second are omitted)" if omitted > 0 else ""
        return "\n".join([f"{self.rule}: {self.text}{note}", *(f"    {short(line)}" for line in lines)])


def short(line: Line) -> str:
    """Return one line of an excerpt."""
    facts = [f"{name}={line[name]}" for name in SHOWN if line.get(name) is not None]
    body: Line = line["body"] if isinstance(line.get("body"), dict) else {}
    body = {**body, **body.get("data", {})}
    facts += [f"body.{name}={body[name]}" for name in ("type", "status", "code", "jobId") if body.get(name)]
    facts += [f"{name}={value}" for name, value in body.get("progress", {}).items() if value]
    facts += [f"{number}:{name}:{data.get('status', '')}" for _, number, name, data in line.get("events", ())]
    return f"{line['began']:.3f} to {line['ended']:.3f} {line['kind']} {' '.join(facts)}"[:400]


class Absence(NamedTuple):
    """A period in which a user was deactivated: the start and end of both actions."""

    deactivation_began: float
    deactivated_at: float
    activation_began: float
    activated_at: float


class History:
    """The lines of a record, sorted by their start, with indexes for the rules."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.responses = [line for line in lines if line["kind"] == "response"]
        self.actions = [line for line in lines if line["kind"] == "action"]

    # Indexes, because rules look up kinds and operations once per line of the record.
    @cached_property
    def kinds(self) -> dict[str, list[Line]]:
        return grouped(self.lines, "kind")

    @cached_property
    def operations(self) -> dict[str, list[Line]]:
        return grouped(self.responses, "op")

    def of(self, kind: str) -> list[Line]:
        return self.kinds.get(kind, [])

    def op(self, *ops: str, status: int | None = None) -> list[Line]:
        """Return the responses to these operations in the order of the requests."""
        found = [self.operations.get(op, []) for op in ops]
        lines = found[0] if len(found) == 1 else merge(*found, key=itemgetter("began"))
        return [line for line in lines if status in (None, line["status"])]

    def about(self, job: str | None) -> list[Line]:
        """Return the lines about a job, for an excerpt."""
        return [line for line in self.lines if line.get("job") == job]

    @cached_property
    def jobs(self) -> dict[str, Line]:
        """The final state of each job."""
        return {line["job"]: line["body"] for line in self.op("poll", status=200) if line.get("final")}

    @cached_property
    def submissions(self) -> dict[str, Line]:
        """The response that accepted each job, with its request, and `first`: when its key was first sent."""
        first: dict[Any, float] = {}
        found: dict[str, Line] = {}
        request: Line | None
        for line in self.op("submit"):
            first.setdefault((line["user"], line["key"]), line["began"])
            if line["status"] == 202:
                found.setdefault(line["body"]["jobId"], {**line, "first": first[line["user"], line["key"]]})
        for line in self.op("replay", status=202):
            request = found[line["job"]]["request"] if line["job"] in found else None
            found[line["body"]["jobId"]] = {**line, "first": line["began"], "request": request}
        return found

    @cached_property
    def chunks(self) -> dict[str, list[Line]]:
        """The chunks of each job at the end, in the order of the request."""
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.op("chunks", status=200):
            if line.get("final"):
                found[line["job"]] += line["body"]["results"]
        return found

    @cached_property
    def owners(self) -> dict[str, str]:
        return {each["jobId"]: line["user"] for line in self.op("list", status=200) for each in line["body"]["results"]}

    def retries(self, job: str) -> tuple[int, int]:
        """Return the minimum and the maximum number of accepted retries of a job."""
        its = [line for line in self.op("retry") if line["job"] == job]
        certain = sum(line["status"] == 202 for line in its)
        return certain, certain + sum(uncertain(line) for line in its)

    @cached_property
    def absences(self) -> dict[str, list[Absence]]:
        found: dict[str, list[Absence]] = defaultdict(list)
        for line in self.actions:
            if line["what"] == "deactivate":
                back = next(
                    each for each in self.actions
                    if each["what"] == "activate" and each["user"] == line["user"] and each["began"] >= line["ended"]
                )  # fmt: skip
                found[line["user"]].append(Absence(line["began"], line["ended"], back["began"], back["ended"]))
        return found

    def may_be_absent(self, user: str, began: float, ended: float) -> bool:
        return any(
            absence.deactivation_began < ended and began < absence.activated_at for absence in self.absences[user]
        )

    def is_absent(self, user: str, began: float, ended: float) -> bool:
        return any(
            absence.deactivated_at < began and ended < absence.activation_began for absence in self.absences[user]
        )

    @cached_property
    def revoked(self) -> dict[str, Line]:
        return {line["token"]: line for line in self.actions if line["what"] == "revoke"}

    def disturbed(self, since: float, until: float) -> float:
        """Return the seconds of a period in which faults may have caused delays."""
        total, covered = 0.0, since
        for line in self.of("fault"):
            if line["what"].startswith(("a connection", "connections", "all sessions", "database")):
                end = min(line["ended"] + FAULT_SECONDS, until)
                total += max(0.0, end - max(line["began"], covered))
                covered = max(covered, end)
        return total


def grouped(lines: list[Line], name: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line[name]].append(line)
    return dict(found)


def uncertain(line: Line) -> bool:
    status: int = line["status"]
    return status == 0 or status >= 500


def code_of(line: Line) -> str | None:
    return line["body"].get("code") if isinstance(line["body"], dict) else None


# ---- Rules ----------------------------------------------------------------------------------------------------------

Found = Iterator[tuple[str, list[Line]]]
RULES: list[Callable[[History], Found]] = []


def rule(function: Callable[[History], Found]) -> Callable[[History], Found]:
    RULES.append(function)
    return function
