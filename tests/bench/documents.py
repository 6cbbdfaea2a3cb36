"""P11: documents with the local provider.

- Text: 100 pages of prose, and 100 pages of an invoice with headings and a table, whose layout needs the model. Both
  alternate with a bare loop of pypdfium2's text extraction over the same file.
- Scans: the stage, from its claim to the stored Markdown, takes at most 1.18 times as long as its OCR engine, so that
  the engine takes 85 % of the time.
- Absolute bounds: wrong characters per sample, 3 s for 100 pages of prose, 0.2 s for a page of the invoice, and 1,024
  MB for a worker and its reader process over many documents. Seconds depend on the machine and its load.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pypdfium2
from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings

from config.platform import storage
from etl import runstate
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import artifacts, engines, execution
from etl.providers.base import Document, OCRResult
from etl.providers.local import LocalProvider
from rules.models import Rule
from tests import samples
from tests.bench import site
from tests.bench.alternation import alternate, log_progress
from tests.bench.report import Report
from tests.integration.etl_factories import make_rule
from tests.samples import make

MEGABYTE = 1024**2
LOOP = "pypdfium2's loop"
COLD, WARM = "local provider, cold", "local provider, warm"
PROSE_PAGE_SECONDS, LAYOUT_PAGE_SECONDS = 0.03, 0.2
MEMORY = 1024  # MB
STAGE_PER_ENGINE = 1 / 0.85
SCAN, SCAN_TRUTH, SCAN_WRONG = "invoice-scan.pdf", "invoice.txt", 0.03
# Each sample, its true text, and the maximum share of wrong characters.
SAMPLES = (
    ("invoice.pdf", "invoice.txt", 0.0),
    ("notice-zh.pdf", "notice-zh.txt", 0.0),
    (SCAN, SCAN_TRUTH, SCAN_WRONG),
    ("notice-zh-scan.jpg", "notice-zh.txt", 0.05),
    ("invoice-mixed.pdf", "invoice.txt", 0.03),
)
# Maximum share of letters missing from the bare loop, which extracts hyphens at line ends differently.
MAX_MISSING = 0.02


class StageTimes(NamedTuple):
    """Seconds of one run of the stage: in total, in the provider, and in the OCR engine."""

    stage: float
    provider: float
    engine: float


def run(report: Report, *, rounds: int, quick: bool) -> None:
    rounds, pages, documents = (1, 10, 5) if quick else (rounds, 100, 50)
    user = site.prepare()
    # The stage stores documents in this folder while it reads them. Its own provider is measured.
    with (
        TemporaryDirectory() as folder,
        override_settings(SLUICE=settings.SLUICE.model_copy(update={"etl_cache_dir": Path(folder)})),
    ):
        provider = engines.provider()
        assert isinstance(provider, LocalProvider), "ETL_OCR_PROVIDER is not local"
        try:
            for sample in (prose(pages), invoices(pages)):
                text(report, provider, sample, Path(folder), rounds=rounds)
            scans(report, user, rounds=rounds)
            correctness(report, provider)
            memory(report, provider, documents)
        finally:
            provider.close()


def convert(provider: LocalProvider, document: Document) -> OCRResult:
    return provider.convert(document, context=StageContext(seconds=600))


def seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


# ---- Text pages ------------------------------------------------------------------------------------------------------


class TextSample(NamedTuple):
    """A text document. `name`: describes its pages. `seconds`: the bound for a page."""

    name: str
    pages: list[list[make.Block]]
    seconds: float


def prose(pages: int) -> TextSample:
    """Return pages with one column, whose layout needs no model. The text of each page is different."""
    (terms,) = (content for style, content in make.INVOICE[1] if style == "p" and "thirty days" in content)
    assert isinstance(terms, str)
    words = terms.split()
    texts = ((*words[number % len(words) :], *words[: number % len(words)]) for number in range(pages))
    return TextSample("prose", [[("p", f"{' '.join(text)} ")] * 6 for text in texts], PROSE_PAGE_SECONDS)


def invoices(pages: int) -> TextSample:
    return TextSample("an invoice", make.INVOICE * (pages // len(make.INVOICE)), LAYOUT_PAGE_SECONDS)


def text(report: Report, provider: LocalProvider, sample: TextSample, folder: Path, *, rounds: int) -> None:
    file = folder / "text.pdf"
    file.write_bytes(make.printed(sample.pages))
    document = samples.document(file)
    compare_text(sample, bare(file), convert(provider, document))

    def cold() -> float:
        provider.close()
        return seconds(lambda: convert(provider, document))

    measurements = alternate(
        {
            LOOP: lambda: seconds(lambda: bare(file)),
            COLD: cold,
            WARM: lambda: seconds(lambda: convert(provider, document)),
        },
        rounds=rounds,
    )
    pages, what = len(sample.pages), f"{len(sample.pages)} pages of {sample.name}"
    report.times(f"P11, {what}", measurements)
    for name, times in measurements.items():
        report.bound("P11", f"{what}, {name}", pages / median(times), unit="pages/s")
    report.bound(
        "P11", f"{what}, {WARM}, relative to the loop", median(measurements[WARM]) / median(measurements[LOOP])
    )
    for name in (COLD, WARM):
        report.bound("P11", f"{what}, {name}", median(measurements[name]), pages * sample.seconds, unit="s")


def bare(file: Path) -> list[str]:
    """Return the text of the pages from pypdfium2, without positions, headings, and tables."""
    with pypdfium2.PdfDocument(file) as pdf:
        return [page.get_textpage().get_text_range() for page in pdf]


def compare_text(sample: TextSample, theirs: list[str], ours: OCRResult) -> None:
    """Compare both texts with the printed text. The loop's text may lack MAX_MISSING of the letters, in any order.

    Our text may lack the headings, which count as running heads because the pages repeat.
    """
    truth = map(str.lstrip, make.true_text(sample.pages).split("\f"))
    for number, (printed, bare_page, page) in enumerate(zip(truth, theirs, ours.pages, strict=True), start=1):
        expected, body = samples.letters(printed), samples.letters(printed.partition("\n")[2])
        assert samples.letters(ours.markdown[page.start : page.end]) in {expected, body}, f"page {number} differs"
        lacks = Counter(expected) - Counter(samples.letters(bare_page))
        assert lacks.total() <= MAX_MISSING * len(expected), f"the loop misses letters of page {number}"


# ---- Scanned pages --------------------------------------------------------------------------------------------------


def scans(report: Report, user: User, *, rounds: int) -> None:
    rule = make_rule(user)
    runs = []
    for number in range(rounds + 1):  # the first run loads the engine and is not counted
        runs.append(stage(user, rule))
        log_progress(f"scan, {number} of {rounds}: {runs[-1].stage:.3f} s, of it the engine {runs[-1].engine:.3f}")
    counted = runs[1:]
    pages = len(samples.true_text(SCAN_TRUTH).split("\f"))
    report.times(
        f"P11, {pages} scanned pages",
        {
            "the engine": [each.engine for each in counted],
            "the provider": [each.provider for each in counted],
            "the stage": [each.stage for each in counted],
        },
    )
    report.bound("P11", "scanned pages, the stage", pages / median(each.stage for each in counted), unit="pages/s")
    ratio = median(each.stage / each.engine for each in counted)
    report.bound("P11", "scanned pages, the stage, relative to its engine", ratio, STAGE_PER_ENGINE)


def stage(user: User, rule: Rule) -> StageTimes:
    """Run OCR on a new task like a worker: claim, download, read, store, and record."""
    task = submitted(user, rule)
    started = time.perf_counter()
    assert execution.run(Stage.OCR, task_id=task.pk), "the stage did not succeed"
    whole = time.perf_counter() - started
    state = runstate.read(task.pk)
    assert state is not None
    facts = state.metadata["ocr"]
    assert facts["pages"] == facts["ocr_pages"], "not every page was recognized"
    markdown = b"".join(storage.read(state.markdown_key)).decode()
    assert samples.errors_per_character(samples.true_text(SCAN_TRUTH), markdown) <= SCAN_WRONG
    return StageTimes(whole, facts["duration_ms"] / 1000, facts["ocr_ms"] / 1000)


def submitted(user: User, rule: Rule) -> Task:
    """Create a task with a document in object storage. No wake-up message is sent, so no worker runs it."""
    content = samples.sample(SCAN).read_bytes()
    key = f"{artifacts.DOCUMENTS}{SCAN}"
    if storage.head(key) is None:
        storage.put(key, content, content_type=DocumentFormat.PDF.media_type)
    task = Task.objects.create(
        user=user, rule=rule, rule_version=rule.version, filename=SCAN, kind=DocumentFormat.PDF.value,
        size=len(content), document_key=key,
    )  # fmt: skip
    runstate.create(task, stage=Stage.OCR)
    return task


# ---- Accuracy and memory ------------------------------------------------------------------------------------------


def correctness(report: Report, provider: LocalProvider) -> None:
    convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))  # load the engine
    rows, over = [], 0
    for name, truth, most in SAMPLES:
        result = convert(provider, samples.document(samples.sample(name)))
        wrong = samples.errors_per_character(samples.true_text(truth), result.markdown)
        over += wrong > most
        milliseconds = max(1, result.metadata["duration_ms"])
        sure = [page.confidence for page in result.pages if page.confidence is not None]
        rows.append(
            [
                name,
                f"{wrong:.2%}",
                f"{most:.0%}",
                f"{1000 * len(result.pages) / milliseconds:.2f}",
                f"{min(sure, default=1):.3f}",
                f"{result.metadata['ocr_ms'] / milliseconds:.0%}",
            ]
        )
    header = ["", "characters wrong (CER)", "at most", "pages/s", "lowest confidence", "engine's share"]
    report.table("P11, the samples, once each", header, rows)
    report.bound("P11", "samples with too many wrong characters", over, 0, unit=f"of {len(SAMPLES)}")


def memory(report: Report, provider: LocalProvider, documents: int) -> None:
    """Measure memory over many documents. This process acts as the worker."""
    ours, theirs, processes = [0], [0], set()
    provider.close()
    for document in islice(several(), documents):
        convert(provider, document)
        ours.append(resident("self"))
        if provider.process is not None:
            processes.add(provider.process.pid)
            theirs.append(peak(provider.process.pid) + provider.process.peak)
    report.table(
        f"P11, memory over {documents} documents",
        ["", "processes", "at most, MB"],
        [
            ["a worker", 1, max(ours) // MEGABYTE],
            ["its reader, with a document's process", len(processes), max(theirs) // MEGABYTE],
        ],
    )
    both = (max(ours) + max(theirs)) / MEGABYTE
    report.bound("P11", f"memory over {documents} documents, all processes", both, MEMORY, unit="MB")


def several() -> Iterator[Document]:
    return cycle([samples.document(samples.sample(name)) for name, _, _ in SAMPLES])


def resident(pid: int | str) -> int:
    return kilobytes(pid, "VmRSS")


def peak(pid: int) -> int:
    return kilobytes(pid, "VmHWM")


def kilobytes(pid: int | str, name: str) -> int:
    """Return a value of /proc/PID/status in bytes. The file has kilobytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
