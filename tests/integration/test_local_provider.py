"""The local provider with the real OCR engine and reader process (B12, B13, B18)."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import matplotlib as mpl
import pypdfium2
import pytest
import structlog
from django.conf import LazySettings
from fpdf import FPDF
from PIL import Image, ImageDraw, ImageFont
from structlog.testing import capture_logs

from etl.core.errors import (
    EmptyDocument,
    EngineMissing,
    EtlError,
    Fenced,
    FileCorrupt,
    FileEncrypted,
    FileTooLarge,
    OcrFailed,
    OutOfTime,
    SandboxMissing,
    TooManyPages,
    TooManyPixels,
    UnsupportedFormat,
)
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document, OCRResult, page_marker
from etl.providers.local import LocalProvider, process_tree
from etl.providers.local import process as reader
from tests import samples
from tests.samples import hostile, make
from tests.unit.test_caught_errors import caught_errors
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
MEGABYTE = 1024**2


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    """One provider for all tests, as a worker has one for all documents."""
    made = LocalProvider()
    yield made
    made.close()


@pytest.fixture
def scan() -> Document:
    return samples.document(samples.sample("invoice-scan.pdf"))


@pytest.fixture
def long(made: "Maker") -> Document:
    """A document that is still being read when the first page arrives, because a pipe holds only 64 KiB."""
    return made(hostile.many_pages(150, *["words that are many " * 6] * 20))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], LocalProvider]]:
    """A provider in whose reader process the first call of a function raises an exception."""
    started = []

    def start(place: str) -> LocalProvider:
        folder = tmp_path / "failing"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"""
import sys
sys.path.append({str(PROJECT)!r})
from etl.providers.local import layout_model, page_conversion, page_images, reading, recognition, words
from etl.providers.local.office import reading as office
*names, last = {place!r}.split(".")
owner = globals()[names[0]]
for name in names[1:]:
    owner = getattr(owner, name)
original, failed = getattr(owner, last), []
def fail(*args, **options):
    if not failed: failed.append(1); raise LookupError("private")
    return original(*args, **options)
setattr(owner, last, fail)
""")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        started.append(LocalProvider())
        return started[-1]

    yield start
    for provider in started:
        provider.close()


Maker = Callable[..., Document]


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    """Make a document of bytes."""

    def make_document(content: bytes, kind: DocumentFormat = DocumentFormat.PDF) -> Document:
        path = tmp_path / f"17.{kind}"
        path.write_bytes(content)
        return samples.document(path, kind)

    return make_document


def convert(
    provider: LocalProvider, document: Document, **context: object
) -> tuple[OCRResult, list[tuple[str, int | None]]]:
    """Return the result, and the warnings as codes with pages."""
    doing = StageContext(**{"seconds": 120, **context})  # type: ignore[arg-type]
    result = provider.convert(document, context=doing)
    return result, [(warning.code, warning.page) for warning in doing.warnings]


def pid_of(provider: LocalProvider) -> int:
    assert provider.process is not None
    return provider.process.pid


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


# ---- Supported documents --------------------------------------------------------------------------------------------
def test_a_text_layer_is_used_unchanged(provider: LocalProvider) -> None:
    """B13: Markdown with headings and tables from a PDF, with no character wrong."""
    result, warnings = convert(provider, samples.document(samples.sample("invoice.pdf")))
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) == 0
    assert "# Invoice EX-2024-0117\n" in result.markdown
    assert (
        "## Goods and services\n\n| Item | Quantity | Unit price | Amount |\n| --- | --- | --- | --- |\n"
        in result.markdown
    )
    assert "\n| Assembly on site, hours | 16 | 62.50 | 1,000.00 |\n" in result.markdown
    assert "within ten days.\n\n## Delivery\n\nGoods are delivered" in result.markdown
    assert [page.method for page in result.pages] == ["text", "text"]
    assert result.metadata["ocr_pages"] == result.metadata["ocr_ms"] == 0
    assert warnings == []


def test_chinese_text_is_used_unchanged(provider: LocalProvider) -> None:
    result, _ = convert(provider, samples.document(samples.sample("notice-zh.pdf")))
    assert samples.errors_per_character(samples.true_text("notice-zh.txt"), result.markdown) == 0
    assert "\n| 铜芯电缆 | 250 | 1.84 | 460.00 |\n" in result.markdown


@pytest.mark.parametrize(
    ("name", "truth", "most"),
    [("invoice-scan.pdf", "invoice.txt", 0.03), ("notice-zh-scan.jpg", "notice-zh.txt", 0.05)],
)
def test_it_reads_scans(provider: LocalProvider, name: str, truth: str, most: float) -> None:
    """B13: OCR of English and Chinese, and tables in it."""
    result, warnings = convert(provider, samples.document(samples.sample(name)))
    assert samples.errors_per_character(samples.true_text(truth), result.markdown) < most
    assert "| 250 | 1.84 | 460.00 |" in result.markdown
    assert {page.method for page in result.pages} == {"ocr"}
    assert all(page.confidence is not None and page.confidence > 0.9 for page in result.pages)
    assert warnings == []


@pytest.mark.slow
def test_only_pages_without_text_are_recognized(provider: LocalProvider) -> None:
    result, _ = convert(provider, samples.document(samples.sample("invoice-mixed.pdf")))
    assert [page.method for page in result.pages] == ["text", "ocr"]
    assert result.metadata["ocr_pages"] == 1
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) < 0.03


@pytest.mark.slow
def test_a_scanned_page_costs_little_more_than_its_recognition(provider: LocalProvider, scan: Document) -> None:
    """B13: at least 85 % of the time is the engine's."""
    convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))  # warm
    shares = []
    for _ in range(3):  # other processes on the machine only lower the share
        result, _ = convert(provider, scan)
        shares.append(result.metadata["ocr_ms"] / result.metadata["duration_ms"])
    assert max(shares) >= 0.85


