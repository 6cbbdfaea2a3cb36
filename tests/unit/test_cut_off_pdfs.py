"""PDF files without their end: what is whole is read, what is lost is never passed over (B12, B18)."""

import io

import pytest

from etl.core.errors import FileCorrupt
from etl.providers.local.pages import Limits
from etl.providers.local.pdf import Pdf, catalog, has_its_table
from etl.providers.local.reading import text_of
from tests.samples import hostile
from tests.unit.test_documents import least_of_three

LIMITS = Limits(pages=500, pixels=50_000_000, text=10_000_000)
TEXTS = ["The first page", "The second page", "The third page"]
MEGABYTE = 1024**2


@pytest.fixture(scope="module")
def whole() -> bytes:
    return hostile.printed(*TEXTS)


def texts(content: bytes) -> tuple[bool, list[str]]:
    """Return whether the end is said to be missing, and the text of each page."""
    pdf = Pdf(io.BytesIO(content), LIMITS)
    try:
        pages = [pdf.page(number) for number in range(len(pdf))]
        return pdf.is_cut_off, [text_of(page.parts, page.body, page.width) for page in pages]
    finally:
        pdf.close()


@pytest.mark.parametrize("missing", [*range(2, 100), *range(100, 430, 7)])
def test_all_pages_are_there_while_only_the_table_is_cut(whole: bytes, missing: int) -> None:
    """B18: wherever the cut goes, also through a string of the trailer."""
    assert texts(whole[:-missing]) == (True, TEXTS)


@pytest.mark.parametrize("share", range(40, 100, 3))
def test_a_page_is_never_lost_in_silence(whole: bytes, share: int) -> None:
    """B18: with a font or a page's content missing, a page would read as empty."""
    content = whole[: whole.rfind(b"\nxref") * share // 100]
    with pytest.raises(FileCorrupt):
        texts(content)


def test_a_table_that_is_a_stream_may_be_cut_too() -> None:
    body = b"5 0 obj\n<< >>\nendobj\n"
    table = b"6 0 obj\n<< /Type /XRef /ID [<0011"
    assert has_its_table(body + table)
    assert has_its_table(body + table + b"22>] >>\nstream\n\0\1\2\nendstream\nendobj\nstart")
    assert not has_its_table(body)
    assert not has_its_table(body + b"6 0 obj\n<< /Length 100 >>\nstream\nxref")


@pytest.mark.parametrize("how", [b"/Encrypt 9 0 R /ID [<00", b"/ID [<00"])
def test_a_password_is_not_forgotten_with_the_trailer(how: bytes) -> None:
    """B12: what is left would be read as nonsense."""
    content = hostile.printed("secret", password="user")
    start = content.rfind(b"/Encrypt")
    with pytest.raises(FileCorrupt):
        texts(content[:start] + how)


@pytest.mark.parametrize(
    "unit",
    [b"1 0 obj<<", b"1 0 obj", b"1 ", b"/Catalog", b"1 0 obj<</Type/Catalog", b"1 0 obj<</Catalog\n", b"xref ", b" "],
)
def test_no_file_takes_long(unit: bytes) -> None:
    """B12: not even one whose every byte could be the beginning of what is looked for."""
    content = b"%PDF-1.7\n" + unit * (5 * MEGABYTE // len(unit))
    assert least_of_three(lambda: (catalog(content), has_its_table(content))) < 0.5


def test_the_catalogue_is_found_wherever_it_is_named() -> None:
    assert catalog(b"7 0 obj\n<< /Pages 2 0 R /Type /Catalog >>\nendobj") == b"7"
    assert catalog(b"7 0 obj\n<< /Type /Catalog >>\n8 0 obj (words)" + b" " * 4_000 + b"(of a /Catalog)") == b"7"
    assert catalog(b"7 0 obj\n<< /Type /Pages >>") is None
