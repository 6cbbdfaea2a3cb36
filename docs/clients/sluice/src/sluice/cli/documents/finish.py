"""The command that waits for documents."""

import time
from typing import Annotated

import typer

from sluice import models
from sluice.cli.documents.shared import Timeout, app, failure
from sluice.cli.errors import CliError
from sluice.cli.progress import Screen, of_document
from sluice.cli.session import Session, command
from sluice.cli.waiting import resumable
from sluice.errors import DocumentFailed


@command(app, "wait")
def wait(
    session: Session,
    tasks: Annotated[list[int], typer.Argument(metavar="TASK...", min=1)],
    *,
    timeout: Timeout = None,
) -> None:
    """Wait for documents and show their progress. Ctrl-C does not cancel them."""
    finish(session, tasks, timeout=timeout)


def finish(session: Session, tasks: list[int], *, timeout: float | None) -> None:
    """Wait for all documents. Raises CliError unless all were completed."""
    errors = []
    until = None if timeout is None else time.monotonic() + timeout
    with resumable(f"sluice document wait {' '.join(map(str, tasks))}", timeout=timeout):
        for nth, task in enumerate(tasks, 1):
            title = f"Document {task}" if len(tasks) == 1 else f"Document {task} ({nth} of {len(tasks)})"
            ended = watch(session, task, title, timeout=None if until is None else until - time.monotonic())
            if session.terminal.as_json:
                session.terminal.line(ended.raw)
            if ended.status == "completed":
                print_completed(session, ended)
            else:
                errors.append(failure(ended))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [error.lines[0] for error in errors]
        raise CliError(
            f"{len(errors)} of {len(tasks)} documents failed or were cancelled.", *lines, code=errors[0].code
        )


def print_completed(session: Session, task: models.Task) -> None:
    session.terminal.info(f"Completed: {task.filename}. Show the result with: sluice document result {task.id}")
    session.terminal.info(*(f"Warning: {warning}" for warning in task.warnings))


def watch(session: Session, task: int, title: str, *, timeout: float | None) -> models.Task:
    """Wait for a document while showing its progress. Return the ended document."""
    with Screen(session.terminal, title) as screen:
        try:
            return session.client.documents.wait(
                task, timeout=timeout, progress=lambda found: screen.show(of_document(found))
            )
        except DocumentFailed as failed:
            return failed.task
