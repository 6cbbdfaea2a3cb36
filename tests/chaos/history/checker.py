"""The checker of a soak: verifies the guarantees of the API against the record alone.

Each rule yields violations, each with the lines that contradict it. A happened before B only if A ended before B began.
A request without an answer, or with status 5xx, may have been carried out.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from standardwebhooks import Webhook

from tests.chaos.history.clients import ENDED, link_in, path_of
from tests.chaos.history.record import Line
from tests.chaos.history.source import clean_file

REVOKED_SECONDS = 10  # until a revoked token must be refused, and its streams must have ended
SLACK_SECONDS = 3  # of the machine that runs the tests
FAULT_SECONDS = 5  # until processes are connected again after a fault
MOST_LINES = 12  # of an excerpt
PRESIGN_SECONDS = 50  # within which a redirect must be usable
LEGAL = {
    "pending": {"running", "cancelled"},
    "running": {"retrying", "success", "failed", "cancelled"},
    "retrying": {"running", "cancelled"},
    "failed": {"running"},
    "success": set(),
    "cancelled": set(),
}
# Besides 0, 5xx as problem+json, and 401 where access had ended.
EXPECTED: dict[str, dict[int, set[str] | None]] = {
    "hook": {201: None},
    "submit": {202: None, 409: {"idempotency_in_flight"}},
    "cancel": {200: None, 409: {"already_ended"}},
    "retry": {202: None, 409: {"not_failed"}},
    "replay": {202: None},
    "link": {200: None, 409: {"not_ready"}},
    "download": {302: None, 403: {"link_used", "link_revoked", "link_mismatch"}},
    "file": {302: None, 410: {"file_superseded"}},
}
TYPES = {"success": "export.succeeded", "failed": "export.failed", "cancelled": "export.cancelled"}
COUNTED = ("pending", "running", "retrying", "done", "failed", "cancelled")


@dataclass(frozen=True)
class Violation:
    rule: str
    text: str
    lines: list[Line] = field(default_factory=list)

    def __str__(self) -> str:
        left_out = len(self.lines) - MOST_LINES
        lines = [*self.lines[:2], *self.lines[-MOST_LINES + 2 :]] if left_out > 0 else self.lines
        note = f" (without {left_out} lines after the second)" if left_out > 0 else ""
        return "\n".join([f"{self.rule}: {self.text}{note}", *(f"    {short(line)}" for line in lines)])


Found = Iterator[tuple[str, list[Line]]]
RULES: list[Callable[["History"], Found]] = []


def rule(function: Callable[["History"], Found]) -> Callable[["History"], Found]:
    RULES.append(function)
    return function


def check(lines: list[Line]) -> list[Violation]:
    history = History(lines)
    return [Violation(each.__name__, text, its) for each in RULES for text, its in each(history)]


SHOWN = "user token op method path what endpoint id status how after item schema dataset version slices".split()


def short(line: Line) -> str:
    """Return one line of an excerpt."""
    facts = [f"{name}={line[name]}" for name in SHOWN if line.get(name) is not None]
    body = line.get("body") if isinstance(line.get("body"), dict) else {}
    body = {**body, **body.get("data", {})}
    facts += [f"body.{name}={body[name]}" for name in ("type", "status", "code", "jobId") if body.get(name)]
    facts += [f"{name}={value}" for name, value in body.get("progress", {}).items() if value]
    facts += [f"{number}:{name}:{data.get('status', '')}" for _, number, name, data in line.get("events", ())]
    return f"{line['began']:.3f} to {line['ended']:.3f} {line['kind']} {' '.join(facts)}"[:400]


class Absence(NamedTuple):
    """A time in which a user was deactivated: the beginnings and ends of both actions."""

    began: float
    since: float
    until: float
    over: float


class History:
    """The lines of a record, sorted by their beginnings, and what the rules look up in them."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.answers = [line for line in lines if line["kind"] == "answer"]
        self.actions = [line for line in lines if line["kind"] == "action"]

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]

    def op(self, *ops: str, status: int | None = None) -> list[Line]:
        return [line for line in self.answers if line["op"] in ops and status in (None, line["status"])]

    def about(self, job: str | None) -> list[Line]:
        """Return the lines about a job, for an excerpt."""
        return [line for line in self.lines if line.get("job") == job]

    @cached_property
    def jobs(self) -> dict[str, Line]:
        """The final answer about each job."""
        return {line["job"]: line["body"] for line in self.op("poll", status=200) if line.get("final")}

    @cached_property
    def submissions(self) -> dict[str, Line]:
        """The answer that accepted each job, with `first`: when its key was first sent, and the request."""
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
        """Return how many retries of a job were accepted, and how many may have been."""
        its = [line for line in self.op("retry") if line["job"] == job]
        sure = sum(line["status"] == 202 for line in its)
        return sure, sure + sum(uncertain(line) for line in its)

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
        return any(away.began < ended and began < away.over for away in self.absences[user])

    def is_absent(self, user: str, began: float, ended: float) -> bool:
        return any(away.since < began and ended < away.until for away in self.absences[user])

    @cached_property
    def revoked(self) -> dict[str, Line]:
        return {line["token"]: line for line in self.actions if line["what"] == "revoke"}

    def disturbed(self, since: float, until: float) -> float:
        """Return how many seconds of a time faults may have delayed."""
        total, covered = 0.0, since
        for line in self.of("fault"):
            if line["what"].startswith(("a wire", "all sessions", "database")):
                end = min(line["ended"] + FAULT_SECONDS, until)
                total += max(0.0, end - max(line["began"], covered))
                covered = max(covered, end)
        return total


