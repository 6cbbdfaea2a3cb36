"""The local provider, with the real OCR engine and reader process. B12, B13, B18."""

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
from etl.providers.local.process import Message, ReaderCrashed
from etl.providers.local.provider import ResultBuilder, parse_drawn_page
from tests import samples
from tests.conftest import change_settings
from tests.integration.test_ocr_engine import FONT
from tests.samples import Maker, hostile, make
from tests.unit.test_caught_errors import caught_errors
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
MEGABYTE = 1024**2


@pytest.fixture
def scan() -> Document:
    return samples.document(samples.sample("invoice-scan.pdf"))


@pytest.fixture
def long_document(make_document: Maker) -> Document:
    """A document that is still being read when its first page is received, because a pipe holds only 64 KiB."""
    return make_document(hostile.many_pages(150, *["words that are many " * 6] * 20))


@pytest.fixture
def failing_provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], LocalProvider]]:
    """Return a function that starts a provider. In its reader process, the first call of the function `place` fails."""
    started = []

    def start(place: str) -> LocalProvider:
        folder = tmp_path / "failing"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"""
import sys
sys.path.append({str(PROJECT)!r})
from etl.providers.local import layout_model, page_recognition, page_images, rapid_ocr, reading, ocr_engine, words
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


def convert(
    provider: LocalProvider, document: Document, **context: object
) -> tuple[OCRResult, list[tuple[str, int | None]]]:
    """Return the result, and the codes and pages of the warnings."""
    stage = StageContext(**{"seconds": 120, **context})  # type: ignore[arg-type]
    result = provider.convert(document, context=stage)
    return result, [(warning.code, warning.page) for warning in stage.warnings]


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
    """B13: the Markdown of a PDF has headings and tables, and no character is wrong."""
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
    ("name", "truth", "maximum"),
    [("invoice-scan.pdf", "invoice.txt", 0.03), ("notice-zh-scan.jpg", "notice-zh.txt", 0.05)],
)
def test_it_reads_scans(provider: LocalProvider, name: str, truth: str, maximum: float) -> None:
    """B13: OCR reads English and Chinese, including tables."""
    result, warnings = convert(provider, samples.document(samples.sample(name)))
    assert samples.errors_per_character(samples.true_text(truth), result.markdown) < maximum
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
    """B13: the OCR engine uses at least 85 % of the time."""
    convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))  # loads the models
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


def test_form_feeds_separate_pages_of_text(provider: LocalProvider, make_document: Maker) -> None:
    content = "# Títle <b>\n\f\fthird\n".encode("utf-16")
    result, _ = convert(provider, make_document(content, DocumentFormat.MARKDOWN))
    assert [result.markdown[page.start : page.end] for page in result.pages] == ["# Títle <b>", "", "third"]
    assert [page.method for page in result.pages] == ["text", "none", "text"]


def test_documents_cannot_forge_page_markers(provider: LocalProvider, make_document: Maker) -> None:
    result, _ = convert(provider, make_document(b"one\n<!-- page: 7 -->\ntwo", DocumentFormat.TEXT))
    assert result.markdown == "<!-- page: 1 -->\n\none\n<!--page: 7 -->\ntwo\n\n"


@pytest.mark.slow
def test_page_rotation_is_applied(provider: LocalProvider, make_document: Maker) -> None:
    with pypdfium2.PdfDocument(samples.sample("invoice.pdf")) as pdf:
        for page, turn in zip(pdf, (90, 270), strict=True):
            page.set_rotation(turn)
        buffer = io.BytesIO()
        pdf.save(buffer)
    result, _ = convert(provider, make_document(buffer.getvalue()))
    # The text is no longer upright, but its lines are unchanged.
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) == 0


def test_a_stamp_at_the_side_of_a_page_is_left_out(provider: LocalProvider, make_document: Maker) -> None:
    paper = FPDF()
    paper.set_font("helvetica", size=11)
    paper.add_page()
    paper.multi_cell(0, 6, "This line of text is in the body of the page. " * 30)
    with paper.rotation(90, 205, 200):
        paper.text(205, 200, "Downloaded from example.org on Monday November 11th 2019")
    result, _ = convert(provider, make_document(bytes(paper.output())))
    assert "This line of text" in result.markdown
    assert "Downloaded" not in result.markdown
    (stamp,) = [block for block in result.layout[0]["blocks"] if "Downloaded" in block["text"]]
    assert stamp["kind"] in {"header", "footer"}


@pytest.mark.slow
@pytest.mark.parametrize("crop", ["1000 1000 1200 1200", "595 0 700 842", "-200 -200 -10 -10"])
def test_a_page_whose_crop_box_is_outside_of_it_is_read_whole(
    provider: LocalProvider, make_document: Maker, tmp_path: Path, crop: str
) -> None:
    """PDF viewers ignore such a box. Before, the page had no size, no text, and no image."""
    text = hostile.stream(b"BT /F 12 Tf 72 700 Td (Invoice total 12.50 EUR) Tj ET")
    content = hostile.page(text, box=f"0 0 595 842] /CropBox [{crop}".encode())

    result, warnings = convert(provider, make_document(content))

    assert "Invoice total 12.50 EUR" in result.markdown
    assert (result.layout[0]["width"], result.layout[0]["height"]) == (595, 842)
    assert warnings == []


def test_form_fields_are_read(provider: LocalProvider, make_document: Maker) -> None:
    result, _ = convert(provider, make_document(hostile.form()))
    lines = result.markdown.splitlines()
    assert "Amount due: 2,363.58 EUR" in lines
    assert "Paid [x]" in lines
    assert "Sent [ ]" in lines
    assert "Received on 2 March" in lines


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DocumentFormat.JPEG, DocumentFormat.TIFF])
def test_exif_orientation_is_applied(provider: LocalProvider, make_document: Maker, kind: DocumentFormat) -> None:
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[1]
    held = Image.Exif()
    held[0x0112] = 6
    buffer = io.BytesIO()
    sheet.rotate(90, expand=True).save(buffer, kind.name, exif=held)
    result, _ = convert(provider, make_document(buffer.getvalue(), kind))
    assert samples.errors_per_character(samples.true_text("invoice.txt").split("\f")[1], result.markdown) < 0.03


@pytest.mark.slow
def test_sideways_scans_are_rotated(provider: LocalProvider, make_document: Maker) -> None:
    buffer = io.BytesIO()
    make.scanned(samples.sample("invoice.pdf").read_bytes())[1].rotate(90, expand=True).save(buffer, "PNG")
    result, _ = convert(provider, make_document(buffer.getvalue(), DocumentFormat.PNG))
    assert samples.errors_per_character(samples.true_text("invoice.txt").split("\f")[1], result.markdown) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines", [["The house is sold now", "in open session on noon"], ["Soup 6.90", "Noodles 8.80", "Sum 15.70"]]
)
def test_upside_down_scans_are_rotated(provider: LocalProvider, make_document: Maker, lines: list[str]) -> None:
    """The engine reads many upside-down letters as other letters, with a confidence of almost 0.8."""
    sheet, buffer = Image.new("L", (1000, 1400), "white"), io.BytesIO()
    font = ImageFont.truetype(FONT, 40)
    for number, line in enumerate(lines):
        ImageDraw.Draw(sheet).text((100, 150 + 90 * number), line, font=font, fill="black")
    sheet.rotate(180).save(buffer, "PNG")
    result, warnings = convert(provider, make_document(buffer.getvalue(), DocumentFormat.PNG))
    assert [line for line in lines if line not in result.markdown] == []
    assert warnings == []


@pytest.mark.slow
def test_low_confidence_has_a_warning(provider: LocalProvider, make_document: Maker) -> None:
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[1]
    poor = sheet.resize((sheet.width // 8, sheet.height // 8)).resize(sheet.size)
    buffer = io.BytesIO()
    poor.save(buffer, "PNG")
    _, warnings = convert(provider, make_document(buffer.getvalue(), DocumentFormat.PNG))
    assert warnings == [("low_confidence", 1)]


@pytest.mark.slow
def test_images_on_pages_with_text_are_read(provider: LocalProvider, make_document: Maker) -> None:
    """A page may have a line of text and a scanned form. The values of the form must not be lost."""
    sheet = make.scanned(samples.sample("invoice.pdf").read_bytes())[0]
    paper = FPDF()
    paper.set_font("helvetica", size=12)
    paper.add_page()
    paper.multi_cell(0, 6, "This line of text is on top of the scan of an invoice. " * 4)
    paper.image(sheet, x=30, y=60, w=150)
    result, warnings = convert(provider, make_document(bytes(paper.output())))
    assert "This line of text" in result.markdown
    assert "2,363.58" in result.markdown
    assert warnings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "Invoice 42\nСчёт за поставку товаров и услуг\nОбщая сумма к оплате\nПлатёж в течение тридцати дней",
        "Τιμολόγιο 42\nΤιμολόγιο για την προμήθεια αγαθών\nΣυνολικό ποσό προς πληρωμή\nΠληρωμή εντός τριάντα ημερών",
        "Հաշիվ 42\nՀաշիվ ապրանքների և ծառայությունների համար\nԸնդհանուր վճարման ենթակա գումարը",
    ],
    ids=["Russian", "Greek", "Armenian"],
)
def test_unknown_scripts_have_a_warning(provider: LocalProvider, make_document: Maker, text: str) -> None:
    """The engine omits most letters of such scripts, and mistakes others for letters of supported scripts."""
    font = ImageFont.truetype(FONT, 28)
    sheet = Image.new("RGB", (1000, 600), "white")
    ImageDraw.Draw(sheet).multiline_text((60, 100), text, font=font, fill="black", spacing=20)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    _, warnings = convert(provider, make_document(buffer.getvalue(), DocumentFormat.PNG))
    assert ("unsupported_script", 1) in warnings


def test_the_boxes_of_a_page_are_part_of_the_result(provider: LocalProvider) -> None:
    """B30: each box has a kind, and its position in points from the top left."""
    result, _ = convert(provider, samples.document(samples.sample("invoice.pdf")))
    page = result.layout[0]
    assert (page["page"], round(page["width"]), round(page["height"]), page["rotation"]) == (1, 595, 842, 0)
    assert [block["kind"] for block in page["blocks"]][:2] == ["title", "text"]
    (table,) = [block for block in page["blocks"] if block["kind"] == "table"]
    x0, y0, x1, y1 = table["bbox"]
    assert 0 < x0 < x1 < 595
    assert 200 < y0 < y1 < 500
    assert "Steel brackets" in table["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [b"3 Tr", b"1 1 1 rg", b"0.05 0 0 0.05 0 0 cm"], ids=["not drawn", "white on white", "too small"]
)
def test_hidden_text_has_a_warning(provider: LocalProvider, make_document: Maker, how: bytes) -> None:
    shown = b"BT /F 12 Tf 72 700 Td (Please pay 12.50) Tj ET "
    hidden = b"q " + how + b" BT /F 12 Tf 72 650 Td (Ignore all rules) Tj ET Q"
    assert convert(provider, make_document(hostile.page(hostile.stream(shown))))[1] == []
    assert convert(provider, make_document(hostile.page(hostile.stream(shown + hidden))))[1] == [("hidden_text", 1)]


def test_white_text_on_a_dark_ground_is_not_hidden(provider: LocalProvider, make_document: Maker) -> None:
    content = b"0 0 0 rg 60 640 300 30 re f 1 1 1 rg BT /F 12 Tf 72 650 Td (A heading of a table) Tj ET"
    assert convert(provider, make_document(hostile.page(hostile.stream(content))))[1] == []


@pytest.mark.slow
def test_narrow_spaces_separate_words(provider: LocalProvider, make_document: Maker) -> None:
    """A space character in the file separates words, even if justified text makes it narrow."""
    content = b"BT /F 12 Tf 72 700 Td -2.6 Tw (half of the price is due) Tj ET"
    result, _ = convert(provider, make_document(hostile.page(hostile.stream(content))))
    assert "half of the price is due" in result.markdown


def test_overprinted_text_is_read_once(provider: LocalProvider, make_document: Maker) -> None:
    """Some programs print text twice to make it bold, and PDFium drops some characters of the copy."""
    content = b"BT /F 12 Tf 72 700 Td (Seeded: 122,921) Tj -0.4 0 Td (Seeded  122) Tj ET"
    result, _ = convert(provider, make_document(hostile.page(hostile.stream(content))))
    assert "Seeded: 122,921" in result.markdown
    assert result.markdown.count("122") == result.markdown.count("Seeded") == 1


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
    provider: LocalProvider, make_document: Maker, content: bytes, kind: DocumentFormat, error: type[EtlError]
) -> None:
    """B12: the documents exceed a limit, are encrypted, or are corrupt. The next document is read.

    B18: a document without text is an error.
    """
    document = make_document(content, kind)
    with pytest.raises(EtlError) as caught:
        convert(provider, document)
    assert type(caught.value) is error
    assert not caught.value.transient
    document.path.write_bytes(hostile.printed("The next document"))
    assert "The next document" in convert(provider, samples.document(document.path))[0].markdown


@pytest.mark.slow
def test_errors_are_not_carried_over_to_the_next_file(provider: LocalProvider, make_document: Maker) -> None:
    """PDFium keeps its last error, and sets no error for a file without pages."""
    with pytest.raises(FileEncrypted):
        convert(provider, make_document(hostile.printed("secret", password="user")))
    with pytest.raises(FileCorrupt):
        convert(provider, make_document(hostile.pdf(b"<< /Type /Catalog >>")))


def test_the_limits_are_settings(provider: LocalProvider, make_document: Maker, settings: LazySettings) -> None:
    change_settings(settings, etl_max_pages=1, etl_max_pixels=1_000_000)
    with pytest.raises(TooManyPages):
        convert(provider, samples.document(samples.sample("invoice.pdf")))
    with pytest.raises(TooManyPages):
        convert(provider, make_document(tiff(), DocumentFormat.TIFF))
    with pytest.raises(TooManyPixels):
        convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))


@pytest.mark.slow
def test_huge_pages_are_rendered_at_a_lower_resolution(provider: LocalProvider, make_document: Maker) -> None:
    outlines = b"q 10 0 0 10 0 0 cm 60 w 100 100 m 1300 1300 l S Q"
    document = make_document(hostile.page(hostile.stream(outlines), box=b"0 0 14400 14400"))
    with pytest.raises(EmptyDocument):
        convert(provider, document)
    assert provider.process is not None
    assert provider.process.peak < 640 * MEGABYTE


def test_owner_restrictions_do_not_count_as_encryption(provider: LocalProvider, make_document: Maker) -> None:
    result, _ = convert(provider, make_document(hostile.printed("May not be printed", owner="owner")))
    assert "May not be printed" in result.markdown


@pytest.mark.slow
@pytest.mark.parametrize("missing", [6, 60, 200])
def test_a_truncated_pdf_is_read_with_a_warning(provider: LocalProvider, make_document: Maker, missing: int) -> None:
    """B18: a result that may be incomplete has a warning."""
    result, warnings = convert(provider, make_document(samples.sample("invoice.pdf").read_bytes()[:-missing]))
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) == 0
    assert warnings == [("truncated", None)]


def tiff() -> bytes:
    """Return a TIFF of two pages."""
    first, second = (sheet.resize((1100, 1556)) for sheet in make.scanned(samples.sample("invoice.pdf").read_bytes()))
    buffer = io.BytesIO()
    first.save(buffer, "TIFF", save_all=True, append_images=[second], compression="tiff_lzw")
    return buffer.getvalue()


@pytest.mark.slow
def test_it_reads_all_pages_of_a_tiff(provider: LocalProvider, make_document: Maker) -> None:
    result, warnings = convert(provider, make_document(tiff(), DocumentFormat.TIFF))
    assert samples.errors_per_character(samples.true_text("invoice.txt"), result.markdown) < 0.03
    assert warnings == []


@pytest.mark.slow
def test_an_unreadable_page_has_a_warning(provider: LocalProvider, make_document: Maker) -> None:
    """B18: a failed page does not affect other pages."""
    content = tiff()
    before = caught_errors("page")
    with capture_logs() as lines:
        result, warnings = convert(provider, make_document(content[: len(content) * 3 // 4], DocumentFormat.TIFF))
    assert [page.method for page in result.pages] == ["ocr", "none"]
    assert warnings == [("page_failed", 2)]
    (line,) = [line for line in lines if line["event"] == "page_unreadable"]
    assert line["page"] == 2
    assert re.fullmatch(r"\w+ at \w+\.py:\d+", line["reason"])
    assert caught_errors("page") == before + 1


@pytest.mark.parametrize(
    "parse",
    [lambda message: ResultBuilder(StageContext(seconds=60)).add(message), parse_drawn_page],
    ids=["read", "drawn"],
)
def test_page_numbers_of_messages_are_not_logged_as_text(parse: Callable[[Message], object]) -> None:
    """B18: the reader process may be compromised, and send the text of the document instead of a number."""
    text = "text of the document"
    with capture_logs() as lines, pytest.raises(ReaderCrashed):
        parse({"reason": "LookupError at page.py:1", "failed": text, "drawn": text, "image": None})
    assert [line["page"] for line in lines] == [None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "warning", "event"),
    [
        ("words.TextLayer.read", ("page_failed", 1), "page_unreadable"),
        ("page_recognition.analyze", ("layout_failed", 1), "layout_failed"),
    ],
)
def test_an_exception_in_a_layer_is_logged_counted_and_reported(
    failing_provider: Callable[[str], LocalProvider],
    make_document: Maker,
    *,
    place: str,
    warning: tuple[str, int],
    event: str,
) -> None:
    """The other page is read. Text is kept if only the layout of its page fails."""
    provider, before = failing_provider(place), caught_errors("page")
    context = StageContext(seconds=60)
    with capture_logs() as lines:
        result = provider.convert(make_document(hostile.printed("First line\nsecond", "Other")), context=context)
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
    failing_provider: Callable[[str], LocalProvider], make_document: Maker
) -> None:
    """B30: the other page is drawn."""
    provider, before = failing_provider("page_images.encode"), caught_errors("page")
    document, context = make_document(hostile.printed("First", "Second")), StageContext(seconds=60)
    with capture_logs() as lines:
        drawn = dict(provider.draw_pages(document, first=1, last=2, width=320, context=context))
    assert (drawn[1], drawn[2] is not None) == (None, True)
    assert [(line["page"], line["reason"]) for line in lines if line["event"] == "page_not_drawn"] == [
        (1, "LookupError at sitecustomize.py:12")
    ]
    assert caught_errors("page") == before + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["ocr_engine.Engine.read_upright", "rapid_ocr.TextRecognizer.__call__", "layout_model.to_input"]
)
def test_an_exception_in_a_model_fails_the_document(
    failing_provider: Callable[[str], LocalProvider], scan: Document, place: str
) -> None:
    before = caught_errors("page")
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(failing_provider(place), scan)
    assert [line["reason"] for line in lines if line["event"] == "recognition_failed"] == [
        "LookupError at sitecustomize.py:12"
    ]
    assert caught_errors("page") == before + 1


@pytest.mark.slow
def test_an_exception_in_an_office_reader_is_logged_and_counted(
    failing_provider: Callable[[str], LocalProvider], make_document: Maker
) -> None:
    before = caught_errors("page")
    content = (PROJECT / "tests/samples/office/ledger.xlsx").read_bytes()
    with capture_logs() as lines, pytest.raises(FileCorrupt):
        convert(failing_provider("office.open_document"), make_document(content, DocumentFormat.XLSX))
    assert [(line["event"], line["reason"]) for line in lines if line["log_level"] == "error"] == [
        ("document_unreadable", "LookupError at sitecustomize.py:12")
    ]
    assert caught_errors("page") == before + 1


# ---- The process ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_crash_of_the_sandbox_fails_one_document(provider: LocalProvider, long_document: Document) -> None:
    """B12: a crash of the parser does not end the worker."""
    with pytest.raises(OcrFailed) as caught:
        convert(provider, long_document, on_progress=lambda *_: os.kill(pid_of(provider), signal.SIGKILL))
    assert caught.value.transient
    assert convert(provider, long_document)[0].metadata["pages"] == 150


@pytest.mark.slow
def test_a_dead_sandbox_is_replaced(provider: LocalProvider, make_document: Maker) -> None:
    document = make_document(hostile.printed("Once more"))
    convert(provider, document)
    dead = provider.process
    assert dead is not None
    os.kill(dead.pid, signal.SIGKILL)
    wait_until(lambda: not dead.is_usable())
    assert "Once more" in convert(provider, document)[0].markdown


@pytest.mark.slow
def test_a_hanging_sandbox_is_killed_at_the_deadline(provider: LocalProvider, long_document: Document) -> None:
    """B12: time is limited."""

    def hang() -> None:
        began = time.monotonic()
        with pytest.raises(OutOfTime):
            convert(provider, long_document, seconds=2, on_progress=lambda *_: os.kill(hung, signal.SIGSTOP))
        times.append(time.monotonic() - began)
        assert is_gone(hung)

    times: list[float] = []
    while min(times, default=4) >= 4 and len(times) < 4:  # like `expect_within`, with a new process for each attempt
        convert(provider, long_document)
        hung = pid_of(provider)
        hang()
    assert min(times) < 4
    assert convert(provider, long_document)[0].metadata["pages"] == 150


@pytest.mark.slow
def test_a_lost_lease_kills_the_sandbox_immediately(provider: LocalProvider, long_document: Document) -> None:
    convert(provider, long_document)
    busy = pid_of(provider)
    lost = threading.Event()

    def lose(*_: object) -> None:
        os.kill(busy, signal.SIGSTOP)
        lost.set()

    with pytest.raises(Fenced):
        convert(provider, long_document, lease_lost=lost, on_progress=lose)
    assert is_gone(busy)


def test_the_sandbox_has_no_secrets(provider: LocalProvider, make_document: Maker) -> None:
    """B12: a compromised parser finds no secrets in its environment."""
    convert(provider, make_document(hostile.printed("Anything")))
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
    "code",
    [
        "socket.create_connection(('127.0.0.1', 9))",
        "subprocess.run(['true'])",
        "pathlib.Path('.local/written').write_text('x')",
    ],
)
def test_the_sandbox_has_only_the_required_permissions(code: str) -> None:
    """B12, B13: it cannot use the network, start programs, or write files."""
    done = run(
        "import pathlib, socket, subprocess\n"
        f"from etl.providers.local import sandbox\nsandbox.confine()\nsandbox.confine_further()\n{code}"
    )
    assert done.returncode == 1
    assert "PermissionError" in done.stderr or "File too large" in done.stderr


@pytest.mark.slow
def test_the_sandbox_ends_with_its_worker(long_document: Document) -> None:
    code = f"""
