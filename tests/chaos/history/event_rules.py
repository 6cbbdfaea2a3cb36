"""Rules about event streams and webhooks."""

import json
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise

from standardwebhooks import Webhook

from tests.chaos.history.history import Found, History, rule
from tests.chaos.history.record import ENDED, Line

LEGAL = {
    "pending": {"running", "cancelled"},
    "running": {"retrying", "success", "failed", "cancelled"},
    "retrying": {"running", "cancelled"},
    "failed": {"running"},
    "success": set(),
    "cancelled": set(),
}
TYPES = {"success": "export.succeeded", "failed": "export.failed", "cancelled": "export.cancelled"}


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
            yield "event ids do not increase", [line]
        seen = [data["status"] for _, _, name, data in line["events"] if name in ("snapshot", "status")]
        for before, after in pairwise(seen):
            if after not in LEGAL[before] and not (before == after and starts):
                yield f"a stream changed from {before} to {after}", [line]
        if line["how"] == "ended" and line["status"] == 200 and not (seen and seen[-1] in ENDED):
            yield from check_early_end(history, line)
    for streams_of_job in streams.values():
        yield from contradictions(streams_of_job)


def check_early_end(history: History, line: Line) -> Found:
    revoked = history.revoked.get(line["token"])
    if not (revoked and revoked["began"] < line["ended"]) and not history.may_be_absent(
        line["user"], line["began"], line["ended"]
    ):
        yield "a stream ended before its job", [line]


def contradictions(streams: list[Line]) -> Found:
    """Check that the streams of a job have the same events in the ranges of IDs that they share."""
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
            yield f"a stream lacks the events {missing}", [line, *(each for each in streams if each is not line)]


def fact_of(name: str, data: Line) -> tuple[str, ...] | None:
    if name == "status":
        return (name, data["status"])
    return (name, data["key"], data["effectiveDate"]) if name == "chunk" else None


@rule
def webhooks_are_signed_ordered_and_unique(history: History) -> Found:
    hooks = {line["body"]["id"]: line for line in history.op("hook", status=201)}
    arrived: dict[tuple[str, str], dict[str, Line]] = defaultdict(dict)
    for line in history.of("webhook"):
        first = arrived[line["endpoint"], line["body"]["data"]["jobId"]].setdefault(line["id"], line)
        if first["text"] != line["text"]:
            yield "a delivery was repeated with another body", [first, line]
        yield from check_delivery(history, line, hooks[line["endpoint"]])
    for job, body in history.jobs.items():
        for endpoint, hook in hooks.items():
            if hook["user"] == history.owners.get(job):
                its = list(arrived[endpoint, job].values())
                yield from check_deliveries(history, job, body, its)


def check_delivery(history: History, line: Line, hook: Line) -> Found:
    """Check one request to a receiver."""
    data = line["body"]["data"]
    if not is_signed(line, hook["body"]["secret"]):
        yield "the signature is not valid", [line]
    if line["body"]["type"] != TYPES.get(data["status"]):
        yield f"{line['body']['type']} describes a job that is {data['status']}", [line]
    if history.owners.get(data["jobId"]) != hook["user"]:
        yield "a webhook got an event of another user", [line]
    if json.loads(line["text"]) != line["body"]:
        yield "the recorded body of a webhook differs from its text", [line]


def is_signed(line: Line, secret: str) -> bool:
    at = datetime.fromtimestamp(int(line["timestamp"]), UTC)
    return Webhook(secret).sign(line["id"], at, line["text"]) in line["signature"].split()


def check_deliveries(history: History, job: str, body: Line, its: list[Line]) -> Found:
    """Check the deliveries of a job to one endpoint, in the order of their first arrival."""
    certain, possible = history.retries(job)
    if history.may_be_absent(history.owners[job], accepted_at(history, job), float("inf")):
        certain = -1  # a deactivated user gets no webhooks
    if not 1 + certain <= len(its) <= 1 + possible:
        yield (
            f"job {job} ended 1 + {certain} to {possible} times, and was delivered {len(its)} times",
            history.about(job) + its,
        )
    times = [datetime.fromisoformat(line["body"]["timestamp"]) for line in its]
    if any(later <= earlier for earlier, later in pairwise(times)):
        yield f"the events of job {job} arrived out of order", its
    types = [line["body"]["type"] for line in its]
    if any(each != "export.failed" for each in types[:-1]) or (
        certain >= 0 and types and types[-1] != TYPES.get(body["status"])
    ):
        yield f"job {job} is {body['status']} after the events {types}", history.about(job) + its


def accepted_at(history: History, job: str) -> float:
    line = history.submissions.get(job)
    return float(line["first"]) if line else 0.0