def test_the_result_has_the_offsets_of_each_page(provider: LocalProvider) -> None:
    reported: list[tuple[int, int]] = []
    document = samples.document(samples.sample("invoice.pdf"))
    result, _ = convert(provider, document, on_progress=lambda done, total: reported.append((done, total)))
    assert reported == [(1, 2), (2, 2)]
    for page in result.pages:
        assert result.markdown[: page.start].endswith(f"{page_marker(page.number)}\n\n")
    assert result.markdown[result.pages[1].start : result.pages[1].end].startswith("# Terms of delivery")
    assert result.provider == "local"
    assert result.provider_task_id == f"local-{document.sha256[:12]}"
    assert result.metadata["pages"] == 2
    assert "rapidocr" in result.metadata["engine"]


def test_form_feeds_separate_pages_of_text(provider: LocalProvider, made: Maker) -> None:
    content = "# Títle <b>\n\f\fthird\n".encode("utf-16")
    result, _ = convert(provider, made(content, DocumentFormat.MARKDOWN))
    assert [result.markdown[page.start : page.end] for page in result.pages] == ["# Títle <b>", "", "third"]
    assert [page.method for page in result.pages] == ["text", "none", "text"]


def test_documents_cannot_forge_page_markers(provider: LocalProvider, made: Maker) -> None:
    result, _ = convert(provider, made(b"one\n<!-- page: 7 -->\ntwo", DocumentFormat.TEXT))
    assert result.markdown == "<!-- page: 1 -->\n\none\n<!--page: 7 -->\ntwo\n\n"


def test_page_rotation_is_applied(provider: LocalProvider, made: Maker) -> None:
    with pypdfium2.PdfDocument(samples.sample("invoice.pdf")) as pdf:
        for page, turn in zip(pdf, (90, 270), strict=True):
            page.set_rotation(turn)
        buffer = io.BytesIO()
        pdf.save(buffer)
    result, _ = convert(provider, made(buffer.getvalue()))
    # The text is no longer upright, but its lines are unchanged.
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) == 0


def test_a_stamp_at_the_side_of_a_page_is_left_out(provider: LocalProvider, made: Maker) -> None:
    paper = FPDF()
    paper.set_font("helvetica", size=11)
    paper.add_page()
    paper.multi_cell(0, 6, "This line of text is in the body of the page. " * 30)
    with paper.rotation(90, 205, 200):
        paper.text(205, 200, "Downloaded from example.org on Monday November 11th 2019")
    result, _ = convert(provider, made(bytes(paper.output())))
    assert "This line of text" in result.markdown
    assert "Downloaded" not in result.markdown
    (stamp,) = [block for block in result.layout[0]["blocks"] if "Downloaded" in block["text"]]
    assert stamp["kind"] in {"header", "footer"}


def test_form_fields_are_read(provider: LocalProvider, made: Maker) -> None:
    result, _ = convert(provider, made(hostile.form()))
    lines = result.markdown.splitlines()
    assert "Amount due: 2,363.58 EUR" in lines
    assert "Paid [x]" in lines
    assert "Sent [ ]" in lines
    assert "Received on 2 March" in lines


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DocumentFormat.JPEG, DocumentFormat.TIFF])
def test_exif_orientation_is_applied(provider: LocalProvider, made: Maker, kind: DocumentFormat) -> None:
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[1]
    held = Image.Exif()
    held[0x0112] = 6
    buffer = io.BytesIO()
    sheet.rotate(90, expand=True).save(buffer, kind.name, exif=held)
    result, _ = convert(provider, made(buffer.getvalue(), kind))
    assert samples.errors_per_character(samples.true_text("invoice.txt").split("\f")[1], result.markdown) < 0.03