def uncertain(line: Line) -> bool:
    status: int = line["status"]
    return status == 0 or status >= 500


def code_of(line: Line) -> str | None:
    return line["body"].get("code") if isinstance(line["body"], dict) else None


# ---- Answers --------------------------------------------------------------------------------------------------------


@rule
def answers_are_documented(history: History) -> Found:
    for line in history.answers:
        status, expected = line["status"], EXPECTED.get(line["op"], {200: None})
        codes = expected.get(status, set())
        if status in (0, 401) or (status == 503 and line["problem"]):
            continue
        if status not in expected or (codes is not None and code_of(line) not in codes):
            yield f"{line['op']} was answered with {status} {code_of(line)}", [line]
    for line in history.of("object"):
        late = line["ended"] - line["began"] > PRESIGN_SECONDS
        if line["status"] in (404, 416) or (line["status"] == 403 and not late):
            yield f"a file of a valid receipt was answered with {line['status']}", [line]


@rule
def counters_add_up(history: History) -> Found:
    for line, body in bodies(history):
        progress = body["progress"]
        parts = [progress[name] for name in COUNTED]
        if sum(parts) != progress["total"] or min(parts) < 0:
            yield "the parts of the progress are not its total", [line]
        if progress["reused"] + progress["degraded"] > progress["done"]:
            yield "more chunks were reused or degraded than done", [line]


def bodies(history: History) -> Iterator[tuple[Line, Line]]:
    """Yield every representation of a job, with its line: in answers, lists, streams, and webhooks."""
    for line in history.answers:
        body = line["body"] if line["status"] in (200, 202) and isinstance(line["body"], dict) else {}
        yield from ((line, each) for each in [body, *body.get("results", [])] if "progress" in each)
    for line in history.of("stream"):
        for at, _, name, data in line["events"]:
            if name == "snapshot":
                yield {**line, "ended": at}, data
    for line in history.of("webhook"):
        yield line, line["body"]["data"]


Seen = tuple[float, float, str, Line]  # from, to, status, and the line that shows it


@rule
def ends_are_final(history: History) -> Found:
    ends, states = observations(history)
    for job, its in ends.items():
        for began, ended, status, line in its:
            for later_began, later_ended, later, other in states[job]:
                if later_began > ended and later != status and not retried(history, job, status, began, later_ended):
                    yield f"job {job} was {status}, and {later} later", [line, other]


