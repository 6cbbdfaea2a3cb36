"""Office documents, web pages, books, emails, and tables in the local provider's sandbox (B12, B28)."""

import io
import re
import threading
import zipfile
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import xlsxwriter
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter
from pptx import Presentation
from pptx.chart import data as chart_data
from pptx.enum.chart import XL_CHART_TYPE
from structlog.testing import capture_logs

from etl.core import errors
from etl.core.completeness import incomplete_pages
from etl.core.errors import EtlError
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document, OCRResult
from etl.providers.local import LocalProvider
from etl.providers.local.office import reading, xml
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import MAX_CELLS, TextBudget
from etl.providers.local.office.workbook import Workbook
from etl.providers.local.pages import DocumentLimits
from tests import samples
from tests.samples import Maker, hostile, hostile_office
from tests.unit.test_citations import citations

SAMPLES = Path(samples.__file__).parent / "office"
TABLE = "| Item | Quantity | Amount |\n| --- | --- | --- |\n| Steel brackets, 40 mm | 120 | 378.00 |"


def convert(provider: LocalProvider, document: Document) -> tuple[OCRResult, list[tuple[str, int | None]]]:
    context = StageContext(seconds=120)
    result = provider.convert(document, context=context)
    return result, [(warning.code, warning.page) for warning in context.warnings]


def read(provider: LocalProvider, name: str) -> tuple[list[str], list[tuple[str, int | None]]]:
    """Return the pages of a sample, and its warnings."""
    result, warnings = convert(provider, samples.document(SAMPLES / name))
    return [result.markdown[page.start : page.end] for page in result.pages], warnings


# ---- Formats --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["invoice.docx", "invoice.odt", "invoice.epub", "invoice.html"])
def test_headings_tables_and_lists_keep_their_structure(provider: LocalProvider, name: str) -> None:
    """B28."""
    text = "\n\n".join(read(provider, name)[0])
    assert "# Invoice EX-2024-0117" in text
    assert "# Goods and services" in text
    assert TABLE in text
    assert "1. Payment within thirty days.\n2. Interest for late payment:\n" in text
    assert "- 8 % above the base rate" in text
    assert "PO-7788" in text


def test_pages_of_word_documents_follow_the_recorded_page_breaks(provider: LocalProvider) -> None:
    pages, warnings = read(provider, "contract.docx")
    assert len(pages) == 3
    assert pages[0].startswith("Example Trading Ltd, 12 Sample Street\n\n# Contract\n\n## Parties")
    assert "1. First point\n2. Second point\n\n- A remark" in pages[0]
    assert pages[1].startswith("## Price\n\n| Item | Quantity | Amount |")
    assert "| Sum |  | 378.00 |" in pages[1]
    assert pages[2].endswith("IBAN DE02 1203 0000 0000 2020 51")
    assert warnings == [("hidden_text", 2)]


def test_a_sheet_is_a_page_with_displayed_values_and_a_note_about_hidden_cells(provider: LocalProvider) -> None:
    pages, warnings = read(provider, "ledger.xlsx")
    assert pages[0].startswith("## Ledger\n\nHidden rows: 3. Hidden columns: D.\n\n| Date | Account | Amount |")
    assert "| 29.02.2024 | Sales | 1,234.50 € | 19.0% | 9:05 AM |" in pages[0]
    assert "|  | Total | -88,913.70 € |  |  |" in pages[0]  # the cached value of a formula
    assert pages[1] == "## Rates (hidden sheet)\n\n| Rate | Value |\n| --- | --- |\n| VAT | 0.19 |"
    assert warnings == [("hidden_text", 1), ("hidden_text", 2)]


def saved(workbook: openpyxl.Workbook) -> bytes:
    file = io.BytesIO()
    workbook.save(file)
    return file.getvalue()


def test_more_than_twenty_hidden_columns_are_abbreviated(provider: LocalProvider, make_document: Maker) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(list(range(30)))
    for column in range(1, 27):
        workbook.active.column_dimensions[get_column_letter(column)].hidden = True
    result = provider.convert(make_document(saved(workbook), DocumentFormat.XLSX), context=StageContext(seconds=120))
    assert "Hidden columns: A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, …." in result.markdown


def test_formulas_without_a_cached_value_have_a_warning_that_names_them(
    provider: LocalProvider, make_document: Maker
) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["Note"])
    sheet = workbook.create_sheet("Bill")
    for row in (["Item", "EUR"], ["a", 10], ["b", 20], ["Total", "=SUM(B2:B3)"], ["Tax", "=B4*0.19"]):
        sheet.append(row)
    context = StageContext(seconds=120)
    result = provider.convert(make_document(saved(workbook), DocumentFormat.XLSX), context=context)
    assert "| Total |  |" in result.markdown
    [warning] = context.warnings
    assert (warning.code, warning.page) == ("formula_without_value", 2)
    assert warning.detail == "The file has no stored values for these formulas: B4, B5."
    assert incomplete_pages([{"code": warning.code, "page": warning.page}]) == [2]


def test_formulas_without_a_cached_value_are_counted() -> None:
    budget = TextBudget(1_000)
    budget.cells = MAX_CELLS
    workbook = Workbook(Archive(io.BytesIO(hostile_office.xlsx(b"<row><c><f>1+1</f></c></row>"))), budget)
    with pytest.raises(errors.TooManyCells):
        workbook.page(0)


def test_formulas_of_programs_that_store_zero_have_a_warning(provider: LocalProvider, make_document: Maker) -> None:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file, {"in_memory": True}) as workbook:
        sheet = workbook.add_worksheet()
        sheet.write_row(0, 0, ["a", 10, 0])
        for row in range(1, 30):
            sheet.write_row(row, 0, ["Total", "=SUM(B1:B1)"])
    context = StageContext(seconds=120)
    result = provider.convert(make_document(file.getvalue(), DocumentFormat.XLSX), context=context)
    assert "| a | 10 | 0 |" in result.markdown
    assert "| Total |  |  |" in result.markdown
    assert "B20, B21, …." in context.warnings[0].detail


