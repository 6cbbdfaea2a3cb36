"""Scenes of the documents pages: empty, busy with 1,000 rows, queued, running, failed, and with all results."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from config.platform import storage
from etl import runstate
from etl.core.errors import FileEncrypted, SchemaInvalid, explain
from etl.core.stage_context import StageContext, TaskWarning, Usage
from etl.core.states import Stage, Status
from etl.models import Task
from etl.pipeline import artifacts, completion, engines, page_images
from etl.pipeline.stages import ocr
from etl.providers.base import OCRResult, Page, page_marker
from rules.models import Rule
from tests.browser.scenes import Scene
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.etl_progress import begin, fail
from tests.samples import sample

MANY = 1_000
SHOWN = {"/title": "Invoice", "/total": "Total"}  # a word of the cited cell by pointer
PAPER = (
    """# Invoice INV-2024-17

Bright Lamps Ltd, 4 Mill Lane

Date: 29 February 2024

| Item | Quantity | Price |
| :-- | --: | --: |
| Desk lamp | 12 | 31.50 EUR |
| Floor lamp | 3 | 89.00 EUR |

Total due: **645.00 EUR**""",
    """## Terms

Payment within 30 days. See [our terms](https://lamps.example/terms).

<table><tr><th colspan='2'>Bank</th></tr><tr><td>IBAN</td><td>DE02 1203 0000 0000 2020 51</td></tr></table>""",
)
DATA = {
    "number": "INV-2024-17",
    "date": "2024-02-29",
    "supplier": {"name": "Bright Lamps Ltd", "vat": None},
    "lines": [
        {"item": "Desk lamp", "quantity": 12, "price": 31.5},
        {"item": "Floor lamp", "quantity": 3, "price": 89.0},
    ],
    "total": 645.0,
    "iban": "DE02 1203 0000 0000 2020 51",
    "discount": 19,
}
CITATIONS = [
    {"pointer": "/number", "page": 1, "bbox": None, "quote": "Invoice INV-2024-17", "match": "exact"},
    {"pointer": "/date", "page": 1, "bbox": None, "quote": "Date: 29 February 2024", "match": "normalized"},
    {"pointer": "/supplier/name", "page": 1, "bbox": None, "quote": "Bright Lamps Ltd", "match": "exact"},
    {"pointer": "/lines/0/item", "page": 1, "bbox": None, "quote": "Desk lamp | 12", "match": "exact"},
    {"pointer": "/lines/0/quantity", "page": 1, "bbox": None, "quote": "| Desk lamp | 12 |", "match": "ambiguous"},
    {"pointer": "/total", "page": 1, "bbox": None, "quote": "Total due: **645.00 EUR**", "match": "normalized"},
    {"pointer": "/iban", "page": 2, "bbox": None, "quote": "<td>DE02 1203 0000 0000 2020 51</td>", "match": "exact"},
]
WARNINGS = [
    TaskWarning(code="low_confidence", detail="Recognition is unsure about the text of the page.", page=2),
    TaskWarning(code="value_not_in_text", detail="These values were not found in the document: /discount."),
]


# ---- Tasks in all states --------------------------------------------------------------------------------------------
def read_paper(task: Task, texts: tuple[str, ...] = PAPER, *, confidence: float | None = None) -> None:
    """Finish OCR with these pages, of which the last one was recognized with this confidence."""
    markdown, pages = "", []
    for number, text in enumerate(texts, 1):
        markdown += f"{page_marker(number)}\n\n"
        sure = confidence if number == len(texts) else None
        method = "text" if sure is None else "ocr"
        pages.append(
            Page(number=number, start=len(markdown), end=len(markdown) + len(text), method=method, confidence=sure)
        )
        markdown += f"{text}\n\n"
    facts = {"pages": len(texts), "duration_ms": 840, "version": "1", "ocr_pages": int(confidence is not None)}
    result = OCRResult(markdown=markdown, pages=tuple(pages), provider="local", provider_task_id="t", metadata=facts)
    state = begin(task)
    completion.advance(state, artifacts.keep_ocr(state, result, warnings=[], attempts=1, check=lambda: None))


def complete_paper(task: Task, data: Any = None, citations: Any = (), warnings: Any = ()) -> None:
    """Finish post-processing like a rule with a model."""
    state = begin(task, Stage.POSTPROCESS)
    provenance = {
        "strategy": "direct-json",
        "model": "small-model",
        "usage": Usage(prompt_tokens=1432, completion_tokens=210, calls=2).as_dict(),
        "warnings": [warning.as_dict() for warning in warnings],
    }
    output = {
        "markdown_s3_key": state.markdown_key,
        "provider_task_id": "t",
        "metadata": {"provenance": provenance},
        "data": data,
        "citations": list(citations),
    }
    completion.complete(state, artifacts.commit(artifacts.output_key(state), output, check=lambda: None))


def complete_plainly(task: Task) -> None:
    """Finish post-processing with a rule that keeps the text."""
    state = begin(task, Stage.POSTPROCESS)
    provenance: dict[str, Any] = {"strategy": None, "model": None, "usage": Usage().as_dict(), "warnings": []}
    output = {"markdown_s3_key": state.markdown_key, "provider_task_id": "t", "metadata": {"provenance": provenance}}
    completion.complete(state, artifacts.commit(artifacts.output_key(state), output, check=lambda: None))


def fail_to_extract(task: Task) -> None:
    state = begin(task, Stage.POSTPROCESS)
    invalid = SchemaInvalid("The answer does not fit at /total: not a number. The model was corrected twice.")
    error = explain(invalid, stage=state.phase)
    completion.settle(runstate.fail(state, error=error, usage=Usage(prompt_tokens=900, calls=3).as_dict()))


def invoices(user: User) -> Rule:
    return Rule.objects.filter(owner=user, name="Invoices").first() or make_rule(user, mode="llm", name="Invoices")


def paper(user: User, name: str = "invoice-0417.pdf", **changes: Any) -> Task:
    return make_task(user, rule=invoices(user), filename=name, size=88_702, **changes)


# ---- Scenes ---------------------------------------------------------------------------------------------------------
def newest(user: User) -> str:
    return f"/app/documents/{Task.objects.filter(user=user).latest('task_id').pk}"


def busy(user: User) -> None:
    """1,000 documents in all states."""
    rule, now = invoices(user), timezone.now()
    error = explain(FileEncrypted(), stage=Stage.OCR)
    ends: list[dict[str, Any]] = [
        {"status": Status.COMPLETED, "progress": 100, "result": {}, "metadata": {"ocr": {"pages": 3}}},
        {"status": Status.FAILED, "error": error},
        {"status": Status.CANCELLED},
        {"status": Status.PENDING},
    ]
    made = Task.objects.bulk_create(
        Task(
            user=user,
            rule=rule,
            rule_version=1,
            filename=f"{name_of(n)}.pdf",
            kind="pdf",
            size=10_000 * n,
            **ends[n % 4],
        )
        for n in range(MANY)
    )
    for task in made:
        task.created_at = now - timedelta(minutes=7 * (MANY - task.pk % MANY))
    Task.objects.bulk_update(made, ["created_at"], batch_size=200)
    running(user)
    waiting(user)


def name_of(number: int) -> str:
    return f"invoice-{number:04}" if number % 9 else f"{'a-name-that-goes-on-and-on-' * 5}{number}"


def waiting(user: User) -> None:
    make_row(user, rule=invoices(user), filename="another.pdf")
    paper(user)


def running(user: User) -> None:
    task = paper(user)
    runstate.note_progress(begin(task), 22)


def extracting(user: User) -> None:
    task = paper(user)
    read_paper(task)
    runstate.note_progress(begin(task, Stage.POSTPROCESS), 70)


def failed_early(user: User) -> None:
    fail(paper(user, "letter-with-a-password.pdf"))


def failed_late(user: User) -> None:
    task = paper(user)
    read_paper(task)
    storage.put(artifacts.answer_key(task), b'{"data": {}}', content_type=artifacts.TEXT)
    fail_to_extract(task)


def completed(user: User, **changes: Any) -> None:
    task = paper(user, **changes)
    read_paper(task, confidence=0.71)
    complete_paper(task, DATA, CITATIONS, WARNINGS)


def plain(user: User) -> None:
    task = make_task(user, rule=make_rule(user, name="Plain Markdown"), filename="notice.txt")
    read_paper(task)
    complete_plainly(task)


def long(user: User) -> None:
    """300 pages, and 10,000 items."""
    task = paper(user, "report.pdf")
    texts = tuple(f"# Chapter {n}\n\n" + f"Paragraph of page {n}. " * 150 for n in range(1, 301))
    read_paper(task, texts)
    items = [{"no": n, "name": f"Item {n}", "text": "word " * 20} for n in range(10_000)]
    cited = [{"pointer": "/items/5/no", "page": 250, "bbox": None, "quote": "Chapter 250", "match": "exact"}]
    complete_paper(task, {"items": items, "title": "Report"}, cited)


def pictured(user: User) -> None:
    """An invoice of two pages, read by the local provider, whose images a worker has drawn."""
    content = sample("invoice.pdf").read_bytes()
    task = paper(user, content=content, kind="pdf")
    state, context = begin(task), StageContext(seconds=120)
    try:
        completion.advance(state, ocr.convert(state, context))
        for width in page_images.WIDTHS:
            page_images.draw(task.pk, page=1, width=width)
    finally:
        engines.local().close()
        engines.provider().close()
    stored = artifacts.find_ocr(state)
    assert stored
    lines = artifacts.load_ocr(stored).lines[1]
    cited = {
        pointer: next(cell for line in lines for cell in line if word in cell[-1]) for pointer, word in SHOWN.items()
    }
    citations = [
        {"pointer": pointer, "page": 1, "bbox": cell[:4], "quote": cell[-1], "match": "exact"}
        for pointer, cell in cited.items()
    ]
    complete_paper(task, {pointer.strip("/"): cell[-1] for pointer, cell in cited.items()}, citations)


SCENES = [
    Scene(name="documents-empty", path=lambda _: "/app/documents"),
    Scene(name="documents-busy", path=lambda _: "/app/documents", prepare=busy),
    Scene(name="document-waiting", path=newest, prepare=waiting),
    Scene(name="document-reading", path=newest, prepare=running),
    Scene(name="document-extracting", path=newest, prepare=extracting),
    Scene(name="document-failed-reading", path=newest, prepare=failed_early),
    Scene(name="document-failed-extracting", path=newest, prepare=failed_late),
    Scene(name="document-completed", path=newest, prepare=completed),
    Scene(name="document-pages", path=newest, prepare=pictured),
    Scene(name="document-source", path=lambda user: f"{newest(user)}?view=source&json=raw", prepare=completed),
    Scene(name="document-plain", path=newest, prepare=plain),
    Scene(name="document-long", path=newest, prepare=long),
]