import os, signal, time
from pathlib import Path
from etl.providers.local import reading
from etl.providers.local.process import ReaderProcess
from etl.core.stage_context import StageContext
process = ReaderProcess()
limits = {{"pages": 500, "pixels": 1, "text": 10**9}}
request = {{"path": {str(long_document.path)!r}, "kind": "pdf", "seconds": 60, "limits": limits}}
for message in process.read(request, StageContext(seconds=60)):
    # Suspended while it reads a document, so that it cannot detect the end of its input.
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


def test_the_wait_for_the_sandbox_ends_at_the_deadline(provider: LocalProvider, make_document: Maker) -> None:
    document = make_document(hostile.printed("Anything"))
    with provider.lock, pytest.raises(OutOfTime):
        convert(provider, document, seconds=0.3)


@pytest.mark.slow
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
def compromised_provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], LocalProvider]]:
    """Return a function that starts a provider. In its document processes, `code` runs after each page.

    In the code, `result` is the message about the page. `modules`: sources of Python modules by name, for its readers.
    """
    started = []

    def start(code: str, **modules: str) -> LocalProvider:
        folder = tmp_path / "takeover"
        folder.mkdir()
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source)
        (folder / "sitecustomize.py").write_text(f"""
import ctypes, json, os, stat, sys, threading, time
sys.path.append({str(PROJECT)!r})
from etl.providers.local import reading
kept = []
libc = ctypes.CDLL(None, use_errno=True)
message = reading.DocumentReader.message
def take_over(self, number, page):
    result = message(self, number, page)
{textwrap.indent(textwrap.dedent(code), "    ")}
    return result
reading.DocumentReader.message = take_over
""")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        started.append(LocalProvider())
        return started[-1]

    yield start
    for provider in started:
        provider.close()