def observations(history: History) -> tuple[dict[str, list[Seen]], dict[str, list[Seen]]]:
    """Return the ends of each job that were seen, and its states at a time. Events and webhooks may be old: a failure
    may have been retried since.
    """
    ends: dict[str, list[Seen]] = defaultdict(list)
    states: dict[str, list[Seen]] = defaultdict(list)
    for line, body in bodies(history):
        seen = (line["began"], line["ended"], body["status"], line)
        if line["kind"] != "webhook":
            states[body["jobId"]].append(seen)
        if body["status"] in ENDED and (line["kind"] == "answer" or body["status"] != "failed"):
            ends[body["jobId"]].append(seen)
    for line in history.of("stream"):
        for at, _, name, data in line["events"]:
            if name == "status" and data["status"] in ("success", "cancelled"):
                ends[line["job"]].append((line["began"], at, data["status"], line))
    return ends, states


def retried(history: History, job: str, status: str, since: float, until: float) -> bool:
    return status == "failed" and any(
        line["ended"] > since and line["began"] < until and (line["status"] == 202 or uncertain(line))
        for line in history.op("retry") if line["job"] == job
    )  # fmt: skip


@rule
def a_key_makes_one_job(history: History) -> Found:
    answers: dict[Any, list[Line]] = defaultdict(list)
    for line in history.op("submit", status=202):
        answers[line["user"], line["key"]].append(line)
    for its in answers.values():
        if len({line["sha256"] for line in its}) > 1:
            yield "a repeated request got another answer", its
    jobs = Counter(its[0]["body"]["jobId"] for its in answers.values())
    for job, keys in jobs.items():
        if keys > 1:
            yield f"{keys} keys got the same job {job}", history.about(job)


@rule
def accepted_jobs_exist_and_end(history: History) -> Found:
    for line in history.actions:
        if line["what"] == "never accepted":
            yield "a request was never accepted", [each for each in history.op("submit") if each["key"] == line["key"]]
    for job, line in history.submissions.items():
        if history.owners.get(job) != line["user"]:
            yield f"accepted job {job} is not in its user's list", [line]
    unknown = set(history.owners) - set(history.submissions)
    perhaps = [line for line in history.op("replay") if uncertain(line)]
    if len(unknown) > len(perhaps):
        yield f"jobs without a request: {unknown}", perhaps
    for job in history.owners:
        if history.jobs.get(job, {}).get("status") not in ENDED:
            yield f"job {job} has not ended", history.about(job)


@rule
def jobs_are_the_sums_of_their_chunks(history: History) -> Found:
    for job, body in history.jobs.items():
        chunks, progress = history.chunks[job], body["progress"]
        done = [chunk for chunk in chunks if chunk["status"] == "done"]
        sums = {
            **{name: sum(chunk["status"] == name for chunk in chunks) for name in COUNTED},
            "total": len(chunks),
            "reused": sum(chunk["source"] == "reused" for chunk in done),
            "degraded": sum(chunk["source"] == "snapshot" for chunk in done),
            "rows": sum(chunk["rows"] for chunk in done),
            "bytes": sum(chunk["bytes"] for chunk in done),
        }
        if wrong := {name: (progress[name], value) for name, value in sums.items() if progress[name] != value}:
            yield f"job {job} and its chunks differ: {wrong}", history.about(job)
        if (line := history.submissions.get(job)) and line["request"]:
            asked = slices_asked(line["request"])
            if [[chunk["key"], chunk["effectiveDate"]] for chunk in chunks] != asked:
                yield f"job {job} has other chunks than its request", [line]


def slices_asked(request: Line) -> list[list[str]]:
    filters = request["filters"]
    first, last = (datetime.fromisoformat(filters[name]).toordinal() for name in ("dateFrom", "dateTo"))
    days = [datetime.fromordinal(day).date().isoformat() for day in range(first, last + 1)]
    return [[key, day] for key in filters["keys"] for day in days]


# ---- Files ----------------------------------------------------------------------------------------------------------


@rule
def downloads_match_their_receipts(history: History) -> Found:
    for line in downloads(history):
        job = history.jobs.get(line["job"])
        if line["item"] or not job or not job["receipt"]:
            continue
        receipt = job["receipt"]
        rows = sum(each["rows"] for each in entries_of(line)) if "manifest" in line else rows_in(line)
        found = (f"sha256:{line['sha256']}", line["size"], rows)
        if found != (receipt["checksum"], receipt["sizeBytes"], receipt["rows"]):
            yield f"the download of job {line['job']} is not what its receipt describes", [line]


