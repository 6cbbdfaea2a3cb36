"""`sluice document submit`: upload files and create tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.documents.finish import finish
from sluice.cli.documents.shared import Direct, Files, Rule, Timeout, Wait, app
from sluice.cli.errors import CliError, Exit, cli_error_of, located, unreadable
from sluice.cli.session import Session, command
from sluice.errors import Unreachable


@command(app, "submit")
def submit(
    session: Session,
    files: Files,
    *,
    rule: Rule = None,
    direct: Direct = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Requests with the same key create one task. Default: a random key."),
    ] = None,
    keep_days: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="Delete the documents automatically after this many days.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Submit documents and print one task id per line."""
    if idempotency_key and len(files) > 1:
        raise CliError(f"--idempotency-key needs exactly one file; you gave {len(files)}.", code=Exit.USAGE)
    accepted = []
    for file in files:
        with naming(file):
            task = session.client.documents.submit(
                file, rule=rule, keep_days=keep_days, direct=direct, idempotency_key=idempotency_key
            )
        accepted.append(task)
        if not session.terminal.as_json:
            session.terminal.put(str(task.id))
            if task.duplicate_of:
                session.terminal.info(f"{file} is the same file as document {task.duplicate_of}.")
        elif not wait:
            session.terminal.line(task.raw)
    if wait:
        finish(session, [task.id for task in accepted], timeout=timeout)
    else:
        session.terminal.info(f"Wait for it with: sluice document wait {accepted[0].id}")


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Add the name of the file to the errors of its submission."""
    names = {"/rule_id": "--rule", "/keep_days": "--keep-days"}
    try:
        with unreadable(file), located(lambda pointer: names.get(pointer, str(file))):
            yield
    except CliError as error:
        if isinstance(error.document, dict) and not error.document.get("errors"):
            error.lines = [error.lines[0], f"File: {file}", *error.lines[1:]]
        raise
    except Unreachable as error:
        raise cli_error_of(error, "To upload through the service, use --through.") from None