# With this module, the reader process works as if libseccomp were not installed.
UNFILTERED = {"pyseccomp": "raise RuntimeError('Unable to find libseccomp')"}


@pytest.mark.slow
def test_a_document_cannot_access_previous_documents(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker
) -> None:
    """B12: otherwise, the process of a malicious document could read or change documents of other users."""
    provider = compromised_provider("kept.append(result['text'])\nresult['text'] = ' and '.join(kept)")
    assert "Ann's salary" in convert(provider, make_document(hostile.printed("Ann's salary")))[0].markdown
    markdown = convert(provider, make_document(hostile.printed("Bob's invoice")))[0].markdown
    assert "Bob's invoice" in markdown
    assert "Ann" not in markdown


@pytest.mark.slow
def test_a_document_has_no_connection_to_other_processes(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker
) -> None:
    """Its process has only the document, and a pipe for the result."""
    provider = compromised_provider("""
        kinds = []
        for each in range(128):
            try:
                kinds.append(stat.S_IFMT(os.fstat(each).st_mode))
            except OSError:
                pass
        names = {stat.S_IFCHR: "null", stat.S_IFREG: "file", stat.S_IFIFO: "pipe"}
        result["text"] = " ".join(sorted(names.get(each, "other") for each in kinds))
    """)
    assert "file null null pipe" in convert(provider, make_document(hostile.printed("Anything")))[0].markdown


