"""`sluice document batch …`: documents that are submitted together."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sluice.api import given
from sluice.cli.documents.shared import Direct, FilesOrNone, Rule, Timeout, Wait, app
from sluice.cli.errors import CliError, Exit, located, option, options, unreadable, unwritable
from sluice.cli.lists import Limit, print_list
from sluice.cli.progress import ProgressLine, Screen, counts_of, of_batch
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment, number
from sluice.cli.waiting import resumable
from sluice.documents import batch_path_of
from sluice.models import AcceptedBatch, Batch

batches = typer.Typer(help="Submit many documents, and download their results.", no_args_is_help=True)
app.add_typer(batches, name="batch")

Which = Annotated[int, typer.Argument(metavar="BATCH", min=1, help="The batch id that `submit` printed.")]


# ---- Submit ---------------------------------------------------------------------------------------------------------
@command(batches, "submit")
def submit(
    session: Session,
    files: FilesOrNone = None,
    *,
    prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="Submit the files of your inbox whose paths begin with this.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="ProgressLine in lists.")] = "",
    rule: Rule = None,
    direct: Direct = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Requests with the same key create one batch. Default: a random key."),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Submit documents, or one ZIP file with documents, as a batch, and print its id."""
    if bool(files) == (prefix is not None):
        raise CliError("Give either files or --prefix.", code=Exit.USAGE)
    common: dict[str, Any] = {"name": name, "rule": rule, "idempotency_key": idempotency_key}
    with located(options(rule_id="--rule", name="--name", prefix="--prefix")):
        if prefix is not None:
            accepted = session.client.batches.submit_inbox(prefix, **common)
        else:
            accepted = send(session, files or [], direct=direct, **common)
    for each in accepted.refused:
        session.terminal.info(f"Not accepted: {each.filename} [{each.code}]")
    if not session.terminal.as_json:
        session.terminal.put(str(accepted.id))
    elif not wait:
        session.terminal.json(accepted.raw)
    if wait:
        finish(session, accepted.id, timeout=timeout)
    else:
        session.terminal.info(f"Wait for it with: sluice document batch wait {accepted.id}")


def send(session: Session, files: list[Path], **common: Any) -> AcceptedBatch:
    with Screen(session.terminal, "Uploading") as screen, unreadable(files[0]):
        return session.client.batches.submit(
            files, progress=lambda done, total: screen.show(of_upload(done, total)), **common
        )


def of_upload(done: int, total: int) -> ProgressLine:
    return ProgressLine("", 100 * done / total, f"{number(done)} of {number(total)} files")


# ---- Look -----------------------------------------------------------------------------------------------------------
@command(batches, "list")
def list_batches(session: Session, *, limit: Limit = 50) -> None:
    """List your batches, newest first. --json prints one line each."""
    rows = session.client.batches.list(limit=limit)
    print_list(session, ("BATCH", "NAME", "STATUS", "COMPLETED", "FAILED", "CREATED"), rows, summary)


def summary(batch: Batch) -> tuple[str, ...]:
    done = f"{number(batch.completed)} of {number(batch.total)}"
    return (str(batch.id), batch.name, batch.status, done, number(batch.failed), moment(batch.created_at))


@command(batches, "show")
def show(session: Session, batch: Which) -> None:
    """Show a batch: its progress, and the files that were not accepted."""
    found = session.client.batches.get(batch)
    if session.terminal.as_json:
        session.terminal.json(found.raw)
    else:
        session.terminal.pairs(facts(found))


def facts(batch: Batch) -> Iterator[tuple[str, str]]:
    yield "Batch", f"{batch.id}" + (f", {batch.name}" if batch.name else "")
    yield "Status", batch.status
    yield "Documents", counts_of(batch)
    yield "Rule", f"{batch.rule_id}, version {batch.rule_version}"
    yield "Not accepted", "; ".join(f"{each.filename} [{each.code}]" for each in batch.refused)
    yield "Created", moment(batch.created_at)
    yield "Updated", moment(batch.updated_at)


@command(batches, "wait")
def wait_for(session: Session, batch: Which, *, timeout: Timeout = None) -> None:
    """Wait for a batch and show its progress. Ctrl-C does not cancel it."""
    finish(session, batch, timeout=timeout)


def finish(session: Session, batch_id: int, *, timeout: float | None) -> None:
    """Wait until the batch has ended. Raises CliError unless all documents were completed."""
    again = f"sluice document batch wait {batch_id}"
    with resumable(again, timeout=timeout), Screen(session.terminal, f"Batch {batch_id}") as screen:
        batch = session.client.batches.wait(
            batch_id, timeout=timeout, progress=lambda found: screen.show(of_batch(found))
        )
    if session.terminal.as_json:
        session.terminal.json(batch.raw)
    if batch.status == "completed":
        session.terminal.info(
            f"Completed. Download the results with: sluice document batch results {batch_id} --format csv"
        )
    elif batch.status == "cancelled":
        raise CliError(f"The batch was cancelled: {counts_of(batch)}.", code=Exit.CANCELLED)
    else:
        advice = f"Retry the failed documents with: sluice document batch retry {batch_id} --wait"
        raise CliError(f"Not all documents were completed: {counts_of(batch)}.", advice, code=Exit.FAILED)


# ---- Change ---------------------------------------------------------------------------------------------------------
@command(batches, "cancel")
def cancel(
    session: Session,
    batch: Which,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also cancel documents that are being processed.")] = False,
) -> None:
    """Cancel the documents of a batch that have not been started."""
    cancelled = session.client.batches.cancel(batch, force=force)
    session.terminal.info(f"Cancelled: {counts_of(cancelled)}.")
    if session.terminal.as_json:
        session.terminal.json(cancelled.raw)


@command(batches, "retry")
def retry(session: Session, batch: Which, *, wait: Wait = False, timeout: Timeout = None) -> None:
    """Retry the failed documents of a batch, each from the stage at which it failed."""
    restarted = session.client.batches.retry(batch)
    if session.terminal.as_json and not wait:
        session.terminal.json(restarted.raw)
    session.terminal.info("Restarted.")
    if wait:
        finish(session, batch, timeout=timeout)


# ---- Results --------------------------------------------------------------------------------------------------------
@command(batches, "results")
def results(
    session: Session,
    batch: Which,
    *,
    form: Annotated[str, typer.Option("--format", metavar="csv|jsonl|parquet", help="Format of the file.")] = "csv",
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="POINTER", help="One row for each item of a list, such as /items."),
    ] = None,
    escape: Annotated[bool, typer.Option("--escape-formulas", help="Escape formulas, for spreadsheets.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="A file, or - for stdout.")] = "-",
) -> None:
    """Download the results of a batch in one file, by default to stdout."""
    if output == "-" and form == "parquet" and sys.stdout.isatty():
        raise CliError("A Parquet file is not written to a terminal. Use --output FILE.", code=Exit.USAGE)
    policy: Any = "escape" if escape else None
    with unwritable(output), located(option):
        if output == "-":
            query = given(format=form, rows=rows, formula_policy=policy)
            for block in session.client.stream(f"{batch_path_of(batch)}/results", query):
                sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
        else:
            session.client.batches.download(batch, output, format=cast("Any", form), rows=rows, formula_policy=policy)
            session.terminal.info(f"Written to {output}.")