def test_a_formula_may_have_an_empty_text_as_its_value(provider: LocalProvider, make_document: Maker) -> None:
    cells = b'<row><c t="str"><f>""</f><v></v></c><c><f>1+1</f><v>2</v></c></row>'
    _, warnings = convert(provider, make_document(hostile_office.xlsx(cells), DocumentFormat.XLSX))
    assert warnings == []


@pytest.mark.parametrize(
    ("encoding", "begin"),
    [("utf-8", "<!DOCTYPE"), ("utf-16", "<!DOCTYPE"), ("utf-32", "<!DOCTYPE"), ("utf-7", "+ADwAIQ-DOCTYPE")],
)
def test_a_document_type_is_refused_in_every_encoding(encoding: str, begin: str) -> None:
    """B28."""
    text = f'<?xml version="1.0" encoding="{encoding}"?>{begin} a [<!ENTITY x "y">]><a b="&x;"/>'
    with pytest.raises(errors.FileCorrupt):
        xml.parse(text.encode("ascii" if encoding == "utf-7" else encoding))


def test_rows_may_be_numbered_from_0(provider: LocalProvider, make_document: Maker) -> None:
    cells = b'<row r="0"><c t="str"><v>first</v></c></row><row r="1"><c t="str"><v>second</v></c></row>'
    result, warnings = convert(provider, make_document(hostile_office.xlsx(cells), DocumentFormat.XLSX))
    assert "first\n\nsecond" in result.markdown
    assert warnings == []


def test_text_boxes_and_large_pictures_of_sheets(provider: LocalProvider, make_document: Maker) -> None:
    """Before, the text was lost and a sheet with a scan had no warning."""
    buffer = io.BytesIO()
    book = xlsxwriter.Workbook(buffer)
    sheet, scan, logo = book.add_worksheet("Notes"), book.add_worksheet("Scan"), book.add_worksheet("Logo")
    sheet.write(0, 0, "Amount")
    sheet.insert_textbox("C3", "Prices without tax.\nValid until 31 March.")
    for each, side in ((scan, 400), (logo, 40)):
        each.insert_image("A1", "a.png", {"image_data": io.BytesIO(hostile.png(side, side, bytes(side * (side + 1))))})
    book.close()
    result, warnings = convert(provider, make_document(buffer.getvalue(), DocumentFormat.XLSX))
    assert "## Notes\n\nAmount\n\nPrices without tax.\n\nValid until 31 March." in result.markdown
    assert warnings == [("image_not_read", 2)]


def test_struck_text_of_cells_is_marked(provider: LocalProvider, make_document: Maker) -> None:
    """B28."""
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    struck = InlineFont(strike=True)
    rich = CellRichText("now 80.00 ", TextBlock(struck, "was 9"), TextBlock(struck, "9.00 "), "EUR")
    sheet.append(["Price", 99])
    sheet.append(["Note", rich])
    sheet.append([CellRichText("all ", TextBlock(struck, "struck")), 77])
    sheet["B1"].font = sheet["A3"].font = Font(strike=True)
    sheet["B1"].number_format = "0.00"
    sheet["B3"].font = Font(strike=False)
    result, _ = convert(provider, make_document(saved(workbook), DocumentFormat.XLSX))
    assert "| Price | ~~99.00~~ |" in result.markdown
    assert "| Note | now 80.00 ~~was 99.00~~ EUR |" in result.markdown
    assert "| ~~all struck~~ | 77 |" in result.markdown


def test_texts_of_cells_have_their_format(provider: LocalProvider, make_document: Maker) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["Weight", "five"])
    workbook.active["B1"].number_format = '0;-0;0;@" kg"'
    result, _ = convert(provider, make_document(saved(workbook), DocumentFormat.XLSX))
    assert "| Weight | five kg |" in result.markdown


def test_a_slide_is_a_page_with_its_title_and_notes(provider: LocalProvider) -> None:
    pages, _ = read(provider, "review.pptx")
    assert (
        pages[1]
        == "# Revenue\n\n- North: 1,204\n- South: 980\n\n### Speaker notes\n\nMention the delayed order of March."
    )
    assert pages[2].startswith("# Figures\n\n| Quarter | Revenue |")


def test_sheets_of_opendocument_are_pages(provider: LocalProvider) -> None:
    pages, _ = read(provider, "stock.ods")
    assert pages[0] == "## Stock\n\n| Article | Units |\n| --- | --- |\n| Bolt | 120 |\n| Nut | 250 |"


def test_a_mail_has_its_headers_its_table_and_the_names_of_attachments(
    provider: LocalProvider, make_document: Maker
) -> None:
    mail = (
        b"From: =?utf-8?q?J=C3=BCrgen?= <j@example.com>\r\nTo: a@example.com\r\nSubject: Bill\r\nMIME-Version: 1.0\r\n"
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\nContent-Type: text/html; charset=iso-8859-1\r\n\r\n'
        b"<p style='display:none'>preheader</p><table><tr><th>Item<th>Price<tr><td>Caf\xe9<td>2</table>\r\n"
        b"--b\r\nContent-Type: application/pdf\r\nContent-Disposition: attachment; filename=bill.pdf\r\n\r\n"
        b"%PDF\r\n--b--\r\n"
    )
    result, warnings = convert(provider, make_document(mail, DocumentFormat.EML))
    assert "From: Jürgen <j@example.com>\n\nTo: a@example.com\n\nSubject: Bill" in result.markdown
    assert "| Item | Price |\n| --- | --- |\n| Café | 2 |" in result.markdown
    assert "Attachment: bill.pdf (4 bytes)" in result.markdown
    assert "preheader" not in result.markdown
    assert warnings == [("attachment_not_read", 1), ("hidden_text", 1)]


def mail_of(kind: str, *parts: str) -> str:
    """Return a multipart entity with these parts."""
    boundary = f"b{hash((kind, parts))}"
    body = "".join(f"--{boundary}\n{part}\n" for part in parts)
    return f"Content-Type: multipart/{kind}; boundary={boundary}\n\n{body}--{boundary}--\n"