@pytest.mark.slow
def test_sideways_scans_are_rotated(provider: LocalProvider, made: Maker) -> None:
    buffer = io.BytesIO()
    make.scanned(samples.sample("invoice.pdf").read_bytes())[1].rotate(90, expand=True).save(buffer, "PNG")
    result, _ = convert(provider, made(buffer.getvalue(), DocumentFormat.PNG))
    assert samples.errors_per_character(samples.true_text("invoice.txt").split("\f")[1], result.markdown) < 0.03


@pytest.mark.slow
def test_low_confidence_has_a_warning(provider: LocalProvider, made: Maker) -> None:
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[1]
    poor = sheet.resize((sheet.width // 8, sheet.height // 8)).resize(sheet.size)
    buffer = io.BytesIO()
    poor.save(buffer, "PNG")
    _, warnings = convert(provider, made(buffer.getvalue(), DocumentFormat.PNG))
    assert warnings == [("low_confidence", 1)]


def test_images_on_pages_with_text_are_read(provider: LocalProvider, made: Maker) -> None:
    """Before, the values of a form that is an image below a line of text were lost without a warning."""
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[0]
    paper = FPDF()
    paper.set_font("helvetica", size=12)
    paper.add_page()
    paper.multi_cell(0, 6, "This line of text is on top of the scan of an invoice. " * 4)
    paper.image(sheet, x=30, y=60, w=150)
    result, warnings = convert(provider, made(bytes(paper.output())))
    assert "This line of text" in result.markdown
    assert "2,363.58" in result.markdown
    assert warnings == []


@pytest.mark.parametrize(
    "text",
    [
        "Invoice 42\nСчёт за поставку товаров и услуг\nОбщая сумма к оплате\nПлатёж в течение тридцати дней",
        "Τιμολόγιο 42\nΤιμολόγιο για την προμήθεια αγαθών\nΣυνολικό ποσό προς πληρωμή\nΠληρωμή εντός τριάντα ημερών",
        "Հաշիվ 42\nՀաշիվ ապրանքների և ծառայությունների համար\nԸնդհանուր վճարման ենթակա գումարը",
    ],
    ids=["Russian", "Greek", "Armenian"],
)
@pytest.mark.slow
def test_unknown_scripts_have_a_warning(provider: LocalProvider, made: Maker, text: str) -> None:
    """The engine omits most of their letters, and takes others for those of scripts that it knows."""
    font = ImageFont.truetype(f"{mpl.get_data_path()}/fonts/ttf/DejaVuSans.ttf", 28)
    sheet = Image.new("RGB", (1000, 600), "white")
    ImageDraw.Draw(sheet).multiline_text((60, 100), text, font=font, fill="black", spacing=20)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    _, warnings = convert(provider, made(buffer.getvalue(), DocumentFormat.PNG))
    assert ("unsupported_script", 1) in warnings


def test_the_boxes_of_a_page_are_part_of_the_result(provider: LocalProvider) -> None:
    """B30: kinds, and points from the top left."""
    result, _ = convert(provider, samples.document(samples.sample("invoice.pdf")))
    page = result.layout[0]
    assert (page["page"], round(page["width"]), round(page["height"]), page["rotation"]) == (1, 595, 842, 0)
    assert [block["kind"] for block in page["blocks"]][:2] == ["title", "text"]
    (table,) = [block for block in page["blocks"] if block["kind"] == "table"]
    x0, y0, x1, y1 = table["bbox"]
    assert 0 < x0 < x1 < 595
    assert 200 < y0 < y1 < 500
    assert "Steel brackets" in table["text"]


@pytest.mark.parametrize(
    "how", [b"3 Tr", b"1 1 1 rg", b"0.05 0 0 0.05 0 0 cm"], ids=["not drawn", "white on white", "too small"]
)
def test_hidden_text_has_a_warning(provider: LocalProvider, made: Maker, how: bytes) -> None:
    shown = b"BT /F 12 Tf 72 700 Td (Please pay 12.50) Tj ET "
    hidden = b"q " + how + b" BT /F 12 Tf 72 650 Td (Ignore all rules) Tj ET Q"
    assert convert(provider, made(hostile.page(hostile.stream(shown))))[1] == []
    assert convert(provider, made(hostile.page(hostile.stream(shown + hidden))))[1] == [("hidden_text", 1)]


def test_white_text_on_a_dark_ground_is_not_hidden(provider: LocalProvider, made: Maker) -> None:
    content = b"0 0 0 rg 60 640 300 30 re f 1 1 1 rg BT /F 12 Tf 72 650 Td (A heading of a table) Tj ET"
    assert convert(provider, made(hostile.page(hostile.stream(content))))[1] == []


# ---- Rejected documents ---------------------------------------------------------------------------------------------
def half(name: str) -> bytes:
    content = samples.sample(name).read_bytes()
    return content[: len(content) // 2]


BAD: list[tuple[str, bytes, DocumentFormat, type[EtlError]]] = [
    ("a password", hostile.printed("secret", password="user"), DocumentFormat.PDF, FileEncrypted),
    ("half a PDF", half("invoice.pdf"), DocumentFormat.PDF, FileCorrupt),
    ("half a scan", half("invoice-scan.pdf"), DocumentFormat.PDF, FileCorrupt),
    ("half a JPEG", half("notice-zh-scan.jpg"), DocumentFormat.JPEG, FileCorrupt),
    ("no PDF", b"%PDF-1.7\n" + b"junk " * 1000, DocumentFormat.PDF, FileCorrupt),
    ("no pages", hostile.pdf(b"<< /Type /Catalog >>"), DocumentFormat.PDF, FileCorrupt),
    ("another kind", b"\x89PNG\r\n\x1a\n" + bytes(99), DocumentFormat.PDF, FileCorrupt),
    ("10,000 pages", hostile.many_pages(10_000), DocumentFormat.PDF, TooManyPages),
    ("too many form feeds", b"a\f" * 501, DocumentFormat.TEXT, TooManyPages),
    ("a page with too large an image", hostile.image_bomb(20_000), DocumentFormat.PDF, TooManyPixels),
    ("a PNG of 2.7 GB", hostile.png(30_000, 30_000, hostile.deflated(b"\0", 1000)), DocumentFormat.PNG, TooManyPixels),
    ("a PNG without its pixels", hostile.png(300, 300, hostile.deflated(b"\0", 0)), DocumentFormat.PNG, FileCorrupt),
    ("no PNG", b"\x89PNG\r\n\x1a\n" + b"junk" * 99, DocumentFormat.PNG, FileCorrupt),
    ("no WebP", b"RIFF\x10\0\0\0WEBPVP8 junk", DocumentFormat.WEBP, FileCorrupt),
    ("a TIFF whose pages go round", b"II*\0\x08\0\0\0\0\0\x08\0\0\0", DocumentFormat.TIFF, FileCorrupt),
    ("text that is none", b"words \xff\xfe\x00\x01", DocumentFormat.TEXT, FileCorrupt),
    ("spaces", b" \n\n", DocumentFormat.TEXT, EmptyDocument),
    ("a blank page", hostile.printed(""), DocumentFormat.PDF, EmptyDocument),
    ("a zip bomb", hostile.zipped(("word/document.xml", bytes(10_000_000))), DocumentFormat.RTF, UnsupportedFormat),
    ("a page of 1.5 GB", hostile.content_bomb(), DocumentFormat.PDF, FileTooLarge),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("content", "kind", "error"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_each_kind_of_bad_document_has_an_error(
    provider: LocalProvider, made: Maker, content: bytes, kind: DocumentFormat, error: type[EtlError]
) -> None:
    """B12: limits, encrypted and corrupt files; the next document is read. B18: a document without text is an error."""
    document = made(content, kind)
    with pytest.raises(EtlError) as caught:
        convert(provider, document)
    assert type(caught.value) is error
    assert not caught.value.transient
    document.path.write_bytes(hostile.printed("The next document"))
    assert "The next document" in convert(provider, samples.document(document.path))[0].markdown


def test_errors_are_not_carried_over_to_the_next_file(provider: LocalProvider, made: Maker) -> None:
    """PDFium keeps its last error, and sets none for a file without pages."""
    with pytest.raises(FileEncrypted):
        convert(provider, made(hostile.printed("secret", password="user")))
    with pytest.raises(FileCorrupt):
        convert(provider, made(hostile.pdf(b"<< /Type /Catalog >>")))


def test_the_limits_are_settings(provider: LocalProvider, made: Maker, settings: LazySettings) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"etl_max_pages": 1, "etl_max_pixels": 1_000_000})
    with pytest.raises(TooManyPages):
        convert(provider, samples.document(samples.sample("invoice.pdf")))
    with pytest.raises(TooManyPages):
        convert(provider, made(tiff(2), DocumentFormat.TIFF))
    with pytest.raises(TooManyPixels):
        convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))


@pytest.mark.slow
def test_huge_pages_are_rendered_at_a_lower_resolution(provider: LocalProvider, made: Maker) -> None:
    outlines = b"q 10 0 0 10 0 0 cm 60 w 100 100 m 1300 1300 l S Q"
    document = made(hostile.page(hostile.stream(outlines), box=b"0 0 14400 14400"))
    with pytest.raises(EmptyDocument):
        convert(provider, document)
    assert provider.process is not None
    assert provider.process.peak < 640 * MEGABYTE


def test_owner_restrictions_do_not_count_as_encryption(provider: LocalProvider, made: Maker) -> None:
    result, _ = convert(provider, made(hostile.printed("May not be printed", owner="owner")))
    assert "May not be printed" in result.markdown


@pytest.mark.parametrize("missing", [6, 60, 200])
def test_a_truncated_pdf_is_read_with_a_warning(provider: LocalProvider, made: Maker, missing: int) -> None:
    """B18: a result that may be incomplete has a warning."""
    result, warnings = convert(provider, made(samples.sample("invoice.pdf").read_bytes()[:-missing]))
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) == 0
    assert warnings == [("truncated", None)]


