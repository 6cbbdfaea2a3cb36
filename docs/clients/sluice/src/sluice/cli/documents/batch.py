"""`sluice document batch …`: documents that are submitted together."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from sluice.api import checked_json
from sluice.cli.documents.shared import ROOT, Rule, Timeout, Wait, app
from sluice.cli.documents.submit import DIRECT_BYTES, type_of, upload
from sluice.cli.lists import MOST, Limit, print_list
from sluice.cli.progress import Screen, Shown
from sluice.cli.rules import rule_id_of
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment, number
from sluice.errors import CliError, Exit, Problem
from sluice.waiting import AWAY_SECONDS, POLL_SECONDS, resumable

batches = typer.Typer(help="Submit many documents, and download their results.", no_args_is_help=True)
app.add_typer(batches, name="batch")

# Bytes of a request. More is uploaded file by file, directly to the object storage.
THROUGH_BYTES = 8 * DIRECT_BYTES
SILENCE_SECONDS = 300.0  # the file is prepared before its first byte is sent

Batch = Annotated[int, typer.Argument(metavar="BATCH", min=1, help="The batch id that `submit` printed.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)]


def path_of(batch: int) -> str:
    return f"{ROOT}/batches/{batch}"


# ---- Submit ---------------------------------------------------------------------------------------------------------
@command(batches, "submit")
def submit(
    session: Session,
    files: Files,
    *,
    name: Annotated[str, typer.Option("--name", help="Shown in lists.")] = "",
    rule: Rule = None,
    direct: Annotated[
        bool | None,
        typer.Option(
            "--direct/--through", help="Upload to the object storage or through the service. Default: by size."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Requests with the same key create one batch. Default: a random key."),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Submit documents, or one ZIP file with documents, as a batch, and print its id."""
    fields = {"name": name, "rule_id": rule_id_of(session, rule)}
    key = idempotency_key or str(uuid.uuid4())
    if direct is None:
        direct = not is_archive(files) and sum(file.stat().st_size for file in files) > THROUGH_BYTES
    try:
        accepted = send_keys(session, key, files, fields) if direct else send_files(session, key, files, fields)
    except Problem as problem:
        problem.locate(lambda pointer: {"/rule_id": "--rule", "/name": "--name"}.get(pointer, pointer))
        raise
    except OSError as error:
        raise CliError(f"{error.filename} cannot be read: {error.strerror}.", code=Exit.USAGE) from None
    for each in accepted["refused"]:
        session.terminal.info(f"Not accepted: {each['filename']} [{each['code']}]")
    if not session.terminal.as_json:
        session.terminal.put(str(accepted["batch_id"]))
    elif not wait:
        session.terminal.json(accepted)
    if wait:
        finish(session, accepted["batch_id"], timeout=timeout)
    else:
        session.terminal.info(f"Wait for it with: sluice document batch wait {accepted['batch_id']}")


def is_archive(files: list[Path]) -> bool:
    return len(files) == 1 and files[0].suffix.lower() == ".zip"


def send_files(session: Session, key: str, files: list[Path], fields: dict[str, Any]) -> Any:
    """Send all files in one request, and again if the response is lost."""
    data = {name: str(value) for name, value in fields.items() if value not in {None, ""}}
    with ExitStack() as opened:

        def body() -> dict[str, Any]:
            opened.close()
            parts: list[tuple[str, tuple[str, BinaryIO, str]]] = [
                ("file", (file.name, opened.enter_context(file.open("rb")), type_of(file.name))) for file in files
            ]
            return {"data": data, "files": parts}

        return send(session, key, body)


def send_keys(session: Session, key: str, files: list[Path], fields: dict[str, Any]) -> Any:
    """Upload each file to the object storage, and submit the keys."""
    keys = []
    with Screen(session.terminal, "Uploading") as screen:
        for done, path in enumerate(files):
            screen.show(Shown("", 100 * done / len(files), f"{number(done)} of {number(len(files))} files"))
            with path.open("rb") as file:
                keys.append(upload(session, path.name, file, path.stat().st_size))
    return send(session, key, lambda: {"json": {**fields, "file_keys": keys}})


def send(session: Session, key: str, body: Any) -> Any:
    headers = {"Idempotency-Key": key}
    response = session.api.request("POST", f"{ROOT}/batches", body=body, headers=headers, repeatable=True)
    return checked_json(response)


# ---- Look -----------------------------------------------------------------------------------------------------------
@command(batches, "list")
def list_batches(session: Session, *, limit: Limit = 50) -> None:
    """List your batches, newest first. --json prints one line each."""
    rows = session.api.pages(f"{ROOT}/batches", {"limit": min(limit, MOST)}, limit=limit)
    print_list(session, ("BATCH", "NAME", "STATUS", "COMPLETED", "FAILED", "CREATED"), rows, summary)


def summary(batch: dict[str, Any]) -> tuple[str, ...]:
    done = f"{number(batch['completed'])} of {number(batch['total'])}"
    return (
        str(batch["batch_id"]), batch["name"], batch["status"], done, number(batch["failed"]),
        moment(batch["created_at"]),
    )  # fmt: skip


