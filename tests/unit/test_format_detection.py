"""Detection of document formats by their first bytes (B12)."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.core.formats import HEAD_BYTES, DocumentFormat, delimiter_of, sniff
from tests import samples
from tests.samples import hostile

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
OOXML = ("[Content_Types].xml", b"<Types/>")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.4\n", DocumentFormat.PDF),
        (b"\xef\xbb\xbf%PDF-1.7\n", DocumentFormat.PDF),
        (b"\n\n%PDF-1.7\n%\xe2\xe3", DocumentFormat.PDF),
        (b"HTTP/1.1 200 OK\r\n\r\n%PDF-1.7\n%\xe2\xe3\xcf\xd3", DocumentFormat.PDF),
        (b"\x89PNG\r\n\x1a\n\0\0", DocumentFormat.PNG),
        (b"\xff\xd8\xff\xe0", DocumentFormat.JPEG),
        (b"II*\0\x08\0\0\0", DocumentFormat.TIFF),
        (b"MM\0*\0\0\0\x08", DocumentFormat.TIFF),
        (b"II+\0\x08\0\0\0", DocumentFormat.TIFF),
        (b"RIFF\x10\0\0\0WEBPVP8 ", DocumentFormat.WEBP),
        (b"RIFF\x10\0\0\0WAVEfmt ", None),
        (b"{\\rtf1\\ansi", DocumentFormat.RTF),
        (b"An invoice", DocumentFormat.TEXT),
        ("发票".encode(), DocumentFormat.TEXT),
        ("发票".encode("utf-16"), DocumentFormat.TEXT),
        (b"\xfe\xff" + "发票".encode("utf-16-be"), DocumentFormat.TEXT),
        (b"page one\fpage two\x1b[0m", DocumentFormat.TEXT),
        (b"It begins with %PDF-1.4, they say", DocumentFormat.TEXT),
        (b"<div>Markdown may begin so</div>", DocumentFormat.TEXT),
        (b"<!DOCTYPE html><p>", DocumentFormat.HTML),
        (b"\xef\xbb\xbf <?xml version='1.0'?>\n<!-- x -->\n<!doctype  HTML>", DocumentFormat.HTML),
        (b"<html lang=en>", DocumentFormat.HTML),
        (b"\0\x01\x02\x03", None),
        (b"text, and then \0", None),
        ("invoice é".encode("latin-1") + b" goes on", DocumentFormat.TEXT),
        ("Rechnung über 5 €".encode("cp1252"), DocumentFormat.TEXT),
        ("ఇన్వాయిస్ సంఖ్య 12".encode("utf-16-le"), DocumentFormat.TEXT),
        (b"From: a@example.com\r\nDate: Thu, 29 Feb 2024 10:00:00 +0100\r\n\r\nHello", DocumentFormat.EML),
        (b"From a@example.com Thu Feb 29 10:00:00 2024\nDate: today\nFrom: a@example.com\n\nHello", DocumentFormat.EML),
        (b"From the office\nDate: today\n", DocumentFormat.TEXT),
        (b"MIME-Version: 1.0\nContent-Type: text/plain\n\nA draft has no sender", DocumentFormat.EML),
        (b"From: the office\nDear customer", DocumentFormat.TEXT),
        (b"date;account;amount\n1;Sales;3\n2;Rent;4\n", DocumentFormat.CSV),
        (b"sep=;\r\nname;total", DocumentFormat.CSV),
        (b"date,amount,note\r\n1,2,3\r\n4,5,6\r\n\x1a", DocumentFormat.CSV),
        ("date,amount,note\n1,2,a\u2028b\n4,5,6\n".encode(), DocumentFormat.CSV),
        (b"Once, there was a line.\nThen, another, longer one.\nThe end.", DocumentFormat.TEXT),
        (b"| a | b |\n| --- | --- |\n| 1 | 2 |\n", DocumentFormat.TEXT),
        (b"", None),
        (OLE + b"\xec\xa5", DocumentFormat.DOC),
        (OLE + bytes(512) + "Workbook".encode("utf-16-le"), DocumentFormat.XLS),
        (OLE + bytes(512) + "PowerPoint Document".encode("utf-16-le"), DocumentFormat.PPT),
        (OLE, None),
        (hostile.zipped(OOXML, ("word/document.xml", b"")), DocumentFormat.DOCX),
        (hostile.zipped(OOXML, ("ppt/presentation.xml", b"")), DocumentFormat.PPTX),
        (hostile.zipped(OOXML, ("xl/workbook.xml", b"")), DocumentFormat.XLSX),
        (hostile.zipped(("mimetype", b"application/vnd.oasis.opendocument.text")), DocumentFormat.ODT),
        (hostile.zipped(("mimetype", b"application/epub+zip")), DocumentFormat.EPUB),
        (hostile.zipped(("mimetype", b"application/zip")), None),
        (hostile.zipped(("holiday.txt", b"words")), None),
    ],
    ids=lambda value: repr(value[:8]) if isinstance(value, bytes) else str(value),  # zip files contain the time
)
def test_the_first_bytes_determine_the_format(head: bytes, kind: DocumentFormat | None) -> None:
    """B12."""
    assert sniff(head) == kind


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_decimal_commas_are_not_delimiters(delimiter: str) -> None:
    """B28."""
    text = f"1,5{delimiter}2,5\n3,5{delimiter}4,5\n"
    assert delimiter_of(text, is_named=True) == delimiter


def test_quoted_delimiters_do_not_count() -> None:
    """B28."""
    assert delimiter_of('name,total\n"a;b",1\n"c;d",2\n', is_named=True) == ","


def test_a_name_only_distinguishes_texts() -> None:
    assert sniff(b"name,total\nA,5", "list.csv") == DocumentFormat.CSV
    assert sniff(b"name,total\nA,5", "list.txt") == DocumentFormat.TEXT
    assert sniff(b'name;total\nA;5\n"B;6\nC;7\n', "list.csv") == DocumentFormat.CSV
    assert sniff(b"no table here", "list.csv") == DocumentFormat.TEXT
    assert sniff(b"# Title", "CHANGE_TRIGGERS.MD") == DocumentFormat.MARKDOWN
    assert sniff(b"# Title", "notes.pdf") == DocumentFormat.TEXT
    assert sniff(b"%PDF-1.4", "notes.md") == DocumentFormat.PDF
    assert sniff(b"\x89PNG\r\n\x1a\n", "invoice.pdf") == DocumentFormat.PNG
    assert sniff(b"\0\x01", "invoice.pdf") is None
    assert sniff(OLE, "old.xls") == DocumentFormat.XLS
    assert sniff(OLE + "EncryptedPackage".encode("utf-16-le"), "locked.xlsx") == DocumentFormat.XLSX


def test_the_format_of_a_polyglot_file_is_that_of_its_beginning() -> None:
    """B12: no parser receives a document of another format."""
    assert sniff(b"\x89PNG\r\n\x1a\n" + bytes(100) + b"%PDF-1.7\n") == DocumentFormat.PNG
    assert sniff(b"%PDF-1.7\n" + hostile.zipped(OOXML, ("word/document.xml", b""))) == DocumentFormat.PDF
    assert sniff(hostile.zipped(OOXML, ("word/document.xml", b"")) + b"%PDF-1.7\n") == DocumentFormat.DOCX


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.integers(1, 40))
def test_text_is_recognized_if_it_is_cut_at_any_byte(text: str, cut: int) -> None:
    head = ("An invoice: " + text).encode()
    assert sniff(head[: 12 + cut]) == DocumentFormat.TEXT


@given(st.binary(max_size=200))
def test_it_accepts_any_bytes(head: bytes) -> None:
    for beginning in (b"", b"PK\x03\x04", OLE, b"<!--", b"\xff\xfe"):
        assert sniff(beginning + head, "name") in {None, *DocumentFormat}


@pytest.mark.parametrize(
    "unit",
    [
        b"<!-- -->",
        b"<!--",
        b"<?xml>",
        b" \n",
        b"PK\x03\x04",
        b"PK\x03\x04" + b"\xff" * 7,  # every entry has a name of 65,535 invalid bytes
        b"PK\x03\x04" + b"\xff" * 25,
        b"PK\x03\x04" + b"\xff" * 26,
        b"PK\x03\x04" + bytes(26),
        b"PK\x03\x04" + bytes(20) + b"\xff\xff" + bytes(4),
        b"\xff\xfe",
        b"%PDF-",
    ],
)
def test_hostile_heads_are_classified_in_time(unit: bytes) -> None:
    """B12: requests and the sweep classify untrusted bytes."""
    head = (unit * (HEAD_BYTES // len(unit) + 1))[:HEAD_BYTES]
    assert fastest_of_three(lambda: sniff(head)) < 0.05


def fastest_of_three(call: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of three calls, so that garbage collection does not affect the result."""

    def once() -> float:
        used = time.process_time()
        call()
        return time.process_time() - used

    return min(once() for _ in range(3))


def test_the_first_entries_of_a_zip_determine_its_format() -> None:
    many = [(f"a-file-{number}", b"") for number in range(150)]
    assert sniff(hostile.zipped(*many, ("word/document.xml", b""))) == DocumentFormat.DOCX
    assert sniff(hostile.zipped(("a" * 4_000, b""), ("ppt/presentation.xml", b""))) == DocumentFormat.PPTX


def test_every_format_has_a_different_media_type() -> None:
    assert len({kind.media_type for kind in DocumentFormat}) == len(DocumentFormat)


def test_demo_documents_match_their_names() -> None:
    kinds = {path.name: samples.document(path).kind.value for path in samples.FOLDER.iterdir() if path.suffix}
    assert kinds == {name: name.rpartition(".")[2] for name in kinds}
    assert len(kinds) >= 7
