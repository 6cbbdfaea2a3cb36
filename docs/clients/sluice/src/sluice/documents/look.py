"""Commands that show documents and their results."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sluice.documents.shared import ENDED, ROOT, Task, app, failure, path_of, warning_of
from sluice.errors import CliError, Exit
from sluice.lists import MOST, Limit, print_list
from sluice.progress import STAGES
from sluice.session import Session, command
from sluice.terminal import CONTROL, moment, number

SILENCE_SECONDS = 60.0


@command(app, "list")
def list_documents(
    session: Session,
    *,
    status: Annotated[
        str | None,
        typer.Option(help="pending, mineru_parsing, llm_processing, completed, failed or cancelled"),
    ] = None,
    limit: Limit = 50,
) -> None:
    """List your documents, newest first. --json prints one line each."""
    params = {"limit": min(limit, MOST), **({"status": status} if status else {})}
    rows = session.api.pages(f"{ROOT}/tasks", params, limit=limit)
    print_list(session, ("TASK", "FILE", "STATUS", "RULE", "CREATED", "ERROR"), rows, summary)


def summary(task: dict[str, Any]) -> tuple[str, ...]:
    error = task["error"]["code"] if task["error"] else ""
    rule = f"{task['rule_id']}, version {task['rule_version']}"
    return (str(task["task_id"]), task["filename"], task["status"], rule, moment(task["created_at"]), error)


@command(app, "show")
def show(session: Session, task: Task) -> None:
    """Show a document: its progress, rule, and error."""
    response = session.api.get(path_of(task))
    if session.terminal.as_json:
        session.terminal.json(response)
    else:
        session.terminal.pairs(facts(response))


def facts(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    error, metadata = task["error"], task["metadata"]
    status = STAGES.get(task["status"], task["status"])
    yield "Document", f"{task['task_id']}, {task['filename']}"
    yield "Status", status + (f" at {error['stage']}: {error['detail']} [{error['code']}]" if error else "")
    yield "Rule", f"{task['rule_id']}, version {task['rule_version']}"
    yield "Pages", number((metadata.get("ocr") or {}).get("pages"))
    yield "Attempts", ", ".join(f"{stage} {count}" for stage, count in metadata.get("attempts", {}).items() if count)
    yield "Warnings", "; ".join(map(warning_of, metadata.get("warnings", [])))
    yield "Created", moment(task["created_at"])
    yield "Updated", moment(task["updated_at"])


@command(app, "result")
def result(
    session: Session,
    task: Task,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="The parsed text as Markdown.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Only the data that the rule extracted.")] = False,
    answer: Annotated[bool, typer.Option("--answer", help="The model's response that made the document fail.")] = False,
) -> None:
    """Print a document's result as JSON, its text, or the response that made it fail."""
    if markdown + data + answer > 1:
        raise CliError("Use one of --markdown, --data and --answer.", code=Exit.USAGE)
    if markdown or answer:
        print_text(session, f"{path_of(task)}/{'markdown' if markdown else 'answer'}")
        return
    response = session.api.get(path_of(task))
    if response["status"] in {"failed", "cancelled"}:
        raise failure(response)
    if response["status"] not in ENDED:
        advice = f"Wait for it with: sluice document wait {task}"
        raise CliError("The document is not finished.", advice, code=Exit.REFUSED, document=response)
    if data and "data" not in response["result"]:
        raise CliError("This rule produces Markdown only. Use --markdown.", code=Exit.NOT_FOUND)
    session.terminal.json(response["result"]["data"] if data else response["result"])


def print_text(session: Session, path: str) -> None:
    """Stream a text to stdout. On a terminal, remove control characters: the document is untrusted."""
    with session.api.stream(path, read=SILENCE_SECONDS) as response:
        for block in response.iter_text():
            session.terminal.write(CONTROL.sub("", block) if sys.stdout.isatty() else block)