@command(batches, "show")
def show(session: Session, batch: Batch) -> None:
    """Show a batch: its progress, and the files that were not accepted."""
    response = session.api.get(path_of(batch))
    if session.terminal.as_json:
        session.terminal.json(response)
    else:
        session.terminal.pairs(facts(response))


def facts(batch: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Batch", f"{batch['batch_id']}" + (f", {batch['name']}" if batch["name"] else "")
    yield "Status", batch["status"]
    yield "Documents", counts(batch)
    yield "Rule", f"{batch['rule_id']}, version {batch['rule_version']}"
    yield "Not accepted", "; ".join(f"{each['filename']} [{each['code']}]" for each in batch["refused"])
    yield "Created", moment(batch["created_at"])
    yield "Updated", moment(batch["updated_at"])


def counts(batch: dict[str, Any]) -> str:
    """`180 of 240 completed · 2 failed`."""
    parts = [f"{number(batch['completed'])} of {number(batch['total'])} completed"]
    parts += [f"{number(batch[name])} {name}" for name in ("failed", "cancelled", "deleted") if batch[name]]
    return " · ".join(parts)


@command(batches, "wait")
def wait_for(session: Session, batch: Batch, *, timeout: Timeout = None) -> None:
    """Wait for a batch and show its progress. Ctrl-C does not cancel it."""
    finish(session, batch, timeout=timeout)


def finish(session: Session, batch_id: int, *, timeout: float | None) -> None:
    """Wait for the end, then raise CliError unless all documents were completed."""
    with resumable(session.api, f"sluice document batch wait {batch_id}", timeout=timeout):
        batch = watch(session, batch_id)
    if session.terminal.as_json:
        session.terminal.json(batch)
    if batch["status"] == "completed":
        session.terminal.info(
            f"Completed. Download the results with: sluice document batch results {batch_id} --format csv"
        )
    elif batch["status"] == "cancelled":
        raise CliError(f"The batch was cancelled: {counts(batch)}.", code=Exit.CANCELLED)
    else:
        again = f"Retry the failed documents with: sluice document batch retry {batch_id} --wait"
        raise CliError(f"Not all documents were completed: {counts(batch)}.", again, code=Exit.FAILED)


def watch(session: Session, batch_id: int) -> dict[str, Any]:
    """Return the batch at its end."""
    with Screen(session.terminal, f"Batch {batch_id}") as screen:
        while True:
            batch: dict[str, Any] = session.api.get(path_of(batch_id), away=AWAY_SECONDS)
            ended = sum(batch[name] for name in ("completed", "failed", "cancelled", "deleted"))
            screen.show(Shown(batch["status"], 100 * ended / batch["total"], counts(batch)))
            if batch["status"] != "running":
                return batch
            session.api.pause(POLL_SECONDS)


# ---- Change ---------------------------------------------------------------------------------------------------------
@command(batches, "cancel")
def cancel(
    session: Session,
    batch: Batch,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also cancel documents that are being processed.")] = False,
) -> None:
    """Cancel the documents of a batch that have not been started."""
    response = session.api.post(f"{path_of(batch)}/cancel", {"force": force})
    session.terminal.info(f"Cancelled: {counts(response)}.")
    if session.terminal.as_json:
        session.terminal.json(response)


@command(batches, "retry")
def retry(session: Session, batch: Batch, *, wait: Wait = False, timeout: Timeout = None) -> None:
    """Retry the failed documents of a batch, each from the stage at which it failed."""
    response = session.api.post(f"{path_of(batch)}/retry")
    if session.terminal.as_json and not wait:
        session.terminal.json(response)
    session.terminal.info("Restarted.")
    if wait:
        finish(session, batch, timeout=timeout)


# ---- Results --------------------------------------------------------------------------------------------------------
@command(batches, "results")
def results(
    session: Session,
    batch: Batch,
    *,
    form: Annotated[str, typer.Option("--format", metavar="csv|jsonl|parquet", help="Format of the file.")] = "csv",
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="POINTER", help="One row for each item of a list, such as /items."),
    ] = None,
    escape: Annotated[bool, typer.Option("--escape-formulas", help="For a spreadsheet: disarm formulas.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="A file, or - for stdout.")] = "-",
) -> None:
    """Download the results of a batch in one file, by default to stdout."""
    if output == "-" and form == "parquet" and sys.stdout.isatty():
        raise CliError("A Parquet file is not written to a terminal. Use --output FILE.", code=Exit.USAGE)
    query = {"format": form, "rows": rows, "formula_policy": "escape" if escape else None}
    try:
        download(session, batch, {name: value for name, value in query.items() if value is not None}, output)
    except Problem as problem:
        problem.locate(lambda pointer: pointer.replace("/", "--", 1))
        raise
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror}.", code=Exit.USAGE) from None


def download(session: Session, batch: int, query: dict[str, str], output: str) -> None:
    """Write the file beside its target, and rename it when it is complete."""
    path = f"{path_of(batch)}/results"
    with session.api.stream(path, params=query, read=SILENCE_SECONDS) as response:
        if output == "-":
            for block in response.iter_bytes():
                sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
            return
        part = Path(f"{output}.part")
        with part.open("wb") as file:
            for block in response.iter_bytes():
                file.write(block)
    part.replace(output)
    session.terminal.info(f"Written to {output}.")