def part_of(kind: str, text: str, disposition: str = "") -> str:
    header = f"Content-Disposition: {disposition}\n" if disposition else ""
    return f"Content-Type: {kind}\n{header}\n{text}"


PLAIN, ONE, TWO = (
    part_of("text/plain", "plain 1.11"),
    part_of("text/html", "<p>one 2.22</p>"),
    part_of("text/html; charset=utf-8", "<p>two 3.33</p>", "inline"),
)
PDF = part_of("application/pdf", "%PDF", 'inline; filename="bill.pdf"')
NOTES = part_of("text/plain", "notes", "attachment; filename=notes.txt")
PDF_LINE, NOTES_LINE = "Attachment: bill.pdf (4 bytes)", "Attachment: notes.txt (5 bytes)"
MAILS = {
    "one part": (PLAIN, ["plain 1.11"]),
    "texts of both types": (mail_of("mixed", PLAIN, ONE, TWO), ["plain 1.11", "one 2.22", "two 3.33"]),
    "texts around a file": (mail_of("mixed", ONE, PDF, TWO), ["one 2.22", PDF_LINE, "two 3.33"]),
    "a text as an attachment": (mail_of("mixed", PLAIN, NOTES), ["plain 1.11", NOTES_LINE]),
    "alternatives": (mail_of("alternative", PLAIN, ONE), ["one 2.22"]),
    "alternatives in the other order": (mail_of("alternative", ONE, PLAIN), ["one 2.22"]),
    "an alternative with two texts": (
        mail_of("alternative", PLAIN, mail_of("mixed", ONE, PDF, TWO)),
        ["one 2.22", PDF_LINE, "two 3.33"],
    ),
    "a file in the other alternative": (
        mail_of("alternative", mail_of("mixed", PLAIN, NOTES, PDF), ONE),
        [NOTES_LINE, PDF_LINE, "one 2.22"],
    ),
    "alternatives and a text": (mail_of("mixed", mail_of("alternative", PLAIN, ONE), TWO), ["one 2.22", "two 3.33"]),
    "parts of a text": (
        mail_of("mixed", mail_of("related", ONE, TWO, PDF), PLAIN),
        ["one 2.22", "two 3.33", PDF_LINE, "plain 1.11"],
    ),
    "a signed text": (mail_of("signed", mail_of("mixed", PLAIN, PDF), NOTES), ["plain 1.11", PDF_LINE, NOTES_LINE]),
    "messages": (
        mail_of("digest", f"\nSubject: A\n{PLAIN}", f"\nSubject: B\n{ONE}"),
        ["## Attached message", "Subject: A", "plain 1.11", "## Attached message", "Subject: B", "one 2.22"],
    ),
    "an invitation": (mail_of("alternative", PLAIN, ONE, part_of("text/calendar", "DTSTART")), ["one 2.22"]),
    "another type of text": (mail_of("mixed", PLAIN, part_of("text/csv", "a,b")), ["plain 1.11", "a,b"]),
    "a file alone": (PDF, [PDF_LINE]),
    "no parts": ("Content-Type: multipart/mixed; boundary=b\n\nplain 1.11", ["plain 1.11"]),
}


@pytest.mark.parametrize(("mail", "expected"), MAILS.values(), ids=MAILS)
def test_all_displayed_texts_of_a_mail_are_read(
    provider: LocalProvider, make_document: Maker, mail: str, expected: list[str]
) -> None:
    """Before, only one text was read. The others were lost, or treated as attachments (RFC 2046, RFC 2183)."""
    content = f"From: a@example.com\nMIME-Version: 1.0\n{mail}".encode()
    result, warnings = convert(provider, make_document(content, DocumentFormat.EML))
    assert result.markdown.strip().split("\n\n")[2:] == expected
    assert ("attachment_not_read", 1) in warnings or not any("Attachment:" in each for each in expected)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_mails_in_unicode_are_read(provider: LocalProvider, make_document: Maker, encoding: str) -> None:
    """Programs that save a mail as text write it with a byte order mark, or in UTF-16."""
    mail = f"From: a@example.com\nSubject: Bill\nMIME-Version: 1.0\n{part_of('text/html; charset=utf-8', '<p>5 €</p>')}"
    result, _ = convert(provider, make_document(mail.encode(encoding), DocumentFormat.EML))
    assert result.markdown.strip().split("\n\n")[1:] == ["From: a@example.com", "Subject: Bill", "5 €"]


def test_messages_of_a_mailbox_are_pages(provider: LocalProvider, make_document: Maker) -> None:
    envelope = "From a@example.com Thu Feb 29 10:00:00 2024\n"
    one = f"{envelope}From: a@example.com\nMIME-Version: 1.0\n{mail_of('mixed', PLAIN)}\n"
    two = f"{envelope}Subject: B\n\nFrom here on, text.\n\nFrom 1 Feb 2024\nit costs 2.22\n"
    result, _ = convert(provider, make_document((one + two).replace("\n", "\r\n").encode(), DocumentFormat.EML))
    assert [result.markdown[page.start : page.end].split() for page in result.pages] == [
        ["From:", "a@example.com", "plain", "1.11"],
        ["Subject:", "B", "From", "here", "on,", "text.", "From", "1", "Feb", "2024", "it", "costs", "2.22"],
    ]


def test_delimited_text_is_a_table(provider: LocalProvider, make_document: Maker) -> None:
    text = 'Datum;Konto;Betrag\n29.02.2024;"Erlöse; Inland";1.234,50 €\n'
    result, _ = convert(provider, make_document(text.encode("cp1252"), DocumentFormat.CSV))
    assert (
        "| Datum | Konto | Betrag |\n| --- | --- | --- |\n| 29.02.2024 | Erlöse; Inland | 1.234,50 € |"
        in result.markdown
    )


UNBALANCED = {
    "until the end": 'Item,Price\n"Pipe 12,1.50\n"Tube, thin",2.50\nCap,3.50\n',
    "until another mark": 'Item,Price\nPipe,1.50\n"Tube,2.50\nCap,3.50\n"Lid",4.50\n',
    "in the last row": 'Item,Price\nPipe,1.50\n"Tube,2.50',
}