@rule
def files_match_their_entries(history: History) -> Found:
    entries: dict[Any, Line] = {}
    for line in downloads(history):
        for entry in entries_of(line):
            known = entries.setdefault((line["job"], entry["key"], entry["effectiveDate"]), entry)
            if known != entry:
                yield f"two downloads of job {line['job']} describe a file differently", history.about(line["job"])
        if "files" in line:
            yield from zip_differences(line)
    for line in downloads(history):
        entry = entries.get((line["job"], *(line["item"] or ())), {})
        yield from differences(line, entry, line) if entry else ()


@rule
def a_file_stays_the_same(history: History) -> Found:
    first: dict[Any, Line] = {}
    for line in downloads(history):
        known = first.setdefault((line["job"], *(line["item"] or ())), line)
        if known["sha256"] != line["sha256"]:
            yield f"two downloads of a file of job {line['job']} differ", [known, line]


def zip_differences(line: Line) -> Found:
    listed = [entry["fileName"] for entry in entries_of(line)]
    if sorted([*listed, "manifest.json"]) != sorted(line["names"]):
        yield f"the zip of job {line['job']} has other files than its manifest", [line]
        return
    for entry in entries_of(line):
        yield from differences(line, entry, line["files"][entry["fileName"]])


def differences(line: Line, entry: Line, facts: Line) -> Found:
    found = (facts["sha256"], facts["size"], rows_in(facts))
    if found != (entry["sha256"], entry["bytes"], entry["rows"]):
        yield f"a file of job {line['job']} is not what its entry describes: {entry}", [line]


def downloads(history: History) -> list[Line]:
    return [line for line in history.of("object") if line["status"] == 200]


def entries_of(line: Line) -> list[Line]:
    entries: list[Line] = line.get("manifest", {}).get("files", [])
    return entries


def rows_in(facts: Line) -> int:
    files = facts.get("files", {"": facts}).values()
    return sum(rows for each in files for *_, rows in each["slices"])


def files(history: History) -> Iterator[tuple[Line, Line, list[list[str]]]]:
    """Yield every file with rows that was downloaded: its line, its facts, and the slices that it must have."""
    for line in downloads(history):
        if "files" in line:
            for entry in entries_of(line):
                if facts := line["files"].get(entry["fileName"]):
                    yield line, facts, [[entry["key"], entry["effectiveDate"]]]
        elif line["item"]:
            yield line, line, [line["item"]]
        elif "slices" in line:
            yield line, line, [[each["key"], each["effectiveDate"]] for each in history.chunks[line["job"]]]


@rule
def a_file_has_the_slices_of_its_request_in_one_version_each(history: History) -> Found:
    for line, facts, asked in files(history):
        versioned = history.jobs.get(line["job"], {}).get("dataset") in ("clean", "rude")
        expected = asked if versioned else [[key, None] for key, _ in asked]
        found = [[key, day] for key, day, *_ in facts["slices"]]
        if found != (expected if versioned else merged(expected)):
            yield f"a file of job {line['job']} has other slices than {expected}", [line]
        if versioned and any(len(versions) != 1 for _, _, versions, _ in facts["slices"]):
            yield f"a file of job {line['job']} mixes versions of its rows", [line]


def merged(slices: list[list[Any]]) -> list[list[Any]]:
    """Return the slices without repetitions of the one before: rows of `things` do not show their date."""
    return slices[:1] + [each for before, each in pairwise(slices) if each != before]


@rule
def a_job_has_the_schema_of_its_time(history: History) -> Found:
    registered = [line for line in history.actions if line["what"] == "register"]
    for line, facts, _ in files(history):
        job = history.jobs.get(line["job"], {})
        schemas = [int(name.removeprefix("schema_")) for name in facts["columns"] if name.startswith("schema_")]
        if job.get("dataset") not in ("clean", "rude"):
            continue
        its = [each for each in registered if each["dataset"] == job["dataset"]]
        if accepted := history.submissions.get(line["job"]):
            least = max((each["schema"] for each in its if each["ended"] < accepted["first"]), default=0)
            most = max((each["schema"] for each in its if each["began"] < accepted["ended"]), default=0)
            if len(schemas) != 1 or not least <= schemas[0] <= most:
                yield f"a file of job {line['job']} has the schema {schemas}, not {least} to {most}", [accepted, line]
        told = line.get("manifest", {}).get("schemaVersion", schemas[0])
        if [told] != schemas:
            yield f"a file of job {line['job']} has the schema {schemas}, its manifest {told}", [line]


