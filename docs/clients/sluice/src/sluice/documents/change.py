"""What a person may do to a document: withdraw it, run it again."""

from typing import Annotated

import typer

from sluice.documents.finish import finish
from sluice.documents.shared import Rule, Task, Timeout, Wait, app, path_of
from sluice.errors import Problem
from sluice.rules import rule_id_of
from sluice.session import Session, command


@command(app, "cancel")
def cancel(session: Session, task: Task) -> None:
    """Withdraw a document that nobody has begun with."""
    told = session.api.post(f"{path_of(task)}/cancel")
    session.terminal.say("Cancelled.")
    if session.terminal.as_json:
        session.terminal.json(told)


@command(app, "retry")
def retry(
    session: Session,
    task: Task,
    *,
    stage: Annotated[str, typer.Option("--from", metavar="ocr|postprocess", help="Where to begin again.")],
    rule: Rule = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Run a document again: from the beginning, or only its rule, or another rule, over the text that was read."""
    rule_id = rule_id_of(session, rule)
    try:
        told = session.api.post(f"{path_of(task)}/retry", {"from_stage": stage, "rule_id": rule_id})
    except Problem as problem:
        problem.locate(lambda pointer: {"/from_stage": "--from", "/rule_id": "--rule"}.get(pointer, pointer))
        raise
    if session.terminal.as_json and not wait:
        session.terminal.json(told)
    session.terminal.say("Taken up again.")
    if wait:
        finish(session, [task], timeout=timeout)
