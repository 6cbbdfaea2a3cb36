"""Real documents through the local provider: a text PDF, a scan, a Chinese page; with a language model also an invoice
by its rule. What comes back is compared with what stands on the paper."""

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

from config.dev.demo.client import PATIENCE_SECONDS, expect
from config.dev.demo.promises import DidNotHold, must

FOLDER = Path(__file__).parent / "documents"
API = "/api/v1/etl"
WAIT_SECONDS = 5  # of the long poll: an answer comes earlier when there is news
ENDED = {"completed", "failed", "cancelled"}
SHOWN_LINES = 12

Task = dict[str, Any]  # as `GET /api/v1/etl/tasks/{id}` shows it
Show = Callable[[str, Task], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A document, and what stands on it. `alike`: how much of the text must come back, from 0 to 1."""

    file: str
    what: str
    truth: str
    alike: float

    @property
    def text(self) -> str:
        return (FOLDER / self.truth).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A document that was read. `seconds` from the POST to the end; `alike` from 0 to 1."""

    paper: Paper
    task: Task
    markdown: str
    seconds: float
    alike: float


PAPERS = (
    Paper(file="invoice.pdf", what="a PDF with text", truth="invoice.txt", alike=0.98),
    Paper(file="invoice-scan.pdf", what="the same, scanned", truth="invoice.txt", alike=0.95),
    Paper(file="notice-zh-scan.jpg", what="a Chinese page, scanned", truth="notice-zh.txt", alike=0.95),
)


def submit(api: httpx2.Client, file: str, **fields: str) -> int:
    with (FOLDER / file).open("rb") as document:
        answer = api.post(f"{API}/submit", files={"file": (file, document)}, data=fields)
    return int(expect(answer, HTTPStatus.ACCEPTED).json()["task_id"])


def follow(api: httpx2.Client, task_id: int, *, check: Callable[[], None]) -> Iterator[Task]:
    """Yield the task whenever there is news, its end included. `check` raises when it cannot go on."""
    last, since = None, time.monotonic()
    while True:
        task = expect(api.get(f"{API}/tasks/{task_id}?wait={WAIT_SECONDS}"), HTTPStatus.OK).json()
        yield task
        if task["status"] in ENDED:
            return
        check()
        state = (task["status"], task["progress"])
        if state != last:
            last, since = state, time.monotonic()
        must(time.monotonic() - since < PATIENCE_SECONDS, f"nothing has moved for {PATIENCE_SECONDS} s: {state}")


def ended_well(task: Task) -> Task:
    error = task["error"] or {}
    if task["status"] != "completed":
        said = f"{error.get('code')}: {error.get('detail')}"
        raise DidNotHold(f"{task['filename']} ended as {task['status']} in {error.get('stage')}: {said}")
    return task


def read(api: httpx2.Client, console: Console, papers: Sequence[Paper], *, check: Callable[[], None]) -> list[Read]:
    """Submit them all, show how they go on, and return them when each has come back right."""
    began = time.monotonic()
    tasks = {paper.file: submit(api, paper.file) for paper in papers}
    with progress(console, [paper.file for paper in papers]) as show:
        found = []
        for paper in papers:
            task: Task = {}
            for task in follow(api, tasks[paper.file], check=check):
                show(paper.file, task)
            ended_well(task)
            found.append(judged(api, paper, task, seconds=time.monotonic() - began))
    return found


def judged(api: httpx2.Client, paper: Paper, task: Task, *, seconds: float) -> Read:
    markdown = expect(api.get(f"{API}/tasks/{task['task_id']}/markdown"), HTTPStatus.OK).text
    share = likeness(paper.text, markdown)
    must(share >= paper.alike, f"{share:.1%} of {paper.file} came back, and it should be {paper.alike:.0%} or more")
    must(set(task["result"]) == {"markdown_s3_key", "provider_task_id", "metadata"}, "the wrapper has other fields")
    return Read(paper=paper, task=task, markdown=markdown, seconds=seconds, alike=share)


def likeness(truth: str, markdown: str) -> float:
    """Return which share of the characters came back in their order; the signs of Markdown and white space aside."""
    return SequenceMatcher(None, letters(truth), letters(markdown), autojunk=False).ratio()


def letters(text: str) -> str:
    lines = (line for line in unicodedata.normalize("NFKC", text).splitlines() if not line.startswith("<!--"))
    return "".join(char for char in "".join(lines) if char.isalnum())


def invoice(api: httpx2.Client, console: Console, *, check: Callable[[], None]) -> Task:
    """Run the invoice through the shipped rule `invoice` and the language model of ETL_LLM_BASE_URL."""
    rules = expect(api.get(f"{API}/rules?limit=200"), HTTPStatus.OK).json()["results"]
    rule_id = next((rule["rule_id"] for rule in rules if rule["is_system"] and rule["name"] == "Invoice"), None)
    must(rule_id is not None, "there is no system rule called Invoice")
    task: Task = {}
    with progress(console, ["invoice.pdf"]) as show:
        for task in follow(api, submit(api, "invoice.pdf", rule_id=str(rule_id)), check=check):
            show("invoice.pdf", task)
    return ended_well(task)


# ---- On the screen --------------------------------------------------------------------------------------------------
@contextmanager
def progress(console: Console, names: Sequence[str]) -> Iterator[Show]:
    """Give a function that shows how far a document is: a bar for each, or lines in a log."""
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
    """Return the beginning of the Markdown, as it is: what documents say is never markup here."""
    lines = [line for line in markdown.splitlines() if line.strip()]
    more = [f"… {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    return Text("\n".join(f"   │ {line}" for line in [*lines[:SHOWN_LINES], *more]), style="dim")
