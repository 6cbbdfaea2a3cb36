"""Scenes of the documents pages: empty, busy with 1,000 rows, queued, running, failed, and with all results."""

import io
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from PIL import Image

from config.platform import exact_json, storage
from etl import runstate
from etl.core.errors import FileEncrypted, LlmUnavailable, SchemaInvalid, explain
from etl.core.stage_context import StageContext, TaskWarning, Usage
from etl.core.states import Stage, Status
from etl.models import DocumentBatch, Task
from etl.pipeline import actions, artifacts, completion, engines, page_images, review
from etl.pipeline.stages import ocr, postprocess
from etl.providers.base import OCRResult, Page, page_marker
from etl.runstate import RunState
from rules.models import Rule
from tests.browser.scenes import Scene
from tests.integration.etl_factories import make_batch, make_row, make_rule, make_task
from tests.integration.etl_progress import begin, complete, fail
from tests.samples import sample
from tests.samples.make import INVOICE, printed

MANY = 1_000
CITED_WORDS = {"/title": "Invoice", "/total": "Total"}  # by pointer; the word identifies the cited cell
INVOICE_PAGES = (
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
    TaskWarning(code="low_confidence", detail="The recognized text of the page may have errors.", page=2),
    TaskWarning(code="value_not_in_text", detail="These values were not found in the document: /discount."),
]


# ---- Tasks in all states --------------------------------------------------------------------------------------------
def finish_ocr(task: Task, texts: tuple[str, ...] = INVOICE_PAGES, *, confidence: float | None = None) -> None:
    """Finish OCR with these pages. The last page was recognized with this confidence."""
    markdown, pages = "", []
    for number, text in enumerate(texts, 1):
        markdown += f"{page_marker(number)}\n\n"
        page_confidence = confidence if number == len(texts) else None
        method = "text" if page_confidence is None else "ocr"
        start, end = len(markdown), len(markdown) + len(text)
        pages.append(Page(number=number, start=start, end=end, method=method, confidence=page_confidence))
        markdown += f"{text}\n\n"
    facts = {"pages": len(texts), "duration_ms": 840, "version": "1", "ocr_pages": int(confidence is not None)}
    result = OCRResult(markdown=markdown, pages=tuple(pages), provider="local", provider_task_id="t", metadata=facts)
    state = begin(task)
    completion.advance(state, artifacts.store_ocr(state, result, warnings=[], attempts=1, check=lambda: None))


def finish_postprocessing(task: Task, data: Any = None, citations: Any = (), warnings: Any = ()) -> None:
    """Finish post-processing, as a rule with a model does."""
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


def finish_with_text(task: Task) -> None:
    """Finish post-processing, as a rule that keeps the text does."""
    state = begin(task, Stage.POSTPROCESS)
    provenance: dict[str, Any] = {"strategy": None, "model": None, "usage": Usage().as_dict(), "warnings": []}
    output = {"markdown_s3_key": state.markdown_key, "provider_task_id": "t", "metadata": {"provenance": provenance}}
    completion.complete(state, artifacts.commit(artifacts.output_key(state), output, check=lambda: None))


def fail_to_extract(task: Task) -> None:
    state = begin(task, Stage.POSTPROCESS)
    invalid = SchemaInvalid("The answer does not fit at /total: not a number. The model was corrected twice.")
    error = explain(invalid, stage=state.phase)
    completion.record_end(runstate.fail(state, error=error, usage=Usage(prompt_tokens=900, calls=3).as_dict()))


def invoices(user: User) -> Rule:
    return Rule.objects.filter(owner=user, name="Invoices").first() or make_rule(user, mode="llm", name="Invoices")


def make_pdf(user: User, name: str = "invoice-0417.pdf", **changes: Any) -> Task:
    return make_task(user, rule=invoices(user), filename=name, size=88_702, **changes)


# ---- Scenes ---------------------------------------------------------------------------------------------------------
def newest(user: User) -> str:
    return f"/app/documents/{Task.objects.filter(user=user).latest('task_id').pk}"


