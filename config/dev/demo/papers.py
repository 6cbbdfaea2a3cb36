"""Conversion of real documents by the local provider, compared with their known text.

The documents are a PDF with text, a scan, and a Chinese page. With a language model, a rule converts an invoice too.
"""

import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from config.dev.demo.client import expect, poll
from config.dev.demo.promises import CheckFailed, require

FOLDER = Path(__file__).parent / "documents"
API = "/api/v1/etl"
WAIT_SECONDS = 5  # limit of the long poll, which returns earlier after a change
SHOWN_LINES = 12

Task = dict[str, Any]  # the response of `GET /api/v1/etl/tasks/{id}`
Show = Callable[[str, Task], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A document with its known text. `alike` is the required similarity of the result, from 0 to 1."""

    file: str
    what: str
    truth: str
    alike: float

    @property
    def text(self) -> str:
        return (FOLDER / self.truth).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A converted document. `alike` is the similarity of its text, from 0 to 1."""

    paper: Paper
    task: Task
    markdown: str
    alike: float


PAPERS = (
    Paper(file="invoice.pdf", what="a PDF with text", truth="invoice.txt", alike=0.98),
    Paper(file="invoice-scan.pdf", what="the same, scanned", truth="invoice.txt", alike=0.95),
    Paper(file="notice-zh-scan.jpg", what="a Chinese page, scanned", truth="notice-zh.txt", alike=0.95),
)


def submit(api: httpx2.Client, file: str, **fields: str) -> int:
    with (FOLDER / file).open("rb") as document:
        response = api.post(f"{API}/submit", files={"file": (file, document)}, data=fields)
    return int(expect(response, HTTPStatus.ACCEPTED).json()["task_id"])


def follow(api: httpx2.Client, task_id: int, *, check: Callable[[], None]) -> Iterator[Task]:
    """Yield the task after each change until it has ended. `check` raises if the stack has failed."""
    yield from poll(api, f"{API}/tasks/{task_id}?wait={WAIT_SECONDS}", lambda task: task["progress"], check=check)


def require_completed(task: Task) -> Task:
    error = task["error"] or {}
    if task["status"] != "completed":
        reason = f"{error.get('code')}: {error.get('detail')}"
        raise CheckFailed(f"{task['filename']} ended as {task['status']} in {error.get('stage')}: {reason}")
    return task


def read(api: httpx2.Client, console: Console, papers: Sequence[Paper], *, check: Callable[[], None]) -> list[Read]:
    """Submit all documents, show their progress, and return the verified results."""
    tasks = {paper.file: submit(api, paper.file) for paper in papers}
    with progress(console, [paper.file for paper in papers]) as show:
        found = []
        for paper in papers:
            task: Task = {}
            for task in follow(api, tasks[paper.file], check=check):
                show(paper.file, task)
            require_completed(task)
            found.append(verify(api, paper, task))
    return found


def verify(api: httpx2.Client, paper: Paper, task: Task) -> Read:
    markdown = expect(api.get(f"{API}/tasks/{task['task_id']}/markdown"), HTTPStatus.OK).text
    share = similarity(paper.text, markdown)
    require(share >= paper.alike, f"{share:.1%} of the text of {paper.file} was found; {paper.alike:.0%} are required")
    require(
        set(task["result"]) == {"markdown_s3_key", "provider_task_id", "metadata"}, "the result has unexpected fields"
    )
    return Read(paper=paper, task=task, markdown=markdown, alike=share)


def similarity(truth: str, markdown: str) -> float:
    """Return the share of characters in the same order, without Markdown syntax and whitespace."""
    return SequenceMatcher(None, letters(truth), letters(markdown), autojunk=False).ratio()


def letters(text: str) -> str:
    lines = (line for line in unicodedata.normalize("NFKC", text).splitlines() if not line.startswith("<!--"))
    return "".join(char for char in "".join(lines) if char.isalnum())


def invoice(api: httpx2.Client, console: Console, *, check: Callable[[], None]) -> Task:
    """Convert the invoice with the system rule `Invoice` and the language model of ETL_LLM_BASE_URL."""
    rules = expect(api.get(f"{API}/rules?limit=200"), HTTPStatus.OK).json()["results"]
    rule_id = next((rule["rule_id"] for rule in rules if rule["is_system"] and rule["name"] == "Invoice"), None)
    require(rule_id is not None, "there is no system rule Invoice")
    task: Task = {}
    with progress(console, ["invoice.pdf"]) as show:
        for task in follow(api, submit(api, "invoice.pdf", rule_id=str(rule_id)), check=check):
            show("invoice.pdf", task)
    return require_completed(task)


# ---- Output -------------------------------------------------------------------------------------------------------
@contextmanager
def progress(console: Console, names: Sequence[str]) -> Iterator[Show]:
    """Yield a function that shows the progress of a document as a bar, or as lines in a log."""
    with (bars if console.is_interactive else lines)(console, names) as show:
        yield show


@contextmanager
def bars(console: Console, names: Sequence[str]) -> Iterator[Show]:
    columns = TextColumn("   {task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
    with Progress(*columns, console=console) as live:
        rows: dict[str, TaskID] = {name: live.add_task(name, total=100) for name in names}

        def show(name: str, task: Task) -> None:
            live.update(rows[name], completed=task["progress"], description=f"{name}  {task['status']}")

        yield show


@contextmanager
def lines(console: Console, names: Sequence[str]) -> Iterator[Show]:
    began, width = time.monotonic(), max(map(len, names))

    def show(name: str, task: Task) -> None:
        seconds = time.monotonic() - began
        console.print(f"   {seconds:4.1f} s {name:{width}} {task['progress']:3} % {task['status']}", soft_wrap=True)

    yield show


def excerpt(markdown: str) -> Text:
    """Return the beginning of the Markdown, without interpreting it as rich's markup."""
    lines = [line for line in markdown.splitlines() if line.strip()]
    more = [f"… {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    return Text("\n".join(f"   │ {line}" for line in [*lines[:SHOWN_LINES], *more]), style="dim")
