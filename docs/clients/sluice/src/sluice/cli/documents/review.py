"""Commands that correct and approve results."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice import exact_json
from sluice.cli.documents.shared import Task, app
from sluice.cli.errors import CliError, Exit, unreadable
from sluice.cli.lists import Limit, print_list
from sluice.cli.session import Session, command
from sluice.cli.terminal import moment
from sluice.documents import path_of


@command(app, "correct")
def correct(
    session: Session,
    task: Task,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE|-", help="Changes as JSON: a merge patch, where null removes a member."),
    ],
) -> None:
    """Correct the data of a result. The original is kept."""
    result = session.client.documents.correct(task, json_of(file))
    session.terminal.info("Corrected.")
    session.terminal.json(result["data"])


def json_of(file: str) -> Any:
    """Return the JSON of a file, or of stdin for `-`. Numbers keep their digits."""
    with unreadable(file):
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return exact_json.loads(text)
    except ValueError:
        raise CliError(f"{file} is not JSON.", code=Exit.USAGE) from None


@command(app, "approve")
def approve(
    session: Session,
    task: Task,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the approval.")] = False,
) -> None:
    """Approve the result of a document."""
    if remove:
        session.client.documents.remove_approval(task)
        session.terminal.info("Approval removed.")
        return
    approved = session.client.documents.approve(task)
    session.terminal.info(f"Approved by {approved.approved_by}.")
    if session.terminal.as_json:
        session.terminal.json(approved.raw)


@command(app, "history")
def history(session: Session, task: Task, *, limit: Limit = 50) -> None:
    """List the corrections and approvals of a document, newest first. --json prints one line each."""
    events = session.client.pages(f"{path_of(task)}/history", limit=limit)
    print_list(session, ("WHEN", "WHO", "WHAT", "POINTER", "BEFORE", "AFTER"), events, row)


def row(event: dict[str, Any]) -> tuple[str, ...]:
    change = event["change"] or {}
    before, after = (shown(change[name]) if name in change else "" for name in ("before", "after"))
    return (moment(event["at"]), event["by"], event["kind"], event["pointer"] or "", before, after)


def shown(value: Any) -> str:
    return value if isinstance(value, str) else exact_json.dumps(value)