@pytest.mark.parametrize("text", UNBALANCED.values(), ids=UNBALANCED)
def test_an_open_quotation_mark_hides_no_rows(provider: LocalProvider, make_document: Maker, text: str) -> None:
    """Before, the other rows were in one cell."""
    result, warnings = convert(provider, make_document(text.encode(), DocumentFormat.CSV))
    rows = [line for line in result.markdown.splitlines() if line.startswith("| ")]
    assert [line.rsplit("|", 2)[1].strip() for line in rows] == [
        "Price", "---", *re.findall(r"\d\.50", text),
    ]  # fmt: skip
    assert warnings == [("unbalanced_quotes", 1)]


def test_rows_beside_an_open_quotation_mark_keep_their_cells(provider: LocalProvider, make_document: Maker) -> None:
    result, _ = convert(provider, make_document(UNBALANCED["until the end"].encode(), DocumentFormat.CSV))
    assert '| "Pipe 12 | 1.50 |\n| Tube, thin | 2.50 |\n| Cap | 3.50 |' in result.markdown


def test_cells_with_line_breaks_and_text_after_a_quotation_mark_need_no_warning(
    provider: LocalProvider, make_document: Maker
) -> None:
    text = 'Item,Price\n"Pipe\nlong",1.50\n"Tube" thin,2.50\nCap 12",3.50\n'
    result, warnings = convert(provider, make_document(text.encode(), DocumentFormat.CSV))
    assert "| Tube thin | 2.50 |" in result.markdown
    assert sum(line.startswith("|") for line in result.markdown.splitlines()) == 5
    assert warnings == []


def test_only_line_ends_separate_rows(provider: LocalProvider, make_document: Maker) -> None:
    """Before, a line separator in a cell split its row. The last character marks the end of a file in DOS."""
    text = "Item,Amount\r\nSteel\u2028brackets,12\r\nNails\x0b\x85,3\r\n\x1a"
    result, _ = convert(provider, make_document(text.encode(), DocumentFormat.CSV))
    assert "| Item | Amount |\n| --- | --- |\n| Steel brackets | 12 |\n| Nails | 3 |" in result.markdown


@pytest.mark.parametrize("name", ["utf-16", "UTF-16LE", "utf_32", "utf-7", "idna", "punycode", "undefined"])
def test_impossible_encodings_of_html_are_ignored(provider: LocalProvider, make_document: Maker, name: str) -> None:
    text = f'<!DOCTYPE html><html><meta charset="{name}"><p>Müller schuldet der Firma heute noch 100,50 EUR</p>'
    result, _ = convert(provider, make_document(text.encode("cp1252"), DocumentFormat.HTML))
    assert "Müller schuldet der Firma heute noch 100,50 EUR" in result.markdown


def test_control_characters_of_html_are_removed(provider: LocalProvider, make_document: Maker) -> None:
    text = b"<html><p>exam\x02ple <s>5 \x1f</s>".ljust(1_000)
    result, _ = convert(provider, make_document(text, DocumentFormat.HTML))
    assert "example ~~5~~" in result.markdown


def test_telugu_in_utf_16_has_the_pages_of_its_form_feeds(provider: LocalProvider, make_document: Maker) -> None:
    """In UTF-16, each Telugu character contains the byte 0x0C, which is a form feed in ASCII."""
    pages = ["ఇన్వాయిస్ సంఖ్య " * 100, "మొత్తం"]
    result, _ = convert(provider, make_document("\f".join(pages).encode("utf-16"), DocumentFormat.TEXT))
    assert [result.markdown[page.start : page.end].strip() for page in result.pages] == [page.strip() for page in pages]


def test_a_damaged_sheet_has_a_warning_and_the_others_are_read(provider: LocalProvider, make_document: Maker) -> None:
    content = (SAMPLES / "ledger.xlsx").read_bytes()
    broken = replaced(content, "xl/worksheets/sheet2.xml", b"<worksheet><sheetData><row>")
    with capture_logs() as logs:
        result, warnings = convert(provider, make_document(broken, DocumentFormat.XLSX))
    assert "Sales" in result.markdown
    assert ("page_failed", 2) in warnings
    assert [(log["event"], log["page"]) for log in logs if log["log_level"] == "error"] == [("page_unreadable", 2)]