@rule
def fresh_files_are_fresh(history: History) -> Found:
    """Files of a job that reuses none were read after its request, except older ones after a failure of the source."""
    ticks = history.of("tick")
    for line, facts, _ in files(history):
        accepted = history.submissions.get(line["job"])
        if not accepted or not accepted["request"] or accepted["request"]["reuse"] != "never":
            continue
        snapshots = [(c["key"], c["effectiveDate"]) for c in history.chunks[line["job"]] if c["source"] == "snapshot"]
        least = max((tick["version"] for tick in ticks if tick["ended"] < accepted["first"]), default=0)
        for key, day, versions, _ in facts["slices"]:
            if versions and versions[0] < least and (key, day) not in snapshots:
                yield (
                    f"job {line['job']} got version {versions[0]} although {least} was older than it",
                    [accepted, line],
                )


@rule
def clean_files_are_exact(history: History) -> Found:
    for line, facts, _ in files(history):
        if history.jobs.get(line["job"], {}).get("dataset") != "clean":
            continue
        schema = next((int(name.rpartition("_")[2]) for name in facts["columns"] if name.startswith("schema_")), 0)
        slices = [(key, day, versions[0]) for key, day, versions, _ in facts["slices"]]
        try:
            expected = hashlib.sha256(clean_file(slices, schema=schema, form=facts["format"])).hexdigest()
        except ValueError:  # not a date
            expected = ""
        if facts["plain"] != expected:
            yield f"a file of job {line['job']} is not what the function returns", [line]
    for job, chunks in history.chunks.items():
        for chunk in chunks:
            if (history.jobs[job]["dataset"] != "rude" or "SQLSTATE 42" in str(chunk["error"])) and (
                (chunk["error"] or {}).get("code") == "EXPORT_SOURCE_ERROR"
            ):
                yield f"a function failed that does not fail: {chunk}", history.about(job)


# ---- Events ---------------------------------------------------------------------------------------------------------


@rule
def streams_are_complete_and_in_order(history: History) -> Found:
    streams: dict[str, list[Line]] = defaultdict(list)
    for line in history.of("stream"):
        streams[line["job"]].append(line)
        numbers = [line["after"]] * (line["after"] is not None) + [number for _, number, _, _ in line["events"]]
        starts = [number for _, number, name, _ in line["events"] if name == "snapshot"]
        if starts and line["after"] is not None:
            numbers = numbers[1:]  # the stream could not resume
        if any(later <= number for number, later in pairwise(numbers)):
            yield "event ids do not grow", [line]
        seen = [data["status"] for _, _, name, data in line["events"] if name in ("snapshot", "status")]
        for before, after in pairwise(seen):
            if after not in LEGAL[before] and not (before == after and starts):
                yield f"a stream went from {before} to {after}", [line]
        if line["how"] == "ended" and line["status"] == 200 and not (seen and seen[-1] in ENDED):
            yield from ends_early(history, line)
    for its in streams.values():
        yield from contradictions(its)


def ends_early(history: History, line: Line) -> Found:
    gone = history.revoked.get(line["token"])
    if not (gone and gone["began"] < line["ended"]) and not history.may_be_absent(
        line["user"], line["began"], line["ended"]
    ):
        yield "a stream ended before its job", [line]


def contradictions(streams: list[Line]) -> Found:
    """Two streams of a job have the same events between the ids that both cover."""
    known: dict[int, tuple[str, ...]] = {}
    spans = []
    for line in streams:
        its = {number: fact for _, number, name, data in line["events"] if (fact := fact_of(name, data))}
        numbers = [number for _, number, _, _ in line["events"]]
        if numbers:
            starts = [number for _, number, name, _ in line["events"] if name == "snapshot"]
            spans.append((starts[0] if starts else line["after"] or 0, numbers[-1], its, line))
        for number, fact in its.items():
            if known.setdefault(number, fact) != fact:
                yield f"event {number} is {known[number]} and {fact}", streams
    for first, last, its, line in spans:
        if missing := [number for number in known if first < number <= last and number not in its]:
            yield f"a stream misses the events {missing}", [line, *(each for each in streams if each is not line)]