def busy(user: User) -> None:
    """Create 1,000 documents in all states."""
    rule, now = invoices(user), timezone.now()
    error = explain(FileEncrypted(), stage=Stage.OCR)
    ends: list[dict[str, Any]] = [
        {"status": Status.COMPLETED, "progress": 100, "result": {}, "metadata": {"ocr": {"pages": 3}}},
        {"status": Status.FAILED, "error": error},
        {"status": Status.CANCELLED},
        {"status": Status.PENDING},
    ]
    tasks = Task.objects.bulk_create(
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
    for task in tasks:
        task.created_at = now - timedelta(minutes=7 * (MANY - task.pk % MANY))
    Task.objects.bulk_update(tasks, ["created_at"], batch_size=200)
    running(user)
    waiting(user)


def name_of(number: int) -> str:
    return f"invoice-{number:04}" if number % 9 else f"{'a-name-that-goes-on-and-on-' * 5}{number}"


def waiting(user: User) -> None:
    make_row(user, rule=invoices(user), filename="another.pdf")
    make_pdf(user)


def running(user: User) -> None:
    task = make_pdf(user)
    runstate.record_progress(begin(task), 22)


def extracting(user: User) -> None:
    task = make_pdf(user)
    finish_ocr(task)
    runstate.record_progress(begin(task, Stage.POSTPROCESS), 70)


def failed_early(user: User) -> None:
    fail(make_pdf(user, "letter-with-a-password.pdf"))


def failed_late(user: User) -> None:
    task = make_pdf(user)
    finish_ocr(task)
    storage.put(artifacts.answer_key(task), b'{"data": {}}', content_type=artifacts.TEXT)
    fail_to_extract(task)


def completed(user: User, **changes: Any) -> None:
    task = make_pdf(user, **changes)
    finish_ocr(task, confidence=0.71)
    finish_postprocessing(task, DATA, CITATIONS, WARNINGS)


def plain(user: User) -> None:
    task = make_task(user, rule=make_rule(user, name="Plain Markdown"), filename="notice.txt")
    finish_ocr(task)
    finish_with_text(task)


def long_document(user: User) -> None:
    """Create a document of 300 pages with 10,000 items."""
    task = make_pdf(user, "report.pdf")
    texts = tuple(f"# Chapter {n}\n\n" + f"Paragraph of page {n}. " * 150 for n in range(1, 301))
    finish_ocr(task, texts)
    items = [{"no": n, "name": f"Item {n}", "text": "word " * 20} for n in range(10_000)]
    cited = [{"pointer": "/items/5/no", "page": 250, "bbox": None, "quote": "Chapter 250", "match": "exact"}]
    finish_postprocessing(task, {"items": items, "title": "Report"}, cited)


def with_page_images(user: User) -> None:
    """Create an invoice of two pages that the local provider has read. The images of its first page are drawn."""
    task = make_pdf(user, content=sample("invoice.pdf").read_bytes(), kind="pdf")
    state = read_locally(task)
    stored = artifacts.find_ocr(state)
    assert stored
    lines = artifacts.load_ocr(stored).lines[1]
    cited = {
        pointer: next(cell for line in lines for cell in line if word in cell[-1])
        for pointer, word in CITED_WORDS.items()
    }
    citations = [
        {"pointer": pointer, "page": 1, "bbox": cell[:4], "quote": cell[-1], "match": "exact"}
        for pointer, cell in cited.items()
    ]
    finish_postprocessing(task, {pointer.strip("/"): cell[-1] for pointer, cell in cited.items()}, citations)


def reviewed(user: User) -> None:
    """Create a result that was corrected and approved."""
    completed(user)
    task = Task.objects.latest("task_id")
    changes = {"total": exact_json.Number("646.50"), "supplier": {"name": "Bright Lamps Ltd", "vat": "DE 811 128 135"}}
    row = review.correct(task, lambda data: data | changes, user=user, if_match="*")
    review.approve(row, user=user)


def extracted_again(user: User) -> None:
    """Create a completed document that is extracted again. The first attempt of the new run failed."""
    completed(user)
    task = actions.retry(task=Task.objects.latest("task_id"), from_stage=Stage.POSTPROCESS)
    failure = {"code": "llm_unavailable", "detail": LlmUnavailable.detail}
    state = begin(task, Stage.POSTPROCESS)
    runstate.wait(state, delay=0, wakes_up=True, failure=failure)
    runstate.record_progress(begin(task, Stage.POSTPROCESS), 70, step="4/10")


def many_pages(user: User, count: int = 500) -> Task:
    """Create a document with stored images of all pages."""
    task = make_pdf(user, "report.pdf", kind="pdf")
    finish_ocr(task, tuple(f"# Page {number}" for number in range(1, count + 1)))
    finish_postprocessing(task, {"title": "Report"})
    image = io.BytesIO()
    Image.new("RGB", (60, 85), "white").save(image, "WEBP")
    for number in range(1, count + 1):
        for width in (200, 1240):
            key = page_images.key_of(Task.objects.get(pk=task.pk), number, page_images.stored_width(width))
            storage.put(key, image.getvalue(), content_type=page_images.MEDIA_TYPE)
    return task


def read_locally(task: Task) -> RunState:
    """Read a PDF with the local provider, and draw its first page."""
    state, context = begin(task), StageContext(seconds=120)
    try:
        completion.advance(state, ocr.convert(state, context))
        for width in page_images.WIDTHS:
            page_images.draw(task.pk, page=1, width=width)
    finally:
        engines.local().close()
        engines.provider().close()
    return state


def einvoice(user: User, xml: bytes = b"") -> None:
    """Create an e-invoice in a PDF that is read without a model. The sample's XML is the default."""
    default = sample("einvoice.xml").read_bytes()
    content = printed(INVOICE, attached={"factur-x.xml": xml or default})
    rule = make_rule(user, mode="einvoice", name="E-invoices", json_schema={"type": "object"})
    task = make_task(user, rule=rule, filename="einvoice.pdf", content=content, kind="pdf")
    read_locally(task)
    state = begin(task, Stage.POSTPROCESS)
    completion.complete(state, postprocess.run(state, StageContext(seconds=60)))


def wrong_einvoice(user: User) -> None:
    """Create an e-invoice whose amount due equals neither the amount on its page nor the sum."""
    amount = b"<ram:DuePayableAmount>2363.58"
    einvoice(user, sample("einvoice.xml").read_bytes().replace(amount, amount.replace(b"2363", b"9363")))


REFUSED = [
    {"filename": "2026/holiday.heic", "code": "unsupported_format"},
    {"filename": f"{'a-folder-that-goes-on-and-on/' * 4}empty.pdf", "code": "empty_document"},
]


def batch_running(user: User) -> None:
    _, tasks = make_batch(user, 12, rule=invoices(user), name="Invoices of March")
    for task in tasks[:5]:
        complete(task)
    fail(tasks[5])
    begin(tasks[6])


def batch_ended(user: User) -> None:
    _, tasks = make_batch(user, 4, rule=invoices(user), refused=REFUSED)
    complete(tasks[0])
    complete(tasks[1])
    fail(tasks[2])
    finish_ocr(tasks[3])
    fail_to_extract(tasks[3])


def batches(user: User) -> None:
    batch_ended(user)
    batch_running(user)


def newest_batch(user: User) -> str:
    return f"/app/documents/batches/{DocumentBatch.objects.filter(user=user).latest('batch_id').pk}"


SCENES = [
    Scene(name="batches-empty", path=lambda _: "/app/documents/batches"),
    Scene(name="batches", path=lambda _: "/app/documents/batches", prepare=batches),
    Scene(name="batch-running", path=newest_batch, prepare=batch_running),
    Scene(name="batch-ended", path=newest_batch, prepare=batch_ended),
    Scene(name="documents-empty", path=lambda _: "/app/documents"),
    Scene(name="documents-busy", path=lambda _: "/app/documents", prepare=busy),
    Scene(
        name="documents-found", path=lambda _: "/app/documents?q=invoice&status=completed&from=2020-01-01", prepare=busy
    ),
    Scene(name="document-waiting", path=newest, prepare=waiting),
    Scene(name="document-reading", path=newest, prepare=running),
    Scene(name="document-extracting", path=newest, prepare=extracting),
    Scene(name="document-failed-reading", path=newest, prepare=failed_early),
    Scene(name="document-failed-extracting", path=newest, prepare=failed_late),
    Scene(name="document-completed", path=newest, prepare=completed),
    Scene(name="document-pages", path=newest, prepare=with_page_images),
    Scene(name="document-einvoice", path=newest, prepare=einvoice),
    Scene(name="document-einvoice-wrong", path=newest, prepare=wrong_einvoice),
    Scene(name="document-source", path=lambda user: f"{newest(user)}?view=source&json=raw", prepare=completed),
    Scene(name="document-plain", path=newest, prepare=plain),
    Scene(name="document-reviewed", path=newest, prepare=reviewed),
    Scene(name="document-edit", path=lambda user: f"{newest(user)}/edit", prepare=completed),
    Scene(name="document-edit-pages", path=lambda user: f"{newest(user)}/edit", prepare=with_page_images),
    Scene(name="document-again", path=newest, prepare=extracted_again),
    Scene(name="document-long", path=newest, prepare=long_document),
]
