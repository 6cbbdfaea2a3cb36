"""`sluice document submit`: from files to tasks."""

import mimetypes
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import httpx2
import typer

from sluice.api import checked_json, reach
from sluice.documents.finish import finish
from sluice.documents.shared import ROOT, Rule, Timeout, Wait, app
from sluice.downloading import origin
from sluice.errors import Exit, Problem, Trouble
from sluice.rules import rule_id_of
from sluice.session import Session, command

# Larger ones go straight to the object storage: the service itself would hold them on its disk meanwhile.
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
        typer.Option("--direct/--through", help="Send to the object storage, or through the service. By size."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key is the same document. Without it one is made up.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Submit documents; one line with the number of its task for each."""
    if idempotency_key and len(files) > 1:
        raise Trouble("--idempotency-key is for one file.", code=Exit.USAGE)
    rule_id = rule_id_of(session, rule)
    accepted = []
    for file in files:
        accepted.append(submit_one(session, file, rule_id, direct=direct, key=idempotency_key or str(uuid.uuid4())))
        if not session.terminal.as_json:
            session.terminal.put(str(accepted[-1]["task_id"]))
        elif not wait:
            session.terminal.line(accepted[-1])
    if wait:
        finish(session, [each["task_id"] for each in accepted], timeout=timeout)
    else:
        session.terminal.say(f"Wait for it: sluice document wait {accepted[0]['task_id']}")


def submit_one(session: Session, path: Path, rule_id: int | None, *, direct: bool | None, key: str) -> dict[str, Any]:
    size = path.stat().st_size
    if direct is None:
        direct = size > DIRECT_BYTES
    try:
        with path.open("rb") as file:
            if direct:
                body = {"file_key": upload(session, path.name, file, size), "rule_id": rule_id}
                return ask(session, key, json=body)
            fields = {} if rule_id is None else {"rule_id": str(rule_id)}
            return ask(session, key, file=file, data=fields, files={"file": (path.name, file, type_of(path.name))})
    except Problem as problem:
        problem.locate(lambda pointer: {"/rule_id": "--rule"}.get(pointer, str(path)))
        if not problem.document.get("errors"):
            problem.advice = (f"File: {path}", *problem.advice)
        raise
    except OSError as error:
        raise Trouble(f"{path} cannot be read: {error.strerror}.", code=Exit.USAGE) from None


def ask(session: Session, key: str, *, file: BinaryIO | None = None, **body: Any) -> dict[str, Any]:
    """Submit, again when the answer is lost: the key makes one task of any number of tries."""

    def request() -> dict[str, Any]:
        if file:
            file.seek(0)
        return body

    headers = {"Idempotency-Key": key}
    answer = session.api.ask("POST", f"{ROOT}/submit", body=request, headers=headers, repeatable=True)
    told: dict[str, Any] = checked_json(answer)
    return told


def type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def upload(session: Session, name: str, file: BinaryIO, size: int) -> str:
    """Send a file to the object storage, which never sees the token. Returns the key to submit it by."""
    # What a name's end says is not asked: the bytes decide.
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
    raise Trouble(
        f"The object storage at {origin(url)} did not take the file.",
        "Send it through the service: --through",
        code=Exit.UNREACHABLE,
    )
