"""Commands that change a document: cancel, delete, and retry."""

from typing import Annotated, Any, cast

import typer

from sluice.cli.documents.finish import finish
from sluice.cli.documents.shared import Rule, Task, Timeout, Wait, app
from sluice.cli.errors import located, options
from sluice.cli.session import Session, command


@command(app, "cancel")
def cancel(
    session: Session,
    task: Task,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also cancel a document that is being processed.")] = False,
) -> None:
    """Cancel a document that has not been started."""
    cancelled = session.client.documents.cancel(task, force=force)
    session.terminal.info("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(cancelled.raw)


@command(app, "delete")
def delete(
    session: Session,
    task: Task,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also delete a document that is being processed.")] = False,
) -> None:
    """Delete a document, its text, and its result."""
    session.client.documents.delete(task, force=force)
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
    with located(options(from_stage="--from", rule_id="--rule")):
        restarted = session.client.documents.retry(task, from_stage=cast("Any", stage), rule=rule)
    if session.terminal.as_json and not wait:
        session.terminal.json(restarted.raw)
    session.terminal.info("Restarted.")
    if wait:
        finish(session, [task], timeout=timeout)
