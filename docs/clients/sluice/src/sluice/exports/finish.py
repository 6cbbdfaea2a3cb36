"""From an accepted export to its end, and to the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sluice.downloading import Download, Wanted, is_there, target_of, to_stdout
from sluice.errors import Exit, Trouble
from sluice.events import Event
from sluice.exports.shared import ENDED, Force, Job, Target, Timeout, app, failed_slice, path_of, reason
from sluice.progress import Screen, Shown, of_export
from sluice.session import Session, command
from sluice.terminal import number, size
from sluice.waiting import Watch, come_back

SHOWN_FAILURES = 10


def go_on(
    session: Session, accepted: dict[str, Any], *, wait: bool, download: str | None, force: bool, timeout: float | None
) -> None:
    """Say which export it is, and wait for it if that is wanted."""
    terminal, job = session.terminal, accepted["jobId"]
    slices = accepted["totalChunks"] if "totalChunks" in accepted else accepted["progress"]["total"]
    terminal.say(f"Accepted, {number(slices)} slices.")
    waits = wait or download is not None
    if not terminal.as_json:
        (terminal.say if download == "-" else terminal.put)(job)
    elif not waits:
        terminal.json(accepted)
    if waits:
        finish(session, job, download=download, force=force, timeout=timeout)
    else:
        terminal.say(f"Wait for it: sluice export wait {job}")


@command(app, "wait")
def wait(session: Session, job: Job, *, download: Target = None, force: Force = False, timeout: Timeout = None) -> None:
    """Stay until an export has ended, and say how it goes. Ctrl-C leaves it running."""
    finish(session, str(job), download=download, force=force, timeout=timeout)


def finish(session: Session, job: str, *, download: str | None, force: bool, timeout: float | None) -> None:
    """Wait for the end, say it, and fetch the file if that is wanted. Raises Trouble unless it is a success."""
    if download == "-" and session.terminal.as_json:
        raise Trouble("stdout cannot hold both the file and --json.", code=Exit.USAGE)
    told, heard = watch(session, job, timeout=timeout)
    if told["status"] == "failed" and not heard:  # there was no stream, or it was late
        failed = session.api.pages(f"{path_of(job)}/chunks", {"status": "failed"}, limit=SHOWN_FAILURES)
        session.terminal.say(*map(failed_slice, failed))
    if told["status"] != "success":
        raise failure(told)
    chunks = told["progress"]
    session.terminal.say(f"Done: {number(chunks['total'])} slices, {number(chunks['rows'])} rows.")
    if told["receipt"]["degraded"]:
        session.terminal.say(f"{number(chunks['degraded'])} of them are older files: the source gave none.")
    if download is not None:
        fetch(session, told, output=download, force=force)
    elif not session.terminal.as_json:
        session.terminal.say(f"Download it: sluice export download {job}")
    if session.terminal.as_json:
        session.terminal.json(told)


def watch(session: Session, job: str, *, timeout: float | None) -> tuple[dict[str, Any], int]:
    """Return the job at its end, and how many failures of slices were heard of meanwhile."""
    failures = 0

    def heard(event: Event) -> None:
        nonlocal failures
        if event.kind == "chunk" and event.data["status"] == "failed":
            failures += 1
            if failures <= SHOWN_FAILURES:
                session.terminal.say(failed_slice(event.data))

    back = come_back(session.api, f"sluice export wait {job}", timeout=timeout)
    with back, Screen(session.terminal, "Exporting") as screen:
        watching = Watch(session.api, path_of(job), ended=ENDED, changed=lambda told: screen.show(of_export(told)))
        watching.heard = heard
        return watching.run(), failures


def failure(job: dict[str, Any]) -> Trouble:
    """Return what to say of an export that ended without a file."""
    job_id, error = job["jobId"], job["error"]
    if job["status"] == "cancelled":
        return Trouble("The export was cancelled.", code=Exit.CANCELLED, document=job)
    chunks = job["progress"]
    failed = f"{number(chunks['failed'])} of {number(chunks['total'])} slices failed"
    lines = [f"The export failed: {reason(error)}", f"{failed}: sluice export chunks {job_id} --status failed"]
    if error and error["retryable"]:
        lines.append(f"Run them again: sluice export retry {job_id} --wait")
    return Trouble(*lines, code=Exit.FAILED, document=job)


@command(app, "download")
def download(
    session: Session,
    job: Job,
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="PATH", help="A name, a folder, or - .")] = ".",
    force: Force = False,
) -> None:
    """Download an export's file and check it. A download that broke goes on where it was."""
    if output == "-" and session.terminal.as_json:
        raise Trouble("stdout cannot hold both the file and --json.", code=Exit.USAGE)
    told = session.api.get(path_of(job))
    fetched = fetch(session, told, output=output, force=force)
    if session.terminal.as_json:
        session.terminal.json(fetched)


def fetch(session: Session, job: dict[str, Any], *, output: str, force: bool) -> dict[str, Any]:
    """Download the file of a job that succeeded. Returns what was made of it."""
    wanted = Wanted.of(job)
    target = None if output == "-" else target_of(output, wanted)
    if target and is_there(target, wanted, force=force):
        session.terminal.say("It is there already, and is right.")
    else:
        with downloading(session, wanted, link=job["receipt"]["signedUrl"]) as loading:
            if target:
                loading.into(target)
            else:
                to_stdout(loading)
        session.terminal.say(f"{size(wanted.size)}, SHA-256 checked.")
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
            raise Trouble(f"Interrupted. Go on where it was: {again}", code=Exit.INTERRUPTED) from None
