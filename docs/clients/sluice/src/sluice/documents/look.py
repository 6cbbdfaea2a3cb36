"""Looking at documents: what there is, how far it is, what came of it."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sluice.documents.shared import ENDED, ROOT, Task, app, failure, path_of, warning_of
from sluice.errors import Exit, Trouble
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
    """Show a document: how far it is, by which rule, what went wrong."""
    told = session.api.get(path_of(task))
    if session.terminal.as_json:
        session.terminal.json(told)
    else:
        session.terminal.pairs(facts(told))


def facts(task: dict[str, Any]) -> Iterator[tuple[str, str]]:
    error, metadata = task["error"], task["metadata"]
    status = STAGES.get(task["status"], task["status"])
    yield "Document", f"{task['task_id']}, {task['filename']}"
    yield "Status", status + (f" at {error['stage']}: {error['detail']} [{error['code']}]" if error else "")
    yield "Rule", f"{task['rule_id']}, version {task['rule_version']}"
    yield "Pages", number((metadata.get("ocr") or {}).get("pages"))
    yield "Tries", ", ".join(f"{stage} {count}" for stage, count in metadata.get("attempts", {}).items() if count)
    yield "Warnings", "; ".join(map(warning_of, metadata.get("warnings", [])))
    yield "Created", moment(task["created_at"])
    yield "Changed", moment(task["updated_at"])


@command(app, "result")
def result(
    session: Session,
    task: Task,
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="The text that was read.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Only what the rule found.")] = False,
) -> None:
    """Print what came of a document, as JSON; or its text."""
    if markdown and data:
        raise Trouble("Take one of --markdown and --data.", code=Exit.USAGE)
    if markdown:
        print_markdown(session, task)
        return
    told = session.api.get(path_of(task))
    if told["status"] in {"failed", "cancelled"}:
        raise failure(told)
    if told["status"] not in ENDED:
        advice = f"Wait for it: sluice document wait {task}"
        raise Trouble("There is no result yet.", advice, code=Exit.REFUSED, document=told)
    if data and "data" not in told["result"]:
        raise Trouble("This rule makes no data, but Markdown: --markdown", code=Exit.NOT_FOUND)
    session.terminal.json(told["result"]["data"] if data else told["result"])


def print_markdown(session: Session, task: int) -> None:
    """Write the text as it comes. On a terminal without what the terminal would obey: it is a stranger's."""
    with session.api.stream(f"{path_of(task)}/markdown", read=SILENCE_SECONDS) as response:
        for block in response.iter_text():
            session.terminal.write(CONTROL.sub("", block) if sys.stdout.isatty() else block)