def replaced(content: bytes, name: str, part: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return hostile.zipped(*((each, part if each == name else archive.read(each)) for each in archive.namelist()))


WORD_RUNS = b"<w:r><w:t>INV-</w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>2024</w:t></w:r><w:r><w:t>-17</w:t></w:r>"
RUNS = [
    (hostile_office.docx(b"<w:p>" + WORD_RUNS + b"</w:p>"), DocumentFormat.DOCX),
    (hostile_office.odt(b"<text:p>INV-<text:span>2024</text:span>-17</text:p>"), DocumentFormat.ODT),
    (b"<html><p>INV-<b>2024</b>-17", DocumentFormat.HTML),
    (b"<html><p>INV-<wbr><ruby>2024<rp>(</rp><rt><i>year</i></rt><rp>)</rp></ruby>-<bdi>17</bdi>", DocumentFormat.HTML),
]


@pytest.mark.parametrize(("content", "kind"), RUNS, ids=[f"{kind} {at}" for at, (_, kind) in enumerate(RUNS)])
def test_words_with_mixed_formatting_are_not_split(
    provider: LocalProvider, make_document: Maker, content: bytes, kind: DocumentFormat
) -> None:
    assert "INV-2024-17" in convert(provider, make_document(content, kind))[0].markdown


def test_the_displayed_text_of_opendocument_cells_is_read_and_hidden_rows_have_a_warning(
    provider: LocalProvider, make_document: Maker
) -> None:
    cell = (
        '<table:table-cell office:value-type="percentage" office:value="0.19"><text:p>19 %</text:p></table:table-cell>'
    )
    row = (
        f"<table:table-row>{cell}</table:table-row>"
        f'<table:table-row table:visibility="collapse">{cell}</table:table-row>'
    )
    result, warnings = convert(provider, make_document(hostile_office.ods(row.encode()), DocumentFormat.ODS))
    assert "19 %" in result.markdown
    assert "0.19" not in result.markdown
    assert warnings == [("hidden_text", 1)]


def test_a_footnote_is_on_the_page_that_has_its_label(provider: LocalProvider, make_document: Maker) -> None:
    note = b"<text:note-citation>1</text:note-citation><text:note-body><text:p>PO-7</text:p></text:note-body>"
    body = b"<text:p>First<text:note>" + note + b"</text:note></text:p><text:p><text:soft-page-break/>Second</text:p>"
    result, _ = convert(provider, make_document(hostile_office.odt(body), DocumentFormat.ODT))
    pages = [result.markdown[page.start : page.end].strip() for page in result.pages]
    assert pages == ["First[^1]\n\n[^1]: PO-7", "Second"]


def test_a_page_break_in_a_footnote_leaves_no_mark(provider: LocalProvider, make_document: Maker) -> None:
    text = b"<text:p>Long <text:soft-page-break/>note</text:p>"
    note = b"<text:note-citation>1</text:note-citation><text:note-body>" + text + b"</text:note-body>"
    body = b"<text:p>First<text:note>" + note + b"</text:note></text:p>"
    result, _ = convert(provider, make_document(hostile_office.odt(body), DocumentFormat.ODT))
    assert "[^1]: Long note\n" in result.markdown


def test_a_large_picture_has_a_warning_and_a_logo_has_none(provider: LocalProvider, make_document: Maker) -> None:
    frame = '<draw:frame svg:width="{0}cm" svg:height="{0}cm"><draw:image xlink:href="a.png"/></draw:frame>'
    for side, expected in ((4, []), (12, [("image_not_read", 1)])):
        body = f"<text:p>Text {frame.format(side)}</text:p>".encode()
        assert convert(provider, make_document(hostile_office.odt(body), DocumentFormat.ODT))[1] == expected


def test_a_table_across_pages_has_its_header_on_each_page(provider: LocalProvider, make_document: Maker) -> None:
    table = b"<w:tbl>" + hostile_office.row(b"Item", b"Price") + hostile_office.row(b"Bolt", b"12.00")
    table += hostile_office.row(b"Nut", b"13.00", before=b"<w:lastRenderedPageBreak/>") + b"</w:tbl>"
    result, _ = convert(provider, make_document(hostile_office.docx(table), DocumentFormat.DOCX))
    pages = [result.markdown[page.start : page.end].strip() for page in result.pages]
    head = "| Item | Price |\n| --- | --- |\n"
    assert pages == [f"{head}| Bolt | 12.00 |", f"{head}| Nut | 13.00 |"]


@pytest.mark.parametrize("order", ["thead tbody tfoot", "thead tfoot tbody", "tfoot thead tbody tfoot"])
def test_the_footer_of_a_table_becomes_its_last_row(provider: LocalProvider, make_document: Maker, order: str) -> None:
    """Before, all rows of `<tfoot>` were lost, such as the total of an invoice."""
    rows = {"thead": "<tr><th>Item<th>EUR", "tbody": "<tr><td>Lamp<td>10.00", "tfoot": "<tr><td>Total<td>11.90"}
    table = f"<table>{''.join(f'<{part}>{rows[part]}</{part}>' for part in order.split())}</table>"
    content = f"<!DOCTYPE html><html>{table}<p>Text<table><tr><td>Nested:{table}<tr><td>End</table>"
    text = convert(provider, make_document(content.encode(), DocumentFormat.HTML))[0].markdown
    lines = ["| Item | EUR |", "| --- | --- |", "| Lamp | 10.00 |", *["| Total | 11.90 |"] * order.count("tfoot")]
    assert "\n".join([*lines, "", "Text"]) in text
    assert f"| Nested: Item EUR Lamp 10.00{' Total 11.90' * order.count('tfoot')} |" in re.sub(" +", " ", text)


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def control(content: str, properties: str = "") -> str:
    return f"<w:sdt><w:sdtPr>{properties}</w:sdtPr><w:sdtContent>{content}</w:sdtContent></w:sdt>"


def custom(content: str) -> str:
    return f'<w:customXml w:element="x"><w:customXmlPr/>{content}</w:customXml>'


def cell(text: str) -> str:
    return f"<w:tc><w:p>{run(text)}</w:p></w:tc>"


def row(*texts: str) -> str:
    return f"<w:tr>{''.join(map(cell, texts))}</w:tr>"


RUBY = f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('tanaka')}</w:rt><w:rubyBase>{run('田中')}</w:rubyBase></w:ruby></w:r>"
CHECKBOX = '<w14:checkbox xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"><w14:checked w14:val="1"/>'
WRAPPED = {
    "rows": (
        (
            f"<w:tbl>{row('Item', 'EUR')}{control(control(row('Lamp', '10.00')) + row('Desk', '90.00'))}"
            f"{custom(row('Sum', '100.00'))}</w:tbl>"
        ),
        "| Item | EUR |\n| --- | --- |\n| Lamp | 10.00 |\n| Desk | 90.00 |\n| Sum | 100.00 |",
    ),
    "cells": (
        (
            f"<w:tbl><w:tr>{control(control(cell('Item')))}{custom(cell('EUR'))}</w:tr>"
            f"<w:tr>{cell('Lamp')}{control(cell('10.00'))}</w:tr></w:tbl>"
        ),
        "| Item | EUR |\n| --- | --- |\n| Lamp | 10.00 |",
    ),
    "blocks": (custom(f"<w:p>{run('Clause')}</w:p>") + control(f"<w:p>{run('66.00')}</w:p>"), "Clause\n\n66.00"),
    "runs": (f"<w:p>{run('a ')}{custom(run('b '))}{control(custom(run('c')))}{run(' d')}</w:p>", "a b c d"),
    "a check box": (f"<w:p>{control(run('☒'), f'{CHECKBOX}</w14:checkbox>')}{run(' Paid')}</w:p>", "- [x] Paid"),
    "moved text": (
        (
            f"<w:p>{run('Pay ')}<w:moveTo w:id='1'>{run('750.00 EUR')}</w:moveTo>{run(' net')}</w:p>"
            f"<w:p>{run('Then')}<w:moveFrom w:id='2'>{run('750.00 EUR')}</w:moveFrom></w:p>"
        ),
        "Pay 750.00 EUR net\n\nThen",
    ),
    "directions": (
        f"<w:p>{run('a ')}<w:bdo w:val='rtl'>{run('88.00')}</w:bdo><w:dir w:val='rtl'>{run(' 77.00')}</w:dir></w:p>",
        "a 88.00 77.00",
    ),
    "ruby": (f"<w:p>{run('Name ')}{RUBY}{run(' san')}</w:p>", "Name 田中 san"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("body", "expected"), WRAPPED.values(), ids=WRAPPED)
def test_text_in_nested_elements_of_word_is_read(
    provider: LocalProvider, make_document: Maker, body: str, expected: str
) -> None:
    """Before, docling omitted this text without a warning."""
    content = hostile_office.docx(body.encode())
    assert (
        convert(provider, make_document(content, DocumentFormat.DOCX))[0].markdown
        == f"<!-- page: 1 -->\n\n{expected}\n\n"
    )


def struck(text: str, *properties: str) -> str:
    formats = "".join(f"<w:{each}/>" for each in properties or ("strike",))
    return f'<w:r><w:rPr>{formats}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


BREAK = "<w:r><w:rPr><w:strike/></w:rPr><w:t>77.00</w:t><w:br w:type='page'/><w:t>77.00</w:t></w:r>"
STRUCK_IN_WORD = {
    "strike": (run("Was ") + struck("77.00") + run(" EUR"), "Was ~~77.00~~ EUR"),
    "dstrike": (run("Was ") + struck("77.00", "dstrike"), "Was ~~77.00~~"),
    "runs": (run("Was") + struck(" 7") + struck("7.00 ", "b", "strike") + run("EUR"), "Was ~~77.00~~ EUR"),
    "words": (struck("Was ") + struck("77.00"), "~~Was 77.00~~"),
    "a break": (BREAK, "~~77.00~~\n\n<!-- page: 2 -->\n\n~~77.00~~"),
    "ruby": (RUBY.replace("<w:r><w:t", "<w:r><w:rPr><w:strike/></w:rPr><w:t"), "~~田中~~"),
    "off": (run("Was ") + struck("80.00", 'strike w:val="0"', 'dstrike w:val="false"'), "Was 80.00"),
}
STRUCK_IN_HTML = {
    "s": ("<p>Was <s>77.00</s> EUR", "Was ~~77.00~~ EUR"),
    "strike": ("<p>Was <strike>77.00 </strike>EUR", "Was ~~77.00~~ EUR"),
    "del": ("<p>Was <del>7<b>7</b>.00</del> EUR", "Was ~~77.00~~ EUR"),
    "a style": ("<p>Was <span style='Text-Decoration: red line-through'>77.00</span>", "Was ~~77.00~~"),
    "blocks": ("<del><p>Was 77.00<p>EUR</del>", "~~Was 77.00~~\n\n~~EUR~~"),
    "nested": ("<p><s>Was <del>77.00</del></s> EUR", "~~Was 77.00~~ EUR"),
    "breaks": ("<pre><s>Was 77.00\n  EUR</s></pre>", "```\n~~Was 77.00~~\n  ~~EUR~~\n```"),
    "a row": (
        "<table><tr><th>Item<th>EUR<tr style='text-decoration-line:line-through'><td>Was<td>77.00</table>",
        "| Item | EUR |\n| --- | --- |\n| ~~Was~~ | ~~77.00~~ |",
    ),
    "off": ("<p>Was <span style='text-decoration: none'>80.00</span>", "Was 80.00"),
    "much text": (f"<p><s>77.00 {'word ' * 200}</s>", f"~~77.00 {'word ' * 199}word~~"),
}
STRUCK = {
    **{
        f"Word: {name}": (hostile_office.docx(f"<w:p>{body}</w:p>".encode()), DocumentFormat.DOCX, expected)
        for name, (body, expected) in STRUCK_IN_WORD.items()
    },
    **{
        f"HTML: {name}": (f"<!DOCTYPE html><html>{body}".encode(), DocumentFormat.HTML, expected)
        for name, (body, expected) in STRUCK_IN_HTML.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("content", "kind", "expected"), STRUCK.values(), ids=STRUCK)
def test_struck_text_is_marked_and_not_cited_as_certain(
    provider: LocalProvider, make_document: Maker, content: bytes, kind: DocumentFormat, expected: str
) -> None:
    """Before, struck text could not be distinguished from other text."""
    markdown = convert(provider, make_document(content, kind))[0].markdown
    assert markdown.removeprefix("<!-- page: 1 -->").strip() == expected
    found = citations({"was": Decimal("77.00"), "now": Decimal("80.00")}, pages=[expected])
    assert found["/was"]["match"] == ("ambiguous" if "77.00" in expected else "not_found")
    assert found["/now"]["match"] == ("exact" if "80.00" in expected else "not_found")


def test_numbered_paragraphs_and_ruby_text_of_opendocument_are_read(
    provider: LocalProvider, make_document: Maker
) -> None:
    """Before, the paragraphs were lost, and ruby text was joined to its base text."""
    body = (
        "<text:numbered-paragraph><text:number>1.</text:number><text:p>Clause 4.17</text:p></text:numbered-paragraph>"
        "<text:numbered-paragraph><text:h text:outline-level='1'>Price</text:h></text:numbered-paragraph>"
        "<text:p>Name <text:ruby><text:ruby-base>田中</text:ruby-base><text:ruby-text>tanaka</text:ruby-text>"
        "</text:ruby> san</text:p>"
    )
    text = convert(provider, make_document(hostile_office.odt(body.encode()), DocumentFormat.ODT))[0].markdown
    assert text == "<!-- page: 1 -->\n\nClause 4.17\n\n## Price\n\nName 田中 san\n\n"


def test_charts_have_the_coordinates_of_their_points(provider: LocalProvider, make_document: Maker) -> None:
    """Before, x values and the sizes of bubbles were lost."""
    presentation = Presentation()
    shapes = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes
    charts: Any = chart_data  # has no types
    scatter, bubbles = charts.XyChartData(), charts.BubbleChartData()
    for number in (1, 2):
        series = scatter.add_series(f"S{number}")
        series.add_data_point(number + 0.5, number * 10)
    bubbles.add_series("B").add_data_point(3.5, 30, 99)
    shapes.add_chart(XL_CHART_TYPE.XY_SCATTER, 0, 0, 9, 9, scatter)
    shapes.add_chart(XL_CHART_TYPE.BUBBLE, 0, 0, 9, 9, bubbles)
    content = io.BytesIO()
    presentation.save(content)
    text = re.sub(" +", " ", convert(provider, make_document(content.getvalue(), DocumentFormat.PPTX))[0].markdown)
    assert "| S1 (x) | S1 | S2 (x) | S2 |\n|---|---|---|---|---|\n| | 1.5 | 10 | 2.5 | 20 |" in text
    assert "| B (x) | B | B (size) |\n|---|---|---|---|\n| | 3.5 | 30 | 99 |" in text


def test_items_of_html_lists_have_their_numbers(provider: LocalProvider, make_document: Maker) -> None:
    lists = "<ol><li value=7>a<li>b<ol><li value='3'>c</ol><li value=x>d</ol><ol start=4><li>e<li value=9>f</ol>"
    text = convert(provider, make_document(f"<!DOCTYPE html><html>{lists}".encode(), DocumentFormat.HTML))[0].markdown
    assert re.findall(r"(\d+)\. ([a-f])", text) == [*zip("783949", "abcdef", strict=True)]


@pytest.mark.parametrize("line", ["sep=;\r\n", "\ufeffsep=;\n", '"SEP=;"\n'])
def test_the_declared_delimiter_of_a_table_is_not_a_row(
    provider: LocalProvider, make_document: Maker, line: str
) -> None:
    """Excel reads and writes this line. Before, it became the header of the table."""
    text = f"{line}a,b;1,50\nc,d;2,50\n"
    result, _ = convert(provider, make_document(text.encode(), DocumentFormat.CSV))
    assert "-->\n\n| a,b | 1,50 |\n| --- | --- |\n| c,d | 2,50 |\n" in result.markdown


# ---- Bombs ----------------------------------------------------------------------------------------------------------
SPACE = hostile_office.paragraph(b" " * 60_000_000)
NESTED = 100_000
MANY = tuple((f"word/media/{n}", b"") for n in range(20_001))
REPEATED = (
    b'<table:table-row table:number-rows-repeated="1048576"><table:table-cell table:number-columns-repeated="16384">'
)
CELL = b"<text:p>x</text:p></table:table-cell></table:table-row>"
STRING = b'<row r="1">' + b'<c t="s"><v>0</v></c>' * 2_000 + b"</row>"
MIME = b"From: a@b.c\nDate: x\n" + b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(3_000)
)
UTF_16 = '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]><d>&x;</d>'
PASSWD = b'<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
BOMBS: list[tuple[str, bytes, DocumentFormat, type[EtlError]]] = [
    ("a part of 60 MB", hostile_office.docx(SPACE), DocumentFormat.DOCX, errors.FileTooLarge),
    ("20,000 parts", hostile_office.docx(b"", parts=MANY), DocumentFormat.DOCX, errors.TooManyParts),
    ("a billion laughs", hostile_office.docx(hostile_office.paragraph(b"&e12;"), before=hostile_office.laughs()),
     DocumentFormat.DOCX, errors.FileCorrupt),
    ("an external entity", hostile_office.docx(hostile_office.paragraph(b"&x;"), before=PASSWD), DocumentFormat.DOCX,
     errors.FileCorrupt),
    ("an external entity in UTF-16", replaced(hostile_office.docx(b""), "word/document.xml", UTF_16.encode("utf-16")),
     DocumentFormat.DOCX, errors.FileCorrupt),
    ("deep XML", hostile_office.docx(b"<w:sdt>" * NESTED + b"</w:sdt>" * NESTED), DocumentFormat.DOCX,
     errors.FileCorrupt),
    ("deep HTML", b"<html>" + b"<div>" * NESTED + b"text", DocumentFormat.HTML, errors.TooDeep),
    ("a deep mail", MIME, DocumentFormat.EML, errors.FileCorrupt),
    ("a string shown 2,000 times", hostile_office.xlsx(STRING, strings=b"x" * 1_000_000), DocumentFormat.XLSX,
     errors.TooMuchText),
    ("repeated cells", hostile_office.ods(REPEATED + CELL), DocumentFormat.ODS, errors.FileTooLarge),
    ("spans", b"<html><table>" + b"<tr>" + b"<td colspan=1000 rowspan=1000>x" * 3_000, DocumentFormat.HTML,
     errors.TooManyCells),
    ("600 sheets", hostile_office.xlsx(b"", sheets=600), DocumentFormat.XLSX, errors.TooManyPages),
    ("600 chapters", hostile_office.epub(600), DocumentFormat.EPUB, errors.TooManyPages),
    ("a password", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2_000), DocumentFormat.DOCX, errors.FileEncrypted),
    ("no zip", b"PK\x03\x04" + b"junk" * 99, DocumentFormat.ODT, errors.FileCorrupt),
    ("no parts", hostile.zipped(("a", b"")), DocumentFormat.PPTX, errors.FileCorrupt),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("content", "kind", "error"), [bomb[1:] for bomb in BOMBS], ids=[bomb[0] for bomb in BOMBS])