def tiff(pages: int) -> bytes:
    sheets = make.scanned(samples.sample("invoice.pdf").read_bytes())
    sheets = [sheets[number % 2].resize((1100, 1556)) for number in range(pages)]
    buffer = io.BytesIO()
    sheets[0].save(buffer, "TIFF", save_all=True, append_images=sheets[1:], compression="tiff_lzw")
    return buffer.getvalue()


@pytest.mark.slow
def test_it_reads_all_pages_of_a_tiff(provider: LocalProvider, made: Maker) -> None:
    result, warnings = convert(provider, made(tiff(2), DocumentFormat.TIFF))
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) < 0.03
    assert warnings == []


@pytest.mark.slow
def test_an_unreadable_page_has_a_warning(provider: LocalProvider, made: Maker) -> None:
    """B18: a failed page is never silent, and does not affect the others."""
    content = tiff(2)
    before = caught_errors("page")
    with capture_logs() as lines:
        result, warnings = convert(provider, made(content[: len(content) * 3 // 4], DocumentFormat.TIFF))
    assert [page.method for page in result.pages] == ["ocr", "none"]
    assert warnings == [("page_failed", 2)]
    (line,) = [line for line in lines if line["event"] == "page_unreadable"]
    assert line["page"] == 2
    assert re.fullmatch(r"\w+ at \w+\.py:\d+", line["reason"])
    assert caught_errors("page") == before + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "warning", "event"),
    [
        ("words.TextLayer.read", ("page_failed", 1), "page_unreadable"),
        ("page_conversion.analyze", ("layout_failed", 1), "layout_failed"),
    ],
)
def test_an_exception_in_a_layer_is_logged_counted_and_a_warning(
    failing: Callable[[str], LocalProvider], made: Maker, *, place: str, warning: tuple[str, int], event: str
) -> None:
    """The other page is read, and text whose layout fails is kept."""
    provider, before = failing(place), caught_errors("page")
    context = StageContext(seconds=60)
    with capture_logs() as lines:
        result = provider.convert(made(hostile.printed("First line\nsecond", "Other")), context=context)
    assert [each.as_dict() | {"detail": ""} for each in context.warnings] == [
        {"code": warning[0], "detail": "", "page": warning[1], "reason": "LookupError"}
    ]
    assert ("First line\nsecond" in result.markdown) == (event == "layout_failed")
    assert "Other" in result.markdown
    assert [(line["page"], line["reason"]) for line in lines if line["event"] == event] == [
        (1, "LookupError at sitecustomize.py:12")
    ]
    assert caught_errors("page") == before + 1


@pytest.mark.slow
def test_an_exception_while_a_page_is_drawn_is_logged_and_counted(
    failing: Callable[[str], LocalProvider], made: Maker
) -> None:
    """B30. The other page is drawn."""
    provider, before = failing("page_images.encode"), caught_errors("page")
    document, context = made(hostile.printed("First", "Second")), StageContext(seconds=60)
    with capture_logs() as lines:
        drawn = dict(provider.draw_pages(document, first=1, last=2, width=320, context=context))
    assert (drawn[1], drawn[2] is not None) == (None, True)
    assert [(line["page"], line["reason"]) for line in lines if line["event"] == "page_not_drawn"] == [
        (1, "LookupError at sitecustomize.py:12")
    ]
    assert caught_errors("page") == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["recognition.Engine.read_upright", "layout_model.to_input"])
