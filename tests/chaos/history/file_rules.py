"""Rules about the content of downloads."""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.chaos.history.history import Found, History, rule
from tests.chaos.history.record import Line
from tests.chaos.history.source import clean_file


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
            yield f"the download of job {line['job']} differs from its receipt", [line]


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


@rule
def files_of_manifests_are_not_superseded(history: History) -> Found:
    """Check that a manifest's files can always be downloaded: the delivery has copies.

    For other deliveries, a later job may have replaced a file.
    """
    for line in history.op("file", status=410):
        if history.jobs.get(line["job"], {}).get("delivery") == "manifest":
            yield f"a file of the manifest of job {line['job']} was superseded", [line]


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
        yield f"a file of job {line['job']} differs from its entry: {entry}", [line]


def downloads(history: History) -> list[Line]:
    return [line for line in history.of("object") if line["status"] == 200]


def entries_of(line: Line) -> list[Line]:
    entries: list[Line] = line.get("manifest", {}).get("files", [])
    return entries


def rows_in(facts: Line) -> int:
    files = facts.get("files", {"": facts}).values()
    return sum(rows for each in files for *_, rows in each["slices"])


def files(history: History) -> Iterator[tuple[Line, Line, list[list[str]]]]:
    """Yield each downloaded file with rows: its line, its facts, and the expected slices."""
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
        expected = asked if versioned else merged([[key, None] for key, _ in asked])
        found = [[key, day] for key, day, *_ in facts["slices"]]
        if found != expected:
            yield f"a file of job {line['job']} has other slices than {expected}", [line]
        if versioned and any(len(versions) != 1 for _, _, versions, _ in facts["slices"]):
            yield f"a file of job {line['job']} mixes versions of its rows", [line]


def merged(slices: list[list[Any]]) -> list[list[Any]]:
    """Return the slices without consecutive repetitions, because rows of `things` do not contain their date."""
    return slices[:1] + [each for before, each in pairwise(slices) if each != before]


@rule
def a_job_has_the_schema_of_its_time(history: History) -> Found:
    registered = [line for line in history.actions if line["what"] == "register"]
    declared = {line["job"]: line["manifest"]["schemaVersion"] for line in downloads(history) if "manifest" in line}
    for line, facts, _ in files(history):
        job = history.jobs.get(line["job"], {})
        schemas = [int(name.removeprefix("schema_")) for name in facts["columns"] if name.startswith("schema_")]
        if job.get("dataset") not in ("clean", "rude"):
            continue
        its = [each for each in registered if each["dataset"] == job["dataset"]]
        if accepted := history.submissions.get(line["job"]):
            minimum = max((each["schema"] for each in its if each["ended"] < accepted["first"]), default=0)
            maximum = max((each["schema"] for each in its if each["began"] < accepted["ended"]), default=0)
            if len(schemas) != 1 or not minimum <= schemas[0] <= maximum:
                yield (
                    f"a file of job {line['job']} has the schema {schemas}, not {minimum} to {maximum}",
                    [accepted, line],
                )
        if (its_version := declared.get(line["job"])) is not None and [its_version] != schemas:
            yield f"a file of job {line['job']} has the schema {schemas}, its manifest {its_version}", [line]


@rule
def fresh_files_are_fresh(history: History) -> Found:
    """Check that files of a job with `reuse: never` were read after its request, except snapshots."""
    ticks = history.of("tick")
    for line, facts, _ in files(history):
        accepted = history.submissions.get(line["job"])
        if not accepted or not accepted["request"] or accepted["request"]["reuse"] != "never":
            continue
        snapshots = [(c["key"], c["effectiveDate"]) for c in history.chunks[line["job"]] if c["source"] == "snapshot"]
        minimum = max((tick["version"] for tick in ticks if tick["ended"] < accepted["first"]), default=0)
        for key, day, versions, _ in facts["slices"]:
            if versions and versions[0] < minimum and (key, day) not in snapshots:
                yield (
                    f"job {line['job']} got version {versions[0]} although {minimum} was older than it",
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
            yield f"a file of job {line['job']} differs from the function's rows", [line]
    for job, chunks in history.chunks.items():
        for chunk in chunks:
            if (history.jobs[job]["dataset"] != "rude" or "SQLSTATE 42" in str(chunk["error"])) and (
                (chunk["error"] or {}).get("code") == "EXPORT_SOURCE_ERROR"
            ):
                yield f"a function failed unexpectedly: {chunk}", history.about(job)
