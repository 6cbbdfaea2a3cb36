"""Commands that show documents and their results."""

import codecs
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sluice import models
from sluice.cli.documents.shared import Rule, Task, app, failure
from sluice.cli.errors import CliError, Exit
from sluice.cli.lists import Limit, print_list
from sluice.cli.progress import STAGES
from sluice.cli.session import Session, command
from sluice.cli.terminal import CONTROL, moment, number
from sluice.documents import path_of


@command(app, "list")
def list_documents(
    session: Session,
    *,
    status: Annotated[
        str | None,
        typer.Option(help="pending, mineru_parsing, llm_processing, completed, failed or cancelled"),
    ] = None,
    approved: Annotated[
        bool | None, typer.Option("--approved/--not-approved", help="Whether the result is approved.")
    ] = None,
    corrected: Annotated[
        bool | None, typer.Option("--corrected/--not-corrected", help="Whether the result was corrected.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Part of the file name, or 1 or 2 first letters.")] = None,
    rule: Rule = None,
    batch: Annotated[int | None, typer.Option(metavar="BATCH", min=1, help="Only documents of this batch.")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DATE", help="First day, in UTC.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last day, in UTC.")] = None,
    limit: Limit = 50,
) -> None:
    """List your documents, newest first. --json prints one line each."""
    rows = session.client.documents.list(
        status=status, name=name, rule=rule, batch=batch, date_from=first, date_to=last, approved=approved,
        corrected=corrected, limit=limit,
    )  # fmt: skip
    print_list(session, ("TASK", "FILE", "STATUS", "RULE", "CREATED", "ERROR"), rows, summary)


def summary(task: models.Task) -> tuple[str, ...]:
    error = task.error.code if task.error else ""
    return (str(task.id), task.filename, task.status, rule_of(task), moment(task.created_at), error)


def rule_of(task: models.Task) -> str:
    return f"{task.rule_id}, version {task.rule_version}"


@command(app, "show")
def show(session: Session, task: Task) -> None:
    """Show a document: its progress, rule, and error."""
    found = session.client.documents.get(task)
    if session.terminal.as_json:
        session.terminal.json(found.raw)
    else:
        session.terminal.pairs(facts(found))


def facts(task: models.Task) -> Iterator[tuple[str, str]]:
    error, metadata = task.error, task.metadata
    yield "Document", f"{task.id}, {task.filename}"
    status = STAGES.get(task.status, task.status)
    yield "Status", status + (f" at {error.stage}: {error.detail} [{error.code}]" if error else "")
    yield "Rule", rule_of(task)
    if task.duplicate_of:
        yield "Same file as", f"document {task.duplicate_of}"
    yield "Pages", number((metadata.get("ocr") or {}).get("pages"))
    yield "E-invoice", einvoice_of(task.einvoice)
    yield "Attempts", ", ".join(f"{stage} {count}" for stage, count in metadata.get("attempts", {}).items() if count)
    yield "Warnings", "; ".join(task.warnings)
    if task.approved_at:
        yield "Approved", f"by {task.approved_by}, {moment(task.approved_at)}"
    if task.corrected:
        yield "Corrected", f"see: sluice document history {task.id}"
    yield "Created", moment(task.created_at)
    yield "Updated", moment(task.updated_at)


def einvoice_of(found: dict[str, Any] | None) -> str:
    """Return a line about the e-invoice, or "" without one. Servers of earlier releases do not return it."""
    if not found:
        return ""
    errors = ", ".join(sorted({error["code"] for error in found["errors"]}))
    return f"{found['syntax'].upper()} {found['profile']}, " + (f"errors: {errors}" if errors else "valid")


@command(app, "result")
def result(
    session: Session,
    task: Task,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="The parsed text as Markdown.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Only the data that the rule extracted.")] = False,
    original: Annotated[bool, typer.Option("--original", help="Without corrections.")] = False,
    answer: Annotated[bool, typer.Option("--answer", help="The model's response that made the document fail.")] = False,
) -> None:
    """Print a document's result as JSON, its text, or the response that made it fail."""
    if markdown + data + answer > 1:
        raise CliError("Use one of --markdown, --data and --answer.", code=Exit.USAGE)
    if markdown or answer:
        print_text(session, f"{path_of(task)}/{'markdown' if markdown else 'answer'}")
        return
    document = session.client.documents.get(task)
    if document.status in {"failed", "cancelled"}:
        raise failure(document)
    found = document.result
    if found is None:
        advice = f"Wait for it with: sluice document wait {task}"
        raise CliError("The document is not finished.", advice, code=Exit.REFUSED, document=document.raw)
    if data and "data" not in found:
        raise CliError("This rule produces Markdown only. Use --markdown.", code=Exit.NOT_FOUND)
    if original and document.corrected:
        found = session.client.get(f"{path_of(task)}/result", {"original": "true"})
    session.terminal.json(found["data"] if data else found)


def print_text(session: Session, path: str) -> None:
    """Stream a text to stdout. On a terminal, remove control characters, because documents are untrusted."""
    for text in codecs.iterdecode(session.client.stream(path), "utf-8", "replace"):
        session.terminal.write(CONTROL.sub("", text) if sys.stdout.isatty() else text)
