"""Conversion of real documents by the local provider, compared with their known text.

The documents are a PDF with text, a scan, a Chinese page, and an e-invoice. With a language model, a rule converts an
invoice too.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.text import Text

from config.dev.demo.checks import CheckFailed, require
from config.dev.demo.client import expect, poll

FOLDER = Path(__file__).parent / "documents"
API = "/api/v1/etl"
WAIT_SECONDS = 5  # limit of the long poll, which returns earlier after a change
SHOWN_LINES = 12

Task = dict[str, Any]  # the response of `GET /api/v1/etl/tasks/{id}`


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDocument:
    """A document with its known text. `min_similarity` is from 0 to 1."""

    file: str
    description: str
    text_file: str
    min_similarity: float

    @property
    def text(self) -> str:
        return (FOLDER / self.text_file).read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedDocument:
    """A converted document. `similarity` compares its text with the known text, from 0 to 1."""

    sample: SampleDocument
    task: Task
    markdown: str
    similarity: float


SAMPLES = (
    SampleDocument(
        file="invoice.pdf", description="a PDF with text", text_file="invoice.txt", min_similarity=0.98
    ),
    SampleDocument(
        file="invoice-scan.pdf", description="the same, scanned", text_file="invoice.txt", min_similarity=0.95
    ),
    SampleDocument(
        file="notice-zh-scan.jpg", description="a Chinese page, scanned", text_file="notice-zh.txt",
        min_similarity=0.95,
    ),
)  # fmt: skip


def submit(api: httpx2.Client, file: str, **fields: str) -> int:
    with (FOLDER / file).open("rb") as document:
        response = api.post(f"{API}/submit", files={"file": (file, document)}, data=fields)
    return int(expect(response, HTTPStatus.ACCEPTED).json()["task_id"])


def wait(api: httpx2.Client, console: Console, task_id: int, *, check: Callable[[], None]) -> Task:
    """Show the task's progress until it has completed, and return it. `check` raises if the stack has failed."""
    task: Task = {}
    with console.status("") as status:
        path = f"{API}/tasks/{task_id}?wait={WAIT_SECONDS}"
        for task in poll(api, path, lambda task: task["progress"], check=check):
            status.update(f"{task['filename']}  {task['progress']} %  {task['status']}")
    return require_completed(task)


def require_completed(task: Task) -> Task:
    error = task["error"] or {}
    if task["status"] != "completed":
        reason = f"{error.get('code')}: {error.get('detail')}"
        raise CheckFailed(f"{task['filename']} ended as {task['status']} in {error.get('stage')}: {reason}")
    return task


def convert(
    api: httpx2.Client, console: Console, samples: Sequence[SampleDocument], *, check: Callable[[], None]
) -> list[ConvertedDocument]:
    """Submit all documents, wait for their results, and verify them."""
    tasks = [submit(api, sample.file) for sample in samples]
    return [
        verify(api, sample, wait(api, console, task, check=check)) for sample, task in zip(samples, tasks, strict=True)
    ]


def verify(api: httpx2.Client, sample: SampleDocument, task: Task) -> ConvertedDocument:
    markdown = expect(api.get(f"{API}/tasks/{task['task_id']}/markdown"), HTTPStatus.OK).text
    found, required = similarity(sample.text, markdown), sample.min_similarity
    require(found >= required, f"{found:.1%} of the text of {sample.file} was found; {required:.0%} are required")
    require(
        set(task["result"]) == {"markdown_s3_key", "provider_task_id", "metadata"}, "the result has unexpected fields"
    )
    return ConvertedDocument(sample=sample, task=task, markdown=markdown, similarity=found)


def similarity(text: str, markdown: str) -> float:
    """Return the share of letters and digits that both texts have in the same order, from 0 to 1."""
    return SequenceMatcher(None, letters(text), letters(markdown), autojunk=False).ratio()


def letters(text: str) -> str:
    lines = (line for line in unicodedata.normalize("NFKC", text).splitlines() if not line.startswith("<!--"))
    return "".join(char for char in "".join(lines) if char.isalnum())


def invoice(api: httpx2.Client, console: Console, *, check: Callable[[], None]) -> Task:
    """Convert the invoice with the system rule `Invoice` and the language model of ETL_LLM_BASE_URL."""
    return wait(api, console, submit(api, "invoice.pdf", rule_id=system_rule(api, "Invoice")), check=check)


def system_rule(api: httpx2.Client, name: str) -> str:
    rules = expect(api.get(f"{API}/rules?limit=200"), HTTPStatus.OK).json()["results"]
    rule_id = next((rule["rule_id"] for rule in rules if rule["is_system"] and rule["name"] == name), None)
    require(rule_id is not None, f"there is no system rule {name}")
    return str(rule_id)


# The amounts in the XML inside `einvoice.pdf`.
EINVOICE_DIGITS = b'"totals":{"net":1986.20,"tax":377.38,"gross":2363.58,"due":2363.58}'


def einvoice(api: httpx2.Client, console: Console, *, check: Callable[[], None]) -> Task:
    """Read an e-invoice with the system rule `E-invoice`, without a model, and verify the digits of its amounts."""
    task = wait(api, console, submit(api, "einvoice.pdf", rule_id=system_rule(api, "E-invoice")), check=check)
    require(task["einvoice"] is not None and task["einvoice"]["valid"], f"no valid e-invoice: {task['einvoice']}")
    content = expect(api.get(f"{API}/tasks/{task['task_id']}"), HTTPStatus.OK).content
    require(EINVOICE_DIGITS in content, "the result does not have the digits of the XML")
    return task


def excerpt(markdown: str) -> Text:
    """Return the beginning of the Markdown, without interpreting it as rich's markup."""
    lines = [line for line in markdown.splitlines() if line.strip()]
    more = [f"… {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    return Text("\n".join(f"   │ {line}" for line in [*lines[:SHOWN_LINES], *more]), style="dim")
