"""Command that waits for documents."""

from typing import Annotated, Any

import typer

from sluice.cli.documents.shared import ENDED, Timeout, app, failure, path_of, warning_of
from sluice.cli.progress import Screen, of_document
from sluice.cli.session import Session, command
from sluice.errors import CliError
from sluice.waiting import Watch, resumable


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
    """Wait for all of them, then raise CliError unless all succeeded."""
    errors = []
    with resumable(session.api, f"sluice document wait {' '.join(map(str, tasks))}", timeout=timeout):
        for nth, task in enumerate(tasks, 1):
            title = f"Document {task}" if len(tasks) == 1 else f"Document {task} ({nth} of {len(tasks)})"
            response = watch(session, task, title)
            if session.terminal.as_json:
                session.terminal.line(response)
            if response["status"] == "completed":
                print_completed(session, response)
            else:
                errors.append(failure(response))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [error.lines[0] for error in errors]
        raise CliError(
            f"{len(errors)} of {len(tasks)} documents failed or were cancelled.", *lines, code=errors[0].code
        )


def print_completed(session: Session, task: dict[str, Any]) -> None:
    session.terminal.info(
        f"Completed: {task['filename']}. Show the result with: sluice document result {task['task_id']}"
    )
    session.terminal.info(*(f"Warning: {warning_of(each)}" for each in task["metadata"].get("warnings", [])))


def watch(session: Session, task_id: int, title: str) -> dict[str, Any]:
    """Return the finished task."""
    with Screen(session.terminal, title) as screen:
        return Watch(
            session.api, path_of(task_id), ended=ENDED, changed=lambda task: screen.show(of_document(task))
        ).run()