def test_decompression_bombs_are_refused_and_the_next_document_is_read(
    provider: LocalProvider, make_document: Maker, content: bytes, kind: DocumentFormat, error: type[EtlError]
) -> None:
    """B28."""
    with pytest.raises(EtlError) as caught:
        convert(provider, make_document(content, kind))
    assert isinstance(caught.value, error)
    assert not caught.value.transient
    assert "Quantity" in read(provider, "invoice.docx")[0][0]


BOX = b"<draw:frame><draw:text-box><text:p>Box."
BOX_END = b"</text:p></draw:text-box></draw:frame>"
NOTE = b"<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Note.<text:span>"
NOTE_END = b"</text:span></text:p></text:note-body></text:note>"
CITED = hostile_office.paragraph(b"Text.") + b'<w:p><w:r><w:footnoteReference w:id="0"/></w:r></w:p>'


@pytest.mark.parametrize(
    ("content", "kind", "counts"),
    [
        (hostile_office.odt(b"<text:p>Text." + BOX * 40 + BOX_END * 40 + b"</text:p>"), DocumentFormat.ODT, (40, 0)),
        (hostile_office.odt(b"<text:p>Text." + NOTE * 40 + NOTE_END * 40 + b"</text:p>"), DocumentFormat.ODT, (0, 1)),
        (hostile_office.docx(CITED, parts=hostile_office.notes(40)), DocumentFormat.DOCX, (0, 40)),
    ],
    ids=["text boxes", "notes", "notes that cite each other"],
)
def test_nested_content_is_read_once(
    provider: LocalProvider, make_document: Maker, content: bytes, kind: DocumentFormat, counts: tuple[int, int]
) -> None:
    """B12: before, the number of reads doubled with each level, so 469 bytes exceeded the time limit."""
    markdown = convert(provider, make_document(content, kind))[0].markdown
    assert markdown.count("Text.") == 1
    assert (markdown.count("Box."), len(re.findall(r"Note( \d+)?\.", markdown))) == counts


