"""Commands that change a document: cancel and retry."""

from typing import Annotated

import typer

from sluice.cli.documents.finish import finish
from sluice.cli.documents.shared import Rule, Task, Timeout, Wait, app, path_of
from sluice.cli.rules import rule_id_of
from sluice.cli.session import Session, command
from sluice.errors import Problem


@command(app, "cancel")
def cancel(
    session: Session,
    task: Task,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also cancel a document that is being processed.")] = False,
) -> None:
    """Cancel a document that has not been started."""
    response = session.api.post(f"{path_of(task)}/cancel", {"force": force})
    session.terminal.info("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(response)


@command(app, "delete")
def delete(
    session: Session,
    task: Task,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also delete a document that is being processed.")] = False,
) -> None:
    """Delete a document, its text, and its result."""
    session.api.delete(path_of(task), {"force": "true"} if force else None)
    session.terminal.info("Deleted.")


@command(app, "retry")
def retry(
    session: Session,
    task: Task,
    *,
    stage: Annotated[str, typer.Option("--from", metavar="ocr|postprocess", help="The stage to restart from.")],
    rule: Rule = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Retry a document from the start, or apply its rule or another rule to the parsed text again."""
    rule_id = rule_id_of(session, rule)
    try:
        response = session.api.post(f"{path_of(task)}/retry", {"from_stage": stage, "rule_id": rule_id})
    except Problem as problem:
        problem.locate(lambda pointer: {"/from_stage": "--from", "/rule_id": "--rule"}.get(pointer, pointer))
        raise
    if session.terminal.as_json and not wait:
        session.terminal.json(response)
    session.terminal.info("Restarted.")
    if wait:
        finish(session, [task], timeout=timeout)