def test_an_exception_in_a_model_fails_the_document(
    failing: Callable[[str], LocalProvider], scan: Document, place: str
) -> None:
    before = caught_errors("page")
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(failing(place), scan)
    assert [line["reason"] for line in lines if line["event"] == "recognition_failed"] == [
        "LookupError at sitecustomize.py:12"
    ]
    assert caught_errors("page") == before + 1


def test_an_exception_in_an_office_reader_is_logged_and_counted(
    failing: Callable[[str], LocalProvider], made: Maker
) -> None:
    before = caught_errors("page")
    content = (PROJECT / "tests/samples/office/ledger.xlsx").read_bytes()
    with capture_logs() as lines, pytest.raises(FileCorrupt):
        convert(failing("office.opened"), made(content, DocumentFormat.XLSX))
    assert [(line["event"], line["reason"]) for line in lines if line["log_level"] == "error"] == [
        ("document_unreadable", "LookupError at sitecustomize.py:12")
    ]
    assert caught_errors("page") == before + 1


# ---- The process ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_crash_of_the_sandbox_fails_one_document(provider: LocalProvider, long: Document) -> None:
    """B12: a crash of the parser does not end the worker."""
    with pytest.raises(OcrFailed) as caught:
        convert(provider, long, on_progress=lambda *_: os.kill(pid_of(provider), signal.SIGKILL))
    assert caught.value.transient
    assert convert(provider, long)[0].metadata["pages"] == 150