def test_a_note_that_is_cited_often_is_written_once(provider: LocalProvider, make_document: Maker) -> None:
    """B12: before, 1,907 bytes became 600 MB of Markdown."""
    cited = b"".join(b'<w:p><w:r><w:footnoteReference w:id="0"/></w:r></w:p>' for _ in range(50))
    document = make_document(hostile_office.docx(cited, parts=hostile_office.notes(1)), DocumentFormat.DOCX)
    markdown = convert(provider, document)[0].markdown
    assert markdown.count("Note 0.") == 1
    assert markdown.count("[^0]") > 50


def test_markdown_that_is_longer_than_its_text_is_limited() -> None:
    """B12: the Markdown of lists repeats the indentation at each item."""
    content = b"<html>" + b"<ul><li>" * 30 + b"<li>x" * 100
    limits = DocumentLimits(pages=5, pixels=1, text=1_000)
    with pytest.raises(errors.TooMuchText):
        list(reading.read(DocumentFormat.HTML, io.BytesIO(content), limits, describe=str))


@pytest.mark.slow
def test_labels_of_lists_are_limited(provider: LocalProvider, make_document: Maker) -> None:
    """B12: a long label occurs once in the file, but at each item in the text."""
    item = (
        b'<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>x</w:t></w:r></w:p>'
    )
    label = f'<w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/><w:lvlText w:val="%1{"x" * 100_000}"/></w:lvl>'
    numbering = (
        f'<w:numbering xmlns:w="{hostile_office.WORD}"><w:abstractNum w:abstractNumId="0">{label}</w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
    )
    relations = hostile_office.relations(("r2", "numbering", "numbering.xml"))
    parts = (("word/_rels/document.xml.rels", relations), ("word/numbering.xml", numbering.encode()))
    with pytest.raises(errors.TooMuchText):
        convert(provider, make_document(hostile_office.docx(item * 1_000, parts=parts), DocumentFormat.DOCX))


