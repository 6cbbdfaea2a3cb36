"""`sluice document submit`: upload files and create tasks."""

import mimetypes
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import httpx2
import typer

from sluice.api import checked_json, reach
from sluice.cli.documents.finish import finish
from sluice.cli.documents.shared import ROOT, Rule, Timeout, Wait, app
from sluice.cli.rules import rule_id_of
from sluice.cli.session import Session, command
from sluice.downloading import origin
from sluice.errors import CliError, Exit, Problem

# Larger files are uploaded directly to the object storage, so that the service need not buffer them on disk.
DIRECT_BYTES = 8_000_000
UPLOAD_SECONDS = 60.0
UPLOAD_TRIES = 3


@command(app, "submit")
def submit(
    session: Session,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)],
    *,
    rule: Rule = None,
    direct: Annotated[
        bool | None,
        typer.Option(
            "--direct/--through", help="Upload to the object storage or through the service. Default: by size."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Requests with the same key create one task. Default: a random key."),
    ] = None,
    keep_days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="Delete the documents by themselves after so many days.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Submit documents and print one task id per line."""
    if idempotency_key and len(files) > 1:
        raise CliError(f"--idempotency-key needs exactly one file; you gave {len(files)}.", code=Exit.USAGE)
    options = {"rule_id": rule_id_of(session, rule), "keep_days": keep_days}
    given = {name: value for name, value in options.items() if value is not None}
    accepted = []
    for file in files:
        accepted.append(submit_one(session, file, given, direct=direct, key=idempotency_key or str(uuid.uuid4())))
        if not session.terminal.as_json:
            session.terminal.put(str(accepted[-1]["task_id"]))
            if earlier := accepted[-1].get("duplicate_of"):
                session.terminal.info(f"{file} is the same file as document {earlier}.")
        elif not wait:
            session.terminal.line(accepted[-1])
    if wait:
        finish(session, [each["task_id"] for each in accepted], timeout=timeout)
    else:
        session.terminal.info(f"Wait for it with: sluice document wait {accepted[0]['task_id']}")


def submit_one(session: Session, path: Path, options: dict[str, int], *, direct: bool | None, key: str) -> Any:
    size = path.stat().st_size
    if direct is None:
        direct = size > DIRECT_BYTES
    try:
        with path.open("rb") as file:
            if direct:
                return send(session, key, json={"file_key": upload(session, path.name, file, size), **options})
            fields = {name: str(value) for name, value in options.items()}
            return send(session, key, file=file, data=fields, files={"file": (path.name, file, type_of(path.name))})
    except Problem as problem:
        problem.locate(lambda pointer: {"/rule_id": "--rule", "/keep_days": "--keep-days"}.get(pointer, str(path)))
        if not problem.document.get("errors"):
            problem.advice = (f"File: {path}", *problem.advice)
        raise
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}.", code=Exit.USAGE) from None


def send(session: Session, key: str, *, file: BinaryIO | None = None, **body: Any) -> Any:
    """Send the request, and again if the response is lost: the idempotency key prevents a second task."""

    def arguments() -> dict[str, Any]:
        if file:
            file.seek(0)
        return body

    headers = {"Idempotency-Key": key}
    response = session.api.request("POST", f"{ROOT}/submit", body=arguments, headers=headers, repeatable=True)
    return checked_json(response)


def type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def upload(session: Session, name: str, file: BinaryIO, size: int) -> str:
    """Upload a file to the object storage, without the token. Return its file key for the submission."""
    # The server detects the type from the content, not from the file name.
    offer = {"filename": name, "content_type": "application/octet-stream", "size": size}
    place = session.api.post(f"{ROOT}/uploads", offer, repeatable=True)
    url = place["upload_url"]
    headers = {**place["headers"], "Content-Length": str(size)}
    with httpx2.Client(follow_redirects=False, timeout=httpx2.Timeout(UPLOAD_SECONDS), **reach(url)) as anyone:
        for _ in range(UPLOAD_TRIES):
            file.seek(0)
            with suppress(httpx2.TransportError):
                response = anyone.put(url, content=file, headers=headers)
                session.terminal.debug(f"PUT {origin(url)}/… {response.status_code}")
                if response.is_success:
                    return str(place["file_key"])
                break
            session.api.pause(1)
    raise CliError(
        f"The upload to the object storage at {origin(url)} failed.",
        "To upload through the service, use --through.",
        code=Exit.UNREACHABLE,
    )