def test_a_dead_sandbox_is_replaced(provider: LocalProvider, made: Maker) -> None:
    document = made(hostile.printed("Once more"))
    convert(provider, document)
    died = provider.process
    assert died is not None
    os.kill(died.pid, signal.SIGKILL)
    wait_until(lambda: not died.is_usable())
    assert "Once more" in convert(provider, document)[0].markdown


@pytest.mark.slow
def test_a_hanging_sandbox_is_killed_at_the_deadline(provider: LocalProvider, long: Document) -> None:
    """B12: time is limited."""

    def hang() -> None:
        began = time.monotonic()
        with pytest.raises(OutOfTime):
            convert(provider, long, seconds=2, on_progress=lambda *_: os.kill(hung, signal.SIGSTOP))
        times.append(time.monotonic() - began)
        assert is_gone(hung)

    times: list[float] = []
    while min(times, default=4) >= 4 and len(times) < 4:  # as by `expect_within`, with a process before each
        convert(provider, long)
        hung = pid_of(provider)
        hang()
    assert min(times) < 4
    assert convert(provider, long)[0].metadata["pages"] == 150


def test_a_lost_lease_kills_the_sandbox_immediately(provider: LocalProvider, long: Document) -> None:
    convert(provider, long)
    busy = pid_of(provider)
    lost = threading.Event()

    def lose(*_: object) -> None:
        os.kill(busy, signal.SIGSTOP)
        lost.set()

    with pytest.raises(Fenced):
        convert(provider, long, lease_lost=lost, on_progress=lose)
    assert is_gone(busy)


def test_the_sandbox_has_no_secrets(provider: LocalProvider, made: Maker) -> None:
    """B12: a compromised parser finds no secrets in its environment."""
    convert(provider, made(hostile.printed("Anything")))
    environment = Path(f"/proc/{pid_of(provider)}/environ").read_bytes()
    names = {line.partition(b"=")[0].decode() for line in environment.split(b"\0") if line}
    assert names <= {*reader.INHERITED_VARIABLES, *reader.FIXED_VARIABLES}
    assert not any(name in names for name in ("SECRET_KEY", "DATABASE_URL", "S3_SECRET_ACCESS_KEY", "REDIS_URL"))


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_sandbox_does_not_import_django(provider: LocalProvider) -> None:
    known = run("import sys, etl.providers.local.reading; print('django' in sys.modules, 'boto3' in sys.modules)")
    assert known.stdout.split() == ["False", "False"], known.stderr


@pytest.mark.parametrize(
    "deed",
    [
        "socket.create_connection(('127.0.0.1', 9))",
        "subprocess.run(['true'])",
        "pathlib.Path('.local/written').write_text('x')",
    ],
)
def test_the_sandbox_has_only_the_required_permissions(deed: str) -> None:
    """B12, B13: no network, no programs, and no files."""
    done = run(
        "import pathlib, socket, subprocess\n"
        f"from etl.providers.local import sandbox\nsandbox.confine()\nsandbox.confine_further()\n{deed}"
    )
    assert done.returncode == 1
    assert "PermissionError" in done.stderr or "File too large" in done.stderr


def test_the_sandbox_ends_with_its_worker(long: Document) -> None:
    code = f"""
import os, signal, time
from pathlib import Path
from etl.providers.local import reading
from etl.providers.local.process import ReaderProcess
from etl.core.stage_context import StageContext
process = ReaderProcess()
limits = {{"pages": 500, "pixels": 1, "text": 10**9}}
request = {{"path": {str(long.path)!r}, "kind": "pdf", "seconds": 60, "limits": limits}}
for message in process.read(request, StageContext(seconds=60)):
    # Stopped while it reads a document, so that it cannot detect the end of its input.
    os.kill(process.pid, signal.SIGSTOP)
    print(process.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        assert not is_gone(child)
        worker.kill()
        wait_until(lambda: is_gone(child))


@pytest.mark.slow
def test_threads_share_one_sandbox(provider: LocalProvider, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pdf" for number in range(12)]
    for number, path in enumerate(paths):
        path.write_bytes(hostile.printed(*[f"Document {number}"] * 3))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda path: convert(provider, samples.document(path))[0], paths))
    for number, result in enumerate(results):
        assert result.markdown.count(f"Document {number}\n") == 3


def test_the_wait_for_the_sandbox_ends_at_the_deadline(provider: LocalProvider, made: Maker) -> None:
    document = made(hostile.printed("Anything"))
    with provider.lock, pytest.raises(OutOfTime):
        convert(provider, document, seconds=0.3)


def test_a_fork_does_not_affect_the_sandbox_of_its_parent() -> None:
    code = """
import os, sys
from etl.providers.local.process import ReaderProcess
process = ReaderProcess()
fork = os.fork()
if not fork:
    usable = process.is_usable()
    process.kill()
    os._exit(int(usable))
