"""Commands that show exports, chunks, events, and datasets."""

from collections.abc import Iterator
from typing import Annotated

import typer

from sluice.cli.exports.finish import SHOWN_FAILURES
from sluice.cli.exports.shared import Job, app, reason, title
from sluice.cli.lists import Limit, print_list
from sluice.cli.progress import counted
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment, number, size
from sluice.models import Chunk, Dataset, Export

STATES = ("done", "running", "retrying", "pending", "failed", "cancelled")


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
    rows = session.client.exports.list(
        status=status, dataset=dataset, search=name, date_from=first, date_to=last, limit=limit
    )
    columns = ("JOB", "DATASET", "STATUS", "CHUNKS", "ROWS", "SIZE", "CREATED", "NAME")
    print_list(session, columns, rows, summary)


def summary(export: Export) -> tuple[str, ...]:
    counts = export.progress
    return (
        export.id, export.dataset, export.status, f"{number(counts.done)}/{number(counts.total)}", number(counts.rows),
        size(counts.bytes), moment(export.created_at), export.name or "",
    )  # fmt: skip


@command(app, "show")
def show(session: Session, job: Job) -> None:
    """Show an export: its progress, receipt and failed chunks."""
    export = session.client.exports.get(job)
    if session.terminal.as_json:
        session.terminal.json(export.raw)
        return
    session.terminal.pairs(facts(export))
    if export.progress.failed:
        show_failures(session, export)


def facts(export: Export) -> Iterator[tuple[str, str]]:
    chunks, receipt = export.progress, export.receipt
    yield "Export", export.id
    yield "Name", export.name or ""
    form = f"as {export.format}, compression {export.compression}, delivery {export.delivery}"
    yield "Dataset", f"{export.dataset}, {form}"
    yield "Status", export.status + (f": {title(export.error)}" if export.error else "")
    yield "Chunks", f"{number(chunks.total)}: {', '.join(counted(chunks, STATES))}"
    yield "Of these", ", ".join(counted(chunks, ("reused", "degraded")))
    yield "Content", f"{number(chunks.rows)} rows, {size(chunks.bytes)}"
    yield "Created", moment(export.created_at)
    yield "Finished", moment(export.finished_at)
    if receipt:
        yield "File", f"{receipt.file_name}, {size(receipt.size_bytes)}"
        yield "Checksum", receipt.checksum
        yield "Kept until", moment(receipt.delivery_expires_at)
        yield "Link", f"{receipt.state}, until {moment(receipt.expires_at)}"


def show_failures(session: Session, export: Export) -> None:
    session.terminal.put("")
    for each in session.client.exports.chunks(export, status="failed", limit=SHOWN_FAILURES):
        session.terminal.put(f"{each.key} {each.effective_date}: {reason(each.error)}")
        session.terminal.put(*(f"  {line}" for line in (each.source_message or "").splitlines()))
    if export.progress.failed > SHOWN_FAILURES:
        session.terminal.put(f"List all with: sluice export chunks {export.id} --status failed")


@command(app, "chunks")
def chunks(
    session: Session,
    job: Job,
    *,
    status: Annotated[str | None, typer.Option(help="pending, running, retrying, done, failed or cancelled")] = None,
    limit: Limit = 1_000_000,
) -> None:
    """List an export's chunks in the order of the request. --json prints one line each."""
    results = session.client.exports.chunks(job, status=status, limit=limit)
    print_list(session, ("KEY", "DATE", "STATUS", "ATTEMPTS", "SOURCE", "ROWS", "SIZE", "ERROR"), results, chunk_row)


def chunk_row(chunk: Chunk) -> tuple[str, ...]:
    return (
        chunk.key, str(chunk.effective_date), chunk.status, number(chunk.attempts), chunk.source or "",
        number(chunk.rows), size(chunk.bytes), title(chunk.error),
    )  # fmt: skip


@command(app, "events")
def events(
    session: Session,
    job: Job,
    *,
    after: Annotated[str, typer.Option(metavar="ID", help="Resume after this event.")] = "",
) -> None:
    """Print an export's events as JSON lines until it ends. For programs; to follow progress, use `wait`."""
    for event in session.client.exports.events(job, after=after):
        session.terminal.line({"id": event.number, "event": event.kind, "data": event.data})


@command(app, "datasets")
def datasets(session: Session) -> None:
    """List the datasets."""
    if session.terminal.as_json:
        session.terminal.json(session.client.get("/exports/datasets"))
        return
    rows = ((each.name, ", ".join(each.formats), keys_of(each)) for each in session.client.exports.datasets())
    session.terminal.table(("DATASET", "FORMATS", "KEYS"), rows)


def keys_of(dataset: Dataset) -> str:
    return dataset.key_pattern if dataset.kind in {None, "function"} else ""


@command(app, "dataset")
def dataset(session: Session, name: Annotated[str, typer.Argument(metavar="DATASET")]) -> None:
    """Show a dataset with its columns."""
    found = session.client.exports.dataset(name)
    if session.terminal.as_json:
        session.terminal.json(found.raw)
        return
    session.terminal.pairs(
        [
            ("Dataset", f"{found.name}, schema version {found.schema_version}"),
            ("Formats", ", ".join(found.formats)),
            ("Keys", keys_of(found)),
            ("Your keys", " or ".join(found.granted_key_patterns or ())),
        ]
    )
    session.terminal.put("")
    session.terminal.table(("COLUMN", "TYPE"), ((each.name, each.type) for each in found.columns))