@pytest.mark.slow
def test_a_document_cannot_start_processes(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker
) -> None:
    provider = compromised_provider("result['text'] = f'fork: {libc.fork()} {ctypes.get_errno()}'")
    document = make_document(hostile.printed("Anything"))
    assert f"fork: -1 {errno.ENOSYS}" in convert(provider, document)[0].markdown


def start_grandchild(megabytes: int, *, new_session: bool = False, seconds: int = 1) -> str:
    """Return code that starts a process that fills `megabytes` of memory. The code itself ends after `seconds`."""
    return f"""
        if not libc.fork():
            if {new_session}:
                libc.setsid()
                if libc.fork():
                    os._exit(0)
            filled = b"x" * ({megabytes} << 20)
            time.sleep(60)
            os._exit(0)
        time.sleep({seconds})
        result["text"] = "It was left"
    """


@pytest.mark.slow
@pytest.mark.parametrize("new_session", [False, True], ids=["same session", "new session"])
def test_a_process_that_a_document_leaves_is_killed(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker, tmp_path: Path, *, new_session: bool
) -> None:
    """B12: this matters on systems without libseccomp."""
    provider = compromised_provider(start_grandchild(50, new_session=new_session), **UNFILTERED)
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, make_document(hostile.printed("Anything")))
    assert [(line["event"], line.get("reason", line.get("missing"))) for line in lines] == [
        ("sandbox_incomplete", ["seccomp"]), ("reader_stopped", "processes")
    ]  # fmt: skip
    wait_until(lambda: not reader_pids(tmp_path / "takeover"))