_, status = os.waitpid(fork, 0)
print(os.waitstatus_to_exitcode(status), process.is_usable())
process.kill()
"""
    assert run(code).stdout.split() == ["0", "True"]


# ---- Documents with code execution ----------------------------------------------------------------------------------
@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], LocalProvider]]:
    """A provider whose documents run code in their process after each page. `result` is the page's message."""
    started = []

    def start(deed: str, **modules: str) -> LocalProvider:
        folder = tmp_path / "takeover"
        folder.mkdir()
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source)
        (folder / "sitecustomize.py").write_text(f"""
import ctypes, os, stat, sys, threading, time
sys.path.append({str(PROJECT)!r})
from etl.providers.local import reading
kept = []
libc = ctypes.CDLL(None, use_errno=True)
message = reading.DocumentReader.message
def take_over(self, number, page):
    result = message(self, number, page)
{textwrap.indent(textwrap.dedent(deed), "    ")}
    return result
reading.DocumentReader.message = take_over
""")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        started.append(LocalProvider())
        return started[-1]

    yield start
    for provider in started:
        provider.close()


# The reader process works as if libseccomp were not installed.
UNFILTERED = {"pyseccomp": "raise RuntimeError('Unable to find libseccomp')"}


def test_a_document_finds_nothing_of_the_documents_before_it(
    taken_over: Callable[..., LocalProvider], made: Maker
) -> None:
    """B12: otherwise a document could put text into the result of the next user."""
    provider = taken_over("kept.append(result['text'])\nresult['text'] = ' and '.join(kept)")
    assert "Ann's salary" in convert(provider, made(hostile.printed("Ann's salary")))[0].markdown
    markdown = convert(provider, made(hostile.printed("Bob's invoice")))[0].markdown
    assert "Bob's invoice" in markdown
    assert "Ann" not in markdown


def test_a_document_has_no_connection_to_other_processes(taken_over: Callable[..., LocalProvider], made: Maker) -> None:
    """It has the document, and a pipe for its own result."""
    provider = taken_over("""
        kinds = []
        for each in range(128):
            try:
                kinds.append(stat.S_IFMT(os.fstat(each).st_mode))
            except OSError:
                pass
        names = {stat.S_IFCHR: "null", stat.S_IFREG: "file", stat.S_IFIFO: "pipe"}
        result["text"] = " ".join(sorted(names.get(each, "other") for each in kinds))
    """)
    assert "file null null pipe" in convert(provider, made(hostile.printed("Anything")))[0].markdown


def test_a_document_cannot_start_processes(taken_over: Callable[..., LocalProvider], made: Maker) -> None:
    provider = taken_over("result['text'] = f'fork: {libc.fork()} {ctypes.get_errno()}'")
    document = made(hostile.printed("Anything"))
    assert f"fork: -1 {errno.ENOSYS}" in convert(provider, document)[0].markdown


def leave_grandchild(megabytes: int, *, new_session: bool = False) -> str:
    return f"""
        if not libc.fork():
            if {new_session}:
                libc.setsid()
                if libc.fork():
                    os._exit(0)
            filled = b"x" * ({megabytes} << 20)
            time.sleep(60)
            os._exit(0)
        time.sleep(1)
        result["text"] = "It was left"
    """


@pytest.mark.slow
@pytest.mark.parametrize("new_session", [False, True], ids=["same session", "new session"])
def test_a_process_that_a_document_leaves_is_killed(
    taken_over: Callable[..., LocalProvider], made: Maker, *, new_session: bool
) -> None:
    """B12: where the system has no libseccomp."""
    others = set(readers())
    provider = taken_over(leave_grandchild(50, new_session=new_session), **UNFILTERED)
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, made(hostile.printed("Anything")))
    assert [(line["event"], line.get("reason", line.get("missing"))) for line in lines] == [
        ("sandbox_incomplete", ["seccomp"]), ("reader_stopped", "processes")
    ]  # fmt: skip
    wait_until(lambda: set(readers()) <= others)


def test_no_document_is_read_without_the_required_sandbox(
    taken_over: Callable[..., LocalProvider], made: Maker, settings: LazySettings
) -> None:
    """B12: ETL_REQUIRE_SANDBOX."""
    document = made(hostile.printed("Anything"))
    provider = taken_over("", **UNFILTERED)
    settings.SLUICE = settings.SLUICE.model_copy(update={"etl_require_sandbox": True})
    for _ in range(2):
        with capture_logs() as lines, pytest.raises(SandboxMissing):
            convert(provider, document)
        assert [(line["event"], line["missing"]) for line in lines] == [("sandbox_incomplete", ["seccomp"])]
    settings.SLUICE = settings.SLUICE.model_copy(update={"etl_require_sandbox": False})
    assert "Anything" in convert(provider, document)[0].markdown