def fact_of(name: str, data: Line) -> tuple[str, ...] | None:
    if name == "status":
        return (name, data["status"])
    return (name, data["key"], data["effectiveDate"]) if name == "chunk" else None


@rule
def webhooks_are_signed_ordered_and_single(history: History) -> Found:
    hooks = {line["body"]["id"]: line for line in history.op("hook", status=201)}
    arrived: dict[tuple[str, str], dict[str, Line]] = defaultdict(dict)
    for line in history.of("webhook"):
        first = arrived[line["endpoint"], line["body"]["data"]["jobId"]].setdefault(line["id"], line)
        if first["text"] != line["text"]:
            yield "a delivery was repeated with another body", [first, line]
        yield from faults_of(history, line, hooks[line["endpoint"]])
    for job, body in history.jobs.items():
        for endpoint, hook in hooks.items():
            if hook["user"] == history.owners.get(job):
                its = list(arrived[endpoint, job].values())
                yield from deliveries_of(history, job, body, its)


def faults_of(history: History, line: Line, hook: Line) -> Found:
    """Check one request to a receiver."""
    data = line["body"]["data"]
    if not is_signed(line, hook["body"]["secret"]):
        yield "the signature is not valid", [line]
    if line["body"]["type"] != TYPES.get(data["status"]):
        yield f"{line['body']['type']} describes a job that is {data['status']}", [line]
    if history.owners.get(data["jobId"]) != hook["user"]:
        yield "a webhook got an event of another user", [line]
    if json.loads(line["text"]) != line["body"]:
        yield "the record of a webhook is not its text", [line]


def is_signed(line: Line, secret: str) -> bool:
    at = datetime.fromtimestamp(int(line["timestamp"]), UTC)
    return Webhook(secret).sign(line["id"], at, line["text"]) in line["signature"].split()


def deliveries_of(history: History, job: str, body: Line, its: list[Line]) -> Found:
    """Check the deliveries of a job to one endpoint, in the order of their first arrival."""
    sure, perhaps = history.retries(job)
    if history.may_be_absent(history.owners[job], accepted_at(history, job), float("inf")):
        sure = -1  # a deactivated user gets no webhooks
    if not 1 + sure <= len(its) <= 1 + perhaps:
        yield (
            f"job {job} ended 1 + {sure} to {perhaps} times, and was delivered {len(its)} times",
            history.about(job) + its,
        )
    times = [datetime.fromisoformat(line["body"]["timestamp"]) for line in its]
    if any(later <= earlier for earlier, later in pairwise(times)):
        yield f"the events of job {job} arrived out of order", its
    types = [line["body"]["type"] for line in its]
    if any(each != "export.failed" for each in types[:-1]) or (
        sure >= 0 and types and types[-1] != TYPES.get(body["status"])
    ):
        yield f"job {job} is {body['status']} after the events {types}", history.about(job) + its


def accepted_at(history: History, job: str) -> float:
    line = history.submissions.get(job)
    return float(line["first"]) if line else 0.0


# ---- Access ---------------------------------------------------------------------------------------------------------


@rule
def a_link_works_once(history: History) -> Found:
    used: dict[str, list[Line]] = defaultdict(list)
    for line in history.op("download"):
        used[link_in(line["path"])].append(line)
    for its in used.values():
        redeemed = [line for line in its if line["status"] == 302]
        if len(redeemed) > 1:
            yield "a link was redeemed more than once", its
        for line in its:
            if redeemed and line["began"] > redeemed[0]["ended"] and not is_refused_as_used(history, line):
                yield "a used link was not refused as used", [*redeemed, line]


def is_refused_as_used(history: History, line: Line) -> bool:
    absent = history.may_be_absent(line["user"], line["began"], line["ended"])
    allowed = {"link_used", "link_mismatch"} | ({"link_revoked"} if absent else set())
    return uncertain(line) or code_of(line) in allowed


