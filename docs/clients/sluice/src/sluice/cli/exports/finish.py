"""Commands that wait for an export and download its file."""

import sys
from typing import Annotated, Any

import typer

from sluice.cli.errors import CliError, Exit, cli_error_of, unwritable
from sluice.cli.exports.shared import Force, Job, Target, Timeout, app, failed_chunk, reason
from sluice.cli.progress import Screen, of_download, of_export
from sluice.cli.session import Session, command
from sluice.cli.terminal import number, size
from sluice.cli.waiting import resumable
from sluice.errors import ExportFailed, NoFile, SluiceError
from sluice.models import AcceptedExport, Chunk, Export

SHOWN_FAILURES = 10


def follow(
    session: Session,
    accepted: AcceptedExport | Export,
    *,
    wait: bool,
    download: str | None,
    force: bool,
    timeout: float | None,
) -> None:
    """Print the id of an accepted export. With --wait or --download, wait for the export."""
    terminal, job = session.terminal, accepted.id
    chunks = accepted.progress.total if isinstance(accepted, Export) else accepted.total_chunks
    terminal.info(f"Accepted: {number(chunks)} chunks.")
    waits = wait or download is not None
    if not terminal.as_json:
        (terminal.info if download == "-" else terminal.put)(job)
    elif not waits:
        terminal.json(accepted.raw)
    if waits:
        finish(session, job, download=download, force=force, timeout=timeout)
    else:
        terminal.info(f"Wait for it with: sluice export wait {job}")


@command(app, "wait")
def wait(session: Session, job: Job, *, download: Target = None, force: Force = False, timeout: Timeout = None) -> None:
    """Wait for an export and show its progress. Ctrl-C does not cancel it."""
    finish(session, str(job), download=download, force=force, timeout=timeout)


def finish(session: Session, job: str, *, download: str | None, force: bool, timeout: float | None) -> None:
    """Wait until the export has ended, and download its file if requested. Raises CliError unless it succeeded."""
    check_stdout(session, download)
    export = watch(session, job, timeout=timeout)
    chunks = export.progress
    session.terminal.info(f"Export ready: {number(chunks.total)} chunks, {number(chunks.rows)} rows.")
    if chunks.degraded:
        session.terminal.info(
            f"{number(chunks.degraded)} chunks are degraded: an older file was used because the source failed."
        )
    if download is not None:
        fetch(session, export, output=download, force=force)
    elif not session.terminal.as_json:
        session.terminal.info(f"Download it with: sluice export download {job}")
    if session.terminal.as_json:
        session.terminal.json(export.raw)


def check_stdout(session: Session, output: str | None) -> None:
    if output == "-" and session.terminal.as_json:
        raise CliError("The file and --json cannot both be written to stdout.", code=Exit.USAGE)


def watch(session: Session, job: str, *, timeout: float | None) -> Export:
    """Wait for an export while showing its progress and failed chunks. Return the successful export."""
    failures = 0

    def on_chunk(chunk: Chunk) -> None:
        nonlocal failures
        if chunk.status == "failed":
            failures += 1
            if failures <= SHOWN_FAILURES:
                session.terminal.info(failed_chunk(chunk))

    try:
        with resumable(f"sluice export wait {job}", timeout=timeout), Screen(session.terminal, "Exporting") as screen:
            return session.client.exports.wait(
                job, timeout=timeout, progress=lambda export: screen.show(of_export(export)), on_chunk=on_chunk
            )
    except ExportFailed as failed:
        if failed.export.status == "failed" and not failures:  # there was no stream, or it started late
            chunks = session.client.exports.chunks(job, status="failed", limit=SHOWN_FAILURES)
            session.terminal.info(*map(failed_chunk, chunks))
        raise failure(failed.export) from None


def failure(export: Export) -> CliError:
    """Return the error for an export that failed or was cancelled."""
    if export.status == "cancelled":
        return CliError("The export was cancelled.", code=Exit.CANCELLED, document=export.raw)
    failed = f"{number(export.progress.failed)} of {number(export.progress.total)} chunks failed"
    lines = [
        f"The export failed: {reason(export.error)}",
        f"{failed}. List them with: sluice export chunks {export.id} --status failed",
    ]
    if export.error and export.error.retryable:
        lines.append(f"Retry them with: sluice export retry {export.id} --wait")
    return CliError(*lines, code=Exit.FAILED, document=export.raw)


@command(app, "download")
def download(
    session: Session,
    job: Job,
    *,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="PATH", help="A file, a folder that ends with /, or - for stdout."),
    ] = ".",
    force: Force = False,
) -> None:
    """Download an export's file and verify its checksum. An interrupted download is resumed."""
    check_stdout(session, output)
    fetched = fetch(session, session.client.exports.get(job), output=output, force=force)
    if session.terminal.as_json:
        session.terminal.json(fetched)


def fetch(session: Session, export: Export, *, output: str, force: bool) -> dict[str, Any]:
    """Download the file of a successful export. Return its id, path, size, and checksum."""
    try:
        path = load(session, export, output, force=force)
    except NoFile as error:
        raise no_file(error) from None
    except KeyboardInterrupt:
        again = f"sluice export download {export.id}"
        raise CliError(f"Interrupted. Resume with: {again}", code=Exit.INTERRUPTED) from None
    except SluiceError as error:
        found = cli_error_of(error)
        if found.code == Exit.UNREACHABLE:
            found.lines = [*found.lines, "Run the same command again to resume the download."]
        raise found from None
    if path != "-" and not session.terminal.as_json:
        session.terminal.put(path)
    receipt = export.raw["receipt"]
    return {"jobId": export.id, "path": path, "sizeBytes": receipt["sizeBytes"], "checksum": receipt["checksum"]}


def load(session: Session, export: Export, output: str, *, force: bool) -> str:
    """Write the file. Return its path, or - for stdout."""
    was_downloaded = False
    with Screen(session.terminal, "Downloading") as screen, unwritable(output):

        def progress(done: int, total: int) -> None:
            nonlocal was_downloaded
            was_downloaded = True
            screen.show(of_download(done, total))

        if output == "-":
            session.client.exports.download_to(export, sys.stdout.buffer, progress=progress)
            sys.stdout.buffer.flush()
        else:
            output = str(session.client.exports.download(export, output, overwrite=force, progress=progress))
    total = size(export.receipt and export.receipt.size_bytes)
    same = "The file already exists and matches the checksum."
    session.terminal.info(f"{total}, SHA-256 verified." if was_downloaded or output == "-" else same)
    return output


WAIT = Exit.REFUSED, "Wait for it with: sluice export wait {} --download ./"
NEXT = {
    "failed": (Exit.FAILED, "Show the reason with: sluice export show {}"),
    "cancelled": (Exit.CANCELLED, ""),
    "success": (Exit.NOT_FOUND, "Export again, and reuse existing files, with: sluice export replay {}"),
}


def no_file(error: NoFile) -> CliError:
    """Return the error for an export without a file, with advice."""
    code, advice = NEXT.get(error.export.status, WAIT)
    lines = filter(None, (str(error), advice.format(error.export.id)))
    return CliError(*lines, code=code, document=error.export.raw)
