"""Commands that wait for an export and download its file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sluice.cli.exports.shared import ENDED, Force, Job, Target, Timeout, app, failed_chunk, path_of, reason
from sluice.cli.progress import Screen, Shown, of_export
from sluice.cli.session import Session, command
from sluice.cli.terminal import number, size
from sluice.downloading import Download, Wanted, already_downloaded, target_of, to_stdout
from sluice.errors import CliError, Exit
from sluice.events import Event
from sluice.waiting import Watch, resumable

SHOWN_FAILURES = 10


def follow(
    session: Session, accepted: dict[str, Any], *, wait: bool, download: str | None, force: bool, timeout: float | None
) -> None:
    """Print the id of an accepted export; with --wait or --download, wait for it."""
    terminal, job = session.terminal, accepted["jobId"]
    chunks = accepted["totalChunks"] if "totalChunks" in accepted else accepted["progress"]["total"]
    terminal.info(f"Accepted: {number(chunks)} chunks.")
    waits = wait or download is not None
    if not terminal.as_json:
        (terminal.info if download == "-" else terminal.put)(job)
    elif not waits:
        terminal.json(accepted)
    if waits:
        finish(session, job, download=download, force=force, timeout=timeout)
    else:
        terminal.info(f"Wait for it with: sluice export wait {job}")


@command(app, "wait")
def wait(session: Session, job: Job, *, download: Target = None, force: Force = False, timeout: Timeout = None) -> None:
    """Wait for an export and show its progress. Ctrl-C does not cancel it."""
    finish(session, str(job), download=download, force=force, timeout=timeout)


def finish(session: Session, job: str, *, download: str | None, force: bool, timeout: float | None) -> None:
    """Wait for the end, print the outcome, and download the file if requested. Raises CliError unless it succeeded."""
    if download == "-" and session.terminal.as_json:
        raise CliError("The file and --json cannot both be written to stdout.", code=Exit.USAGE)
    response, failures = watch(session, job, timeout=timeout)
    if response["status"] == "failed" and not failures:  # there was no stream, or it started late
        failed = session.api.pages(f"{path_of(job)}/chunks", {"status": "failed"}, limit=SHOWN_FAILURES)
        session.terminal.info(*map(failed_chunk, failed))
    if response["status"] != "success":
        raise failure(response)
    chunks = response["progress"]
    session.terminal.info(f"Export ready: {number(chunks['total'])} chunks, {number(chunks['rows'])} rows.")
    if response["receipt"]["degraded"]:
        session.terminal.info(
            f"{number(chunks['degraded'])} chunks are degraded: an older file was used because the source failed."
        )
    if download is not None:
        fetch(session, response, output=download, force=force)
    elif not session.terminal.as_json:
        session.terminal.info(f"Download it with: sluice export download {job}")
    if session.terminal.as_json:
        session.terminal.json(response)


def watch(session: Session, job: str, *, timeout: float | None) -> tuple[dict[str, Any], int]:
    """Return the finished job, and the number of failed chunks that the stream reported."""
    failures = 0

    def on_event(event: Event) -> None:
        nonlocal failures
        if event.kind == "chunk" and event.data["status"] == "failed":
            failures += 1
            if failures <= SHOWN_FAILURES:
                session.terminal.info(failed_chunk(event.data))

    back = resumable(session.api, f"sluice export wait {job}", timeout=timeout)
    with back, Screen(session.terminal, "Exporting") as screen:
        watching = Watch(session.api, path_of(job), ended=ENDED, changed=lambda state: screen.show(of_export(state)))
        watching.on_event = on_event
        return watching.run(), failures


def failure(job: dict[str, Any]) -> CliError:
    """Return the error for an export that ended without a file."""
    job_id, error = job["jobId"], job["error"]
    if job["status"] == "cancelled":
        return CliError("The export was cancelled.", code=Exit.CANCELLED, document=job)
    chunks = job["progress"]
    failed = f"{number(chunks['failed'])} of {number(chunks['total'])} chunks failed"
    lines = [
        f"The export failed: {reason(error)}",
        f"{failed}. List them with: sluice export chunks {job_id} --status failed",
    ]
    if error and error["retryable"]:
        lines.append(f"Retry them with: sluice export retry {job_id} --wait")
    return CliError(*lines, code=Exit.FAILED, document=job)


@command(app, "download")
def download(
    session: Session,
    job: Job,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="A file, a folder, or - for stdout.")
    ] = ".",
    force: Force = False,
) -> None:
    """Download an export's file and verify its checksum. An interrupted download is resumed."""
    if output == "-" and session.terminal.as_json:
        raise CliError("The file and --json cannot both be written to stdout.", code=Exit.USAGE)
    response = session.api.get(path_of(job))
    fetched = fetch(session, response, output=output, force=force)
    if session.terminal.as_json:
        session.terminal.json(fetched)


def fetch(session: Session, job: dict[str, Any], *, output: str, force: bool) -> dict[str, Any]:
    """Download the file of a successful job. Return its id, path, size, and checksum."""
    wanted = Wanted.of(job)
    target = None if output == "-" else target_of(output, wanted)
    if target and already_downloaded(target, wanted, force=force):
        session.terminal.info("The file already exists and matches the checksum.")
    else:
        with downloading(session, wanted, link=job["receipt"]["signedUrl"]) as loading:
            if target:
                loading.into(target)
            else:
                to_stdout(loading)
        session.terminal.info(f"{size(wanted.size)}, SHA-256 verified.")
    if target and not session.terminal.as_json:
        session.terminal.put(str(target))
    return {
        "jobId": wanted.job_id,
        "path": str(target),
        "sizeBytes": wanted.size,
        "checksum": f"sha256:{wanted.sha256}",
    }


@contextmanager
def downloading(session: Session, wanted: Wanted, *, link: str | None) -> Iterator[Download]:
    with Screen(session.terminal, "Downloading") as screen:

        def moved(done: int) -> None:
            percent = 100 * done / wanted.size if wanted.size else 100
            screen.show(Shown("", percent, f"{size(done)} of {size(wanted.size)}"))

        try:
            yield Download(api=session.api, wanted=wanted, link=link, moved=moved)
        except KeyboardInterrupt:
            again = f"sluice export download {wanted.job_id}"
            raise CliError(f"Interrupted. Resume with: {again}", code=Exit.INTERRUPTED) from None
