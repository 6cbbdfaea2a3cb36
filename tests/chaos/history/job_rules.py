"""Rules about responses, jobs, and quotas."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tests.chaos.history.history import Found, History, code_of, rule, uncertain
from tests.chaos.history.record import ENDED, Line

PRESIGN_SECONDS = 50  # for which a redirect must be valid
# In addition to 0, 503 as problem+json, and 401, which `access_lasts_until_it_ends` checks.
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
STREAM_STATUSES = (0, 200, 204, 401, 429, 503)  # 204: the client has all events of an ended job
COUNTED = ("pending", "running", "retrying", "done", "failed", "cancelled")


@rule
def responses_are_documented(history: History) -> Found:
    for line in history.responses:
        status, expected = line["status"], EXPECTED.get(line["op"], {200: None})
        codes = expected.get(status, set())
        if status in (0, 401) or (status == 503 and line["problem"]):
            continue
        if status not in expected or (codes is not None and code_of(line) not in codes):
            yield f"{line['op']} returned {status} {code_of(line)}", [line]
    for line in history.of("stream"):
        if line["status"] not in STREAM_STATUSES or (line["status"] == 204 and line["after"] is None):
            yield f"a stream returned {line['status']}", [line]
    for line in history.of("object"):
        late = line["ended"] - line["began"] > PRESIGN_SECONDS
        if line["status"] in (404, 416) or (line["status"] == 403 and not late):
            yield f"a request for a file of a valid receipt returned {line['status']}", [line]


@rule
def the_audit_is_complete(history: History) -> Found:
    """Check that each request of the final audit succeeded: other rules compare nothing without its responses."""
    final = [line for line in history.lines if line.get("final")]
    for line in final:
        is_superseded = line["kind"] == "response" and code_of(line) == "file_superseded"
        if line["kind"] in ("response", "object") and line["status"] not in (200, 302) and not is_superseded:
            yield f"a request of the final audit returned {line['status']}", [line]
    downloaded = {line["job"] for line in final if line["kind"] == "object" and not line["item"]}
    for job, body in history.jobs.items():
        if body["status"] == "success" and job not in downloaded:
            yield f"job {job} was not downloaded in the final audit", history.about(job)
    audited = {line["user"] for line in history.op("limits", status=200) if line.get("final")}
    for user in {line["user"] for line in history.op("hook")} - audited:
        yield f"the final audit did not read the limits of {user}", []


@rule
def counters_add_up(history: History) -> Found:
    for line, body in bodies(history):
        progress = body["progress"]
        parts = [progress[name] for name in COUNTED]
        if sum(parts) != progress["total"] or min(parts) < 0:
            yield "the counts of the progress do not add up to its total", [line]
        if progress["reused"] + progress["degraded"] > progress["done"]:
            yield "more chunks are reused or degraded than done", [line]


def bodies(history: History) -> Iterator[tuple[Line, Line]]:
    """Yield each representation of a job with its line, from responses, lists, streams, and webhooks."""
    for line in history.responses:
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
    """Return the observed ends of each job, and its observed states.

    Failures in events and webhooks are not ends: a failed job may have been retried since.
    """
    ends: dict[str, list[Seen]] = defaultdict(list)
    states: dict[str, list[Seen]] = defaultdict(list)
    for line, body in bodies(history):
        seen = (line["began"], line["ended"], body["status"], line)
        if line["kind"] != "webhook":
            states[body["jobId"]].append(seen)
        if body["status"] in ENDED and (line["kind"] == "response" or body["status"] != "failed"):
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
def a_key_creates_one_job(history: History) -> Found:
    responses: dict[Any, list[Line]] = defaultdict(list)
    for line in history.op("submit", status=202):
        responses[line["user"], line["key"]].append(line)
    for its in responses.values():
        if len({line["sha256"] for line in its}) > 1:
            yield "a repeated request got another response", its
    jobs = Counter(its[0]["body"]["jobId"] for its in responses.values())
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
    possible = [line for line in history.op("replay") if uncertain(line)]
    if len(unknown) > len(possible):
        yield f"jobs without a request: {unknown}", possible
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
            requested = slices_of_request(line["request"])
            if [[chunk["key"], chunk["effectiveDate"]] for chunk in chunks] != requested:
                yield f"job {job} has other chunks than its request", [line]


def slices_of_request(request: Line) -> list[list[str]]:
    filters = request["filters"]
    first, last = (datetime.fromisoformat(filters[name]).toordinal() for name in ("dateFrom", "dateTo"))
    days = [datetime.fromordinal(day).date().isoformat() for day in range(first, last + 1)]
    return [[key, day] for key in filters["keys"] for day in days]


@rule
def quotas_match_the_charges(history: History) -> Found:
    """Check that each chunk was charged once, and refunded if it was reused, failed, or cancelled.

    A reused chunk whose file was missing is exported again without a charge.
    """
    redone = Counter[str]()
    for line in history.of("log"):
        redone[history.owners[line["job"]]] += line["redone"]
    for line in history.op("limits", status=200):
        if not line.get("final"):
            continue
        jobs = [history.jobs[job]["progress"] for job, owner in history.owners.items() if owner == line["user"]]
        maximum = sum(each["done"] - each["reused"] for each in jobs)
        used, charged = line["body"]["chunksPerDay"]["used"], line["body"]["jobsPerDay"]["used"]
        if not maximum - redone[line["user"]] <= used <= maximum:
            yield f"{line['user']} was charged {used} chunks, and has {maximum}", [line]
        if charged != len(jobs):
            yield f"{line['user']} was charged {charged} jobs, and has {len(jobs)}", [line]