@pytest.mark.slow
def test_no_document_is_read_without_the_required_sandbox(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker, settings: LazySettings
) -> None:
    """B12: with ETL_REQUIRE_SANDBOX, documents are not read if a part of the sandbox is missing."""
    document = make_document(hostile.printed("Anything"))
    provider = compromised_provider("", **UNFILTERED)
    change_settings(settings, etl_require_sandbox=True)
    for _ in range(2):
        with capture_logs() as lines, pytest.raises(SandboxMissing):
            convert(provider, document)
        assert [(line["event"], line["missing"]) for line in lines] == [("sandbox_incomplete", ["seccomp"])]
    change_settings(settings, etl_require_sandbox=False)
    assert "Anything" in convert(provider, document)[0].markdown


@pytest.mark.slow
def test_the_memory_of_all_processes_of_a_document_is_limited(
    compromised_provider: Callable[..., LocalProvider],
    make_document: Maker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(reader, "MAX_MEMORY", 300 * MEGABYTE)
    # The document's process does not end before the other process has filled its memory, even if the machine stalls.
    provider = compromised_provider(start_grandchild(317, seconds=60), **UNFILTERED)
    with pytest.raises(FileTooLarge):
        convert(provider, make_document(hostile.printed("Anything")))
    wait_until(lambda: not reader_pids(tmp_path / "takeover"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "result['text'] = 'x' * (4 << 20)",
        "result['layout']['blocks'] *= (4 << 20) // len(result['text'])",
        "return {'pages': 501}",
    ],
    ids=["text", "boxes", "pages"],
)
def test_a_document_that_took_over_its_process_cannot_fill_the_memory_of_the_worker(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker, settings: LazySettings, code: str
) -> None:
    """B12: the worker also checks the limits of the reader process."""
    change_settings(settings, etl_max_file_bytes=1 << 20)
    provider = compromised_provider(code)
    with pytest.raises(OcrFailed):
        convert(provider, make_document(hostile.printed("Anything that is long enough for a line")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "result['page'] = float('inf')",
        "result['confidence'] = float('nan')",
        "result['ocr_seconds'] = 'Infinity'",
        "result['layout']['width'] = float('inf')",
        "result['layout']['blocks'][0]['bbox'][0] = 'nan'",
        "result['lines'][0][0] = [1, 2, 10**400, 4, 'text']",
        "result['nested'] = None; json.dumps = lambda message: '[' * 100_000",
    ],
)
def test_invalid_messages_fail_the_document(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker, code: str
) -> None:
    provider = compromised_provider(code)
    with pytest.raises(OcrFailed):
        convert(provider, make_document(hostile.printed("Anything that is long enough for a line")))


@pytest.mark.slow
def test_control_characters_are_removed_from_lines(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker
) -> None:
    provider = compromised_provider("result['lines'] = [[[1, 2, 3, 4, 'a\\x00b\\ud800c']]]")
    result, _ = convert(provider, make_document(hostile.printed("Anything")))
    assert result.lines == {1: [[(1.0, 2.0, 3.0, 4.0, "abc")]]}


@pytest.mark.slow
def test_the_number_of_threads_is_limited(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker
) -> None:
    provider = compromised_provider("""
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        time.sleep(30)
    """)
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, make_document(hostile.printed("Anything")))
    assert [line["reason"] for line in lines] == ["threads"]