@rule
def a_link_works_for_its_client_until_the_next_one(history: History) -> Found:
    first_seen: dict[str, Line] = {}
    for line in history.answers:
        for link in links_in(line):
            first_seen.setdefault(link, line)
    minted = [line for line in history.op("link", status=200) if links_in(line)]
    for line in history.op("download", status=302):
        link = link_in(line["path"])
        if line["agent"] != f"soak/{line['user']}":
            yield "a link worked for another program", [first_seen[link], line]
        for mint in minted:
            is_newer = mint["job"] == line["job"] and first_seen[link]["ended"] < mint["began"]
            if is_newer and mint["ended"] < line["began"] and link not in links_in(mint):
                yield "a link worked after a newer one", [first_seen[link], mint, line]


def links_in(line: Line) -> list[str]:
    body = line["body"] if isinstance(line["body"], dict) else {}
    jobs = [body, *(body.get("results") or [])]
    urls = [body.get("signedUrl"), *((each.get("receipt") or {}).get("signedUrl") for each in jobs)]
    return [link_in(path_of(url)) for url in urls if url]


@rule
def access_ends(history: History) -> Found:
    for line in history.answers:
        began, ended, status = line["began"], line["ended"], line["status"]
        is_refused = status in (0, 401, 503)
        revoked = history.revoked.get(line.get("token", ""))
        if line["op"] == "download":
            if status == 302 and history.is_absent(line["user"], began, ended):
                yield "a link of a deactivated user worked", [line]
        elif revoked and began > revoked["ended"] + REVOKED_SECONDS and not is_refused:
            yield "a revoked token was accepted", [revoked, line]
        elif history.is_absent(line["user"], began, ended) and not is_refused:
            yield "a deactivated user was accepted", [line]
    for line in history.of("stream"):
        yield from outlived(history, line)


@rule
def access_lasts_until_it_ends(history: History) -> Found:
    for line in history.answers:
        revoked = history.revoked.get(line.get("token", ""))
        is_revoked = revoked and revoked["began"] < line["ended"]
        may_be_absent = history.may_be_absent(line["user"], line["began"], line["ended"])
        if line["status"] == 401 and not is_revoked and not may_be_absent:
            yield "a valid token was refused", [line]


def outlived(history: History, line: Line) -> Found:
    ends = [history.revoked[line["token"]]["ended"]] if line["token"] in history.revoked else []
    ends += [
        away.since
        for away in history.absences[line["user"]]
        if line["began"] < away.since and line["ended"] < away.until
    ]
    for end in ends:
        most = max(end, line["began"]) + REVOKED_SECONDS + SLACK_SECONDS + history.disturbed(end, line["ended"])
        if line["status"] == 200 and line["ended"] > most:
            yield "a stream outlived its access", [line]


# ---- Quotas ---------------------------------------------------------------------------------------------------------


@rule
def quotas_are_what_was_charged(history: History) -> Found:
    """A chunk costs one, and is refunded if it was reused, failed, or cancelled.

    A reused chunk whose file was gone is exported again at no charge.
    """
    redone = Counter[str]()
    for line in history.of("log"):
        redone[history.owners[line["job"]]] += line["redone"]
    for line in history.op("limits", status=200):
        if not line.get("final"):
            continue
        jobs = [history.jobs[job]["progress"] for job, owner in history.owners.items() if owner == line["user"]]
        most = sum(each["done"] - each["reused"] for each in jobs)
        used, charged = line["body"]["chunksPerDay"]["used"], line["body"]["jobsPerDay"]["used"]
        if not most - redone[line["user"]] <= used <= most:
            yield f"{line['user']} was charged {used} chunks, and has {most}", [line]
        if charged != len(jobs):
            yield f"{line['user']} was charged {charged} jobs, and has {len(jobs)}", [line]


def answers_by_kind(lines: Iterable[Line]) -> Counter[str]:
    """Return how many answers there were of each operation and status."""
    return Counter(f"{line['op']} {line['status'] or 'none'}" for line in lines if line["kind"] == "answer") + Counter(
        f"{line['kind']} {line.get('how') or line.get('what') or line.get('status') or ''}".strip()
        for line in lines if line["kind"] in ("stream", "object", "webhook", "action")
    )  # fmt: skip
