"""From a task to its end."""

from typing import Annotated, Any

import typer

from sluice.documents.shared import ENDED, Timeout, app, failure, path_of, warning_of
from sluice.errors import Trouble
from sluice.progress import Screen, of_document
from sluice.session import Session, command
from sluice.waiting import Watch, come_back


@command(app, "wait")
def wait(
    session: Session,
    tasks: Annotated[list[int], typer.Argument(metavar="TASK...", min=1)],
    *,
    timeout: Timeout = None,
) -> None:
    """Stay until documents have ended, and say how it goes. Ctrl-C leaves them running."""
    finish(session, tasks, timeout=timeout)


def finish(session: Session, tasks: list[int], *, timeout: float | None) -> None:
    """Wait for all of them, then raise Trouble if one did not end well."""
    troubles = []
    with come_back(session.api, f"sluice document wait {' '.join(map(str, tasks))}", timeout=timeout):
        for nth, task in enumerate(tasks, 1):
            title = f"Document {task}" if len(tasks) == 1 else f"Document {task} ({nth} of {len(tasks)})"
            told = watch(session, task, title)
            if session.terminal.as_json:
                session.terminal.line(told)
            if told["status"] == "completed":
                tell_end(session, told)
            else:
                troubles.append(failure(told))
    if len(troubles) == 1:
        raise troubles[0]
    if troubles:
        lines = [trouble.lines[0] for trouble in troubles]
        raise Trouble(f"{len(troubles)} of {len(tasks)} documents did not end well.", *lines, code=troubles[0].code)


def tell_end(session: Session, task: dict[str, Any]) -> None:
    session.terminal.say(f"Done: {task['filename']}. Its result: sluice document result {task['task_id']}")
    session.terminal.say(*(f"Warning: {warning_of(each)}" for each in task["metadata"].get("warnings", [])))


def watch(session: Session, task: int, title: str) -> dict[str, Any]:
    """Return the task at its end."""
    with Screen(session.terminal, title) as screen:
        return Watch(session.api, path_of(task), ended=ENDED, changed=lambda told: screen.show(of_document(told))).run()
