"""Truncated PDF files. They are read if all pages are complete, and refused otherwise (B12, B18)."""

import io

import pytest

from etl.core.errors import FileCorrupt
from etl.providers.local.pages import DocumentLimits
from etl.providers.local.pdf import Pdf, find_catalog, has_xref_table
from tests.samples import hostile
from tests.unit.test_format_detection import fastest_of_three
from tests.unit.test_layout import to_markdown

LIMITS = DocumentLimits(pages=500, pixels=50_000_000, text=10_000_000)
TEXTS = ["The first page", "The second page", "The third page"]
MEGABYTE = 1024**2


@pytest.fixture(scope="module")
def whole() -> bytes:
    return hostile.printed(*TEXTS)


def is_refused(content: bytes) -> bool:
    try:
        texts(content)
    except FileCorrupt:
        return True
    return False


def texts(content: bytes) -> tuple[bool, list[str]]:
    """Return whether the file is reported as truncated, and the text of each page."""
    pdf = Pdf(io.BytesIO(content), LIMITS)
    try:
        pages = [pdf.page(number) for number in range(len(pdf))]
        return pdf.is_truncated, [
            to_markdown([box for part in page.parts for box in part.boxes], body=page.body) for page in pages
        ]
    finally:
        pdf.close()


def test_it_reads_all_pages_if_only_the_xref_table_is_truncated(whole: bytes) -> None:
    """B18: it can be truncated at any position, even inside a string of the trailer."""
    cuts = [*range(2, 100), *range(100, 430, 7)]
    assert [missing for missing in cuts if texts(whole[:-missing]) != (True, TEXTS)] == []


def test_it_refuses_a_file_with_truncated_pages(whole: bytes) -> None:
    """B18: if a font or the content of a page is missing, the page would be read as empty."""
    end = whole.rfind(b"\nxref")
    assert [share for share in range(40, 100, 3) if not is_refused(whole[: end * share // 100])] == []


def test_it_recognizes_a_truncated_xref_stream() -> None:
    body = b"5 0 obj\n<< >>\nendobj\n"
    table = b"6 0 obj\n<< /Type /XRef /ID [<0011"
    assert has_xref_table(body + table)
    assert has_xref_table(body + table + b"22>] >>\nstream\n\0\1\2\nendstream\nendobj\nstart")
    assert not has_xref_table(body)
    assert not has_xref_table(body + b"6 0 obj\n<< /Length 100 >>\nstream\nxref")


@pytest.mark.parametrize("how", [b"/Encrypt 9 0 R /ID [<00", b"/ID [<00"])
def test_it_refuses_an_encrypted_file_without_its_trailer(how: bytes) -> None:
    """B12: without the trailer, its content would be read as nonsense."""
    content = hostile.printed("secret", password="user")
    start = content.rfind(b"/Encrypt")
    with pytest.raises(FileCorrupt):
        texts(content[:start] + how)


@pytest.mark.parametrize(
    "unit",
    [b"1 0 obj<<", b"1 0 obj", b"1 ", b"/Catalog", b"1 0 obj<</Type/Catalog", b"1 0 obj<</Catalog\n", b"xref ", b" "],
)
def test_it_is_fast_on_hostile_files(unit: bytes) -> None:
    """B12: even if a match could start at every byte."""
    content = b"%PDF-1.7\n" + unit * (5 * MEGABYTE // len(unit))
    assert fastest_of_three(lambda: (find_catalog(content), has_xref_table(content))) < 0.5


def test_it_finds_every_form_of_catalog_reference() -> None:
    assert find_catalog(b"7 0 obj\n<< /Pages 2 0 R /Type /Catalog >>\nendobj") == b"7"
    assert find_catalog(b"7 0 obj\n<< /Type /Catalog >>\n8 0 obj (words)" + b" " * 4_000 + b"(of a /Catalog)") == b"7"
    assert find_catalog(b"7 0 obj\n<< /Type /Pages >>") is None