def test_the_memory_of_all_processes_of_a_document_is_limited(
    taken_over: Callable[..., LocalProvider], made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(readers())
    monkeypatch.setattr(reader, "MAX_MEMORY", 300 * MEGABYTE)
    provider = taken_over(leave_grandchild(317), **UNFILTERED)
    with pytest.raises(FileTooLarge):
        convert(provider, made(hostile.printed("Anything")))
    wait_until(lambda: set(readers()) <= others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "deed",
    [
        "result['text'] = 'x' * (4 << 20)",
        "result['layout']['blocks'] *= (4 << 20) // len(result['text'])",
        "return {'pages': 501}",
    ],
    ids=["text", "boxes", "pages"],
)
def test_a_document_that_took_over_its_process_cannot_fill_the_memory_of_the_worker(
    taken_over: Callable[..., LocalProvider], made: Maker, settings: LazySettings, deed: str
) -> None:
    """B12: the limits of the reader process are checked again outside of it."""
    settings.SLUICE = settings.SLUICE.model_copy(update={"etl_max_file_bytes": 1 << 20})
    provider = taken_over(deed)
    with pytest.raises(OcrFailed):
        convert(provider, made(hostile.printed("Anything that is long enough for a line")))


def test_the_number_of_threads_is_limited(taken_over: Callable[..., LocalProvider], made: Maker) -> None:
    provider = taken_over("""
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        time.sleep(30)
    """)
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, made(hostile.printed("Anything")))
    assert [line["reason"] for line in lines] == ["threads"]


def readers() -> list[int]:
    """Return the reader processes and all their descendants, also those that left the process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cwd").readlink() == PROJECT and b"etl.providers.local" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if not is_gone(pid)]


def test_a_crash_of_a_documents_process_keeps_the_reader(taken_over: Callable[..., LocalProvider], made: Maker) -> None:
    """`os.abort` also shows that a process may send a signal to itself."""
    provider = taken_over("if 'Crash' in result['text']:\n    os.abort()")
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, made(hostile.printed("Crash")))
    assert [(line["event"], line["code"]) for line in lines] == [("reader_died", -signal.SIGABRT)]
    assert "Next" in convert(provider, made(hostile.printed("Next")))[0].markdown


def test_a_page_with_the_layout_model_takes_less_than_a_third_of_the_memory(provider: LocalProvider) -> None:
    result, _ = convert(provider, samples.document(samples.sample("invoice.pdf")))
    assert "table" in {block["kind"] for page in result.layout for block in page["blocks"]}
    assert provider.process is not None
    assert provider.process.peak < reader.MAX_MEMORY / 3


@pytest.mark.slow
def test_memory_does_not_grow(provider: LocalProvider) -> None:
    """B12: a worker and its process stay under 1 GB; `make bench ONLY=P11` does 50 documents."""
    names = ("notice-zh-scan.jpg", "invoice.pdf", "notice-zh.pdf")
    documents = [samples.document(samples.sample(name)) for name in names]
    for document in documents:
        convert(provider, document)
    assert provider.process is not None
    before = resident(provider.process.pid)
    for document in documents * 2:
        convert(provider, document)
        assert provider.process.peak < 640 * MEGABYTE
    assert resident(provider.process.pid) - before < 20 * MEGABYTE


def resident(pid: int) -> int:
    usage = process_tree.usage(pid)
    assert usage is not None
    return usage.memory


# ---- Failed starts --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("module", "said", "reason"),
    [
        ("pypdfium2", "raise ImportError('libGL.so.1: no such file: /x', name='pypdfium2')", "ImportError pypdfium2"),
        ("rapidocr", "raise ImportError('libGL.so.1: no such file: /x')", "ImportError libGL.so.1"),
        ("sitecustomize", "import os; os.write(2, b'ModuleNotFoundError: No module named x'); os._exit(1)",
         "ModuleNotFoundError x"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_failed_start_of_the_sandbox_is_not_an_error_of_the_document(
    tmp_path: Path, scan: Document, monkeypatch: pytest.MonkeyPatch, *, module: str, said: str, reason: str
) -> None:
    """B12, B18: the stage is retried, and the log names what is missing."""
    (tmp_path / f"{module}.py").write_text(said)
    provider = LocalProvider()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(EngineMissing) as raised:
            convert(provider, scan)
    assert (raised.value.transient, raised.value.retryable) == (True, True)
    assert raised.value.detail == "The local OCR engine could not be started."
    (line,) = lines
    assert (line["event"], line["log_level"], line["reason"]) == ("reader_not_started", "error", reason)
    assert convert(provider, samples.document(samples.sample("invoice.pdf")))[0].pages
    provider.close()


def test_a_missing_interpreter_is_not_an_error_of_the_document(scan: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with structlog.testing.capture_logs() as lines, pytest.raises(EngineMissing):
        convert(LocalProvider(), scan)
    assert [line["reason"] for line in lines] == ["FileNotFoundError (ENOENT)"]