@pytest.mark.slow
def test_the_processor_time_of_a_document_is_limited(make_document: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: Python's email parser takes hours for some headers, and reads each header three times."""
    monkeypatch.setattr("etl.providers.local.provider.MAX_OFFICE_SECONDS", 2)
    mail = b"Date: x\nMIME-Version: 1.0\nFrom: " + b"((a" * 100 + b"a, " * 300_000 + b"b\n\nText\n"
    provider = LocalProvider()
    try:
        with pytest.raises(errors.TooMuchProcessing) as caught:
            convert(provider, make_document(mail, DocumentFormat.EML))
        assert not caught.value.transient
        assert "Quantity" in read(provider, "invoice.docx")[0][0]
    finally:
        provider.close()


def test_an_exceeded_limit_is_reported_with_numbers(provider: LocalProvider, make_document: Maker) -> None:
    with pytest.raises(errors.TooManyPages) as caught:
        convert(provider, make_document(hostile_office.xlsx(b"", sheets=600), DocumentFormat.XLSX))
    assert caught.value.detail == "The document has 600 pages; the limit is 500."


def test_nothing_is_fetched(provider: LocalProvider, make_document: Maker) -> None:
    """Pictures, links, styles, and relationships of a document cause no requests."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    page = (
        f'<html><link rel=stylesheet href="{url}css"><img src="{url}img"><a href="{url}a">text</a><iframe src="{url}">'
    )
    external = hostile_office.relations(("r9", "styles", f"{url}styles"), ("r8", "image", f"{url}i"), external=True)
    word = hostile_office.docx(hostile_office.paragraph(b"text"), parts=(("word/_rels/document.xml.rels", external),))
    try:
        assert "text" in convert(provider, make_document(page.encode(), DocumentFormat.HTML))[0].markdown
        assert "text" in convert(provider, make_document(word, DocumentFormat.DOCX))[0].markdown
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert requested == []


class BrokenFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise RuntimeError


def test_an_unexpected_error_of_a_document_names_its_class() -> None:
    limits = DocumentLimits(pages=5, pixels=1, text=1_000)
    messages = list(reading.read(DocumentFormat.CSV, BrokenFile(), limits, describe=lambda error: type(error).__name__))
    assert messages == [{"error": "FileCorrupt", "reason": "RuntimeError"}]