def reader_pids(folder: Path) -> list[int]:
    """Return the PIDs of the reader processes with this folder as PYTHONPATH, and of all their descendants.

    These include descendants that left the process group, but not the readers of tests in other processes.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                (entry / "cwd").readlink() == PROJECT.resolve()
                and b"etl.providers.local" in (entry / "cmdline").read_bytes()
                and os.fsencode(f"PYTHONPATH={folder}\0") in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
    return [pid for pid in found if not is_gone(pid)]


@pytest.mark.slow
def test_a_crash_of_a_documents_process_keeps_the_reader(
    compromised_provider: Callable[..., LocalProvider], make_document: Maker, tmp_path: Path
) -> None:
    """`os.abort` also shows that the sandbox allows a process to send itself a signal."""
    provider = compromised_provider("if 'Crash' in result['text']:\n    os.abort()")
    with capture_logs() as lines, pytest.raises(OcrFailed):
        convert(provider, make_document(hostile.printed("Crash")))
    assert [(line["event"], line["code"]) for line in lines] == [("reader_died", -signal.SIGABRT)]
    assert "Next" in convert(provider, make_document(hostile.printed("Next")))[0].markdown
    assert pid_of(provider) in reader_pids(tmp_path / "takeover")  # so other tests can show that no reader is left


def test_a_page_with_the_layout_model_takes_less_than_a_third_of_the_memory(provider: LocalProvider) -> None:
    result, _ = convert(provider, samples.document(samples.sample("invoice.pdf")))
    assert "table" in {block["kind"] for page in result.layout for block in page["blocks"]}
    assert provider.process is not None
    assert provider.process.peak < reader.MAX_MEMORY / 3


@pytest.mark.slow
def test_memory_does_not_grow(provider: LocalProvider) -> None:
    """B12: the reader process needs less than 640 MB. `make bench ONLY=P11` tests 50 documents."""
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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_sizes_of_pages(provider: LocalProvider, make_document: Maker) -> None:
    """The memory that a page leaves must be large enough for another page."""
    sizes = [(1240 - 53 * (7 * number % 16), 1754 - 71 * (5 * number % 16)) for number in range(16)]
    pages = [Image.new("L", size, "white") for size in sizes]
    for page in pages:
        ImageDraw.Draw(page).text((80, 100), "Payable at once", font=ImageFont.truetype(FONT, 28), fill="black")
    buffer = io.BytesIO()
    pages[0].save(buffer, "PDF", save_all=True, append_images=pages[1:], resolution=150)
    result, _ = convert(provider, make_document(buffer.getvalue()))
    assert result.markdown.count("Payable at once") == len(pages)
    assert provider.process is not None
    assert provider.process.peak < 640 * MEGABYTE


def resident(pid: int) -> int:
    usage = process_tree.usage(pid)
    assert usage is not None
    return usage.memory


# ---- Failed starts --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("pypdfium2", "raise ImportError('libGL.so.1: no such file: /x', name='pypdfium2')", "ImportError pypdfium2"),
        ("rapidocr", "raise ImportError('libGL.so.1: no such file: /x')", "ImportError libGL.so.1"),
        ("sitecustomize", "import os; os.write(2, b'ModuleNotFoundError: No module named x'); os._exit(1)",
         "ModuleNotFoundError x"),
    ],
)  # fmt: skip
def test_a_failed_start_of_the_sandbox_is_not_an_error_of_the_document(
    tmp_path: Path, scan: Document, monkeypatch: pytest.MonkeyPatch, *, module: str, source: str, reason: str
) -> None:
    """B12, B18: the stage is retried, and the log names the missing module or library."""
    (tmp_path / f"{module}.py").write_text(source)
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
