"""Commands that show exports, chunks, events, and datasets."""

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sluice.events import StreamLost, listen
from sluice.exports.shared import ENDED, Job, app, given, path_of, reason, title
from sluice.lists import MOST, Limit, print_list
from sluice.session import Session, command
from sluice.terminal import moment, number, size
from sluice.waiting import AWAY_SECONDS

SHOWN_FAILURES = 10


@command(app, "list")
def list_exports(
    session: Session,
    *,
    status: Annotated[str | None, typer.Option(help="pending, running, retrying, success, failed or cancelled")] = None,
    dataset: Annotated[str | None, typer.Option()] = None,
    name: Annotated[
        str | None, typer.Option(help="Part of the name, or 8 or more digits that the job id begins with.")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="First day, in UTC.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last day, in UTC.")] = None,
    limit: Limit = 50,
) -> None:
    """List your exports, newest first. --json prints one line each."""
    filters = given(status=status, dataset=dataset, q=name, to=last, **{"from": first} if first else {})
    rows = session.api.pages("/exports", {**filters, "limit": min(limit, MOST)}, limit=limit)
    columns = ("JOB", "DATASET", "STATUS", "CHUNKS", "ROWS", "SIZE", "CREATED", "NAME")
    print_list(session, columns, rows, summary)


def summary(job: dict[str, Any]) -> tuple[str, ...]:
    response = job["progress"]
    chunks = f"{number(response['done'])}/{number(response['total'])}"
    return (
        job["jobId"],
        job["dataset"],
        job["status"],
        chunks,
        number(response["rows"]),
        size(response["bytes"]),
        moment(job["createdAt"]),
        job.get("name") or "",  # servers of earlier releases do not have it
    )


@command(app, "show")
def show(session: Session, job: Job) -> None:
    """Show an export: its progress, receipt and failed chunks."""
    response = session.api.get(path_of(job))
    if session.terminal.as_json:
        session.terminal.json(response)
        return
    session.terminal.pairs(facts(response))
    if response["progress"]["failed"]:
        show_failures(session, response)


def facts(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    chunks, receipt = job["progress"], job["receipt"]
    states = ("done", "running", "retrying", "pending", "failed", "cancelled")
    counts = ", ".join(f"{number(chunks[name])} {name}" for name in states if chunks[name])
    yield "Export", job["jobId"]
    yield "Name", job.get("name") or ""
    yield (
        "Dataset",
        f"{job['dataset']}, as {job['format']}, compression {job['compression']}, delivery {job['delivery']}",
    )
    yield "Status", job["status"] + (f": {title(job['error'])}" if job["error"] else "")
    yield "Chunks", f"{number(chunks['total'])}: {counts}"
    yield "Of these", ", ".join(f"{number(chunks[name])} {name}" for name in ("reused", "degraded") if chunks[name])
    yield "Content", f"{number(chunks['rows'])} rows, {size(chunks['bytes'])}"
    yield "Created", moment(job["createdAt"])
    yield "Finished", moment(job["finishedAt"])
    if receipt:
        yield "File", f"{receipt['fileName']}, {size(receipt['sizeBytes'])}"
        yield "Checksum", receipt["checksum"]
        yield "Kept until", moment(receipt["deliveryExpiresAt"])
        yield "Link", f"{receipt['state']}, until {moment(receipt['expiresAt'])}"


def show_failures(session: Session, job: dict[str, Any]) -> None:
    failed = session.api.pages(f"{path_of(job['jobId'])}/chunks", {"status": "failed"}, limit=SHOWN_FAILURES)
    session.terminal.put("")
    for each in failed:
        session.terminal.put(f"{each['key']} {each['effectiveDate']}: {reason(each['error'])}")
        session.terminal.put(*(f"  {line}" for line in (each.get("sourceMessage") or "").splitlines()))
    if job["progress"]["failed"] > SHOWN_FAILURES:
        session.terminal.put(f"List all with: sluice export chunks {job['jobId']} --status failed")


@command(app, "chunks")
def chunks(
    session: Session,
    job: Job,
    *,
    status: Annotated[str | None, typer.Option(help="pending, running, retrying, done, failed or cancelled")] = None,
    limit: Limit = 1_000_000,
) -> None:
    """List an export's chunks in the order of the request. --json prints one line each."""
    results = session.api.pages(f"{path_of(job)}/chunks", given(status=status, limit=min(limit, MOST)), limit=limit)
    print_list(session, ("KEY", "DATE", "STATUS", "ATTEMPTS", "SOURCE", "ROWS", "SIZE", "ERROR"), results, chunk_row)


def chunk_row(chunk: dict[str, Any]) -> tuple[str, ...]:
    return (
        chunk["key"], chunk["effectiveDate"], chunk["status"], number(chunk["attempts"]), chunk["source"] or "",
        number(chunk["rows"]), size(chunk["bytes"]), title(chunk["error"]),
    )  # fmt: skip


@command(app, "events")
def events(
    session: Session,
    job: Job,
    *,
    after: Annotated[str, typer.Option(metavar="ID", help="Resume after this event.")] = "",
) -> None:
    """Print an export's events as JSON lines until it ends. For programs; to follow progress, use `wait`."""
    session.api.get(path_of(job))
    while True:
        try:
            for event in listen(session.api, path_of(job), after=after):
                if event:
                    after = event.number
                    session.terminal.line({"id": event.number, "event": event.kind, "data": event.data})
            pause = 1.0
        except StreamLost as lost:
            pause = max(lost.wait, 1.0)
        if session.api.get(path_of(job), away=AWAY_SECONDS)["status"] in ENDED:
            return
        session.api.pause(pause)


@command(app, "datasets")
def datasets(session: Session) -> None:
    """List the datasets."""
    response = session.api.get("/exports/datasets")
    if session.terminal.as_json:
        session.terminal.json(response)
        return
    rows = ((each["name"], ", ".join(each["formats"]), keys_of(each)) for each in response["results"])
    session.terminal.table(("DATASET", "FORMATS", "KEYS"), rows)


def keys_of(each: dict[str, Any]) -> str:
    return str(each["keyPattern"]) if each.get("kind", "function") == "function" else ""


@command(app, "dataset")
def dataset(session: Session, name: Annotated[str, typer.Argument(metavar="DATASET")]) -> None:
    """Show a dataset with its columns."""
    response = session.api.get(f"/exports/datasets/{quote(name, safe='')}")
    if session.terminal.as_json:
        session.terminal.json(response)
        return
    session.terminal.pairs(
        [
            ("Dataset", f"{response['name']}, schema version {response['schemaVersion']}"),
            ("Formats", ", ".join(response["formats"])),
            ("Keys", keys_of(response)),
            ("Your keys", " or ".join(response.get("grantedKeyPatterns") or ())),
        ]
    )
    session.terminal.put("")
    session.terminal.table(("COLUMN", "TYPE"), ((each["name"], each["type"]) for each in response["columns"]))
