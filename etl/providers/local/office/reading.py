"""Page-by-page reader of Office documents, HTML, EPUB, email, and delimited text. Runs only in the reader process.

`etl.providers.local.reading` reads PDFs and images.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from etl.core import encodings
from etl.core.errors import BadDocument, FileCorrupt, FileEncrypted, FileTooLarge, TooManyPages
from etl.core.formats import DocumentFormat
from etl.providers.local.office import conversion, delimited, mail, parts, web
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.book import Book
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import OfficeDocument, PageList
from etl.providers.local.office.workbook import Workbook
from etl.providers.local.pages import DocumentLimits

Message = dict[str, Any]


def read(
    kind: DocumentFormat, file: BinaryIO, limits: DocumentLimits, *, describe: Callable[[BaseException], str]
) -> Iterator[Message]:
    """Yield `{"pages": 3}`, then `{"page": 1, "text": …}` or `{"failed": 1}` for each page, then `{"done": True}`.

    Yield only `{"error": …}` if an unexpected exception prevents opening. `describe` returns the class and location of
    an exception, which the worker logs. Raises BadDocument.
    """
    try:
        document = open_document(kind, file, TextBudget(limits.text))
    except (BadDocument, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a malformed document may violate any assumption; the worker logs it
        yield {"error": FileCorrupt.__name__, "reason": describe(error)}
        return
    total = len(document)
    if total > limits.pages:
        raise TooManyPages.of(total, limits.pages)
    yield {"pages": total}
    failed = 0
    # A separate budget: the Markdown of quotes, lists, and tables may be many times as long as their text.
    markdown = TextBudget(limits.text)
    for index in range(total):
        try:
            page = document.page(index)
        except (FileTooLarge, FileEncrypted, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - the other pages are read; the worker logs it
            failed += 1
            yield {"failed": index + 1, "reason": describe(error)}
            continue
        text = markdown.spend(page.text)
        method = "text" if text.strip() else "none"
        warnings = {"warnings": sorted(page.warnings), "formulas": page.formulas}
        yield {"page": index + 1, "text": text, "method": method, **warnings}
    if failed == total:
        raise FileCorrupt
    yield {"done": True}


def open_document(kind: DocumentFormat, file: BinaryIO, budget: TextBudget) -> OfficeDocument:
    """Open a document. Raises BadDocument."""
    if kind == DocumentFormat.EML:
        return mail.Mailbox(file.read(), budget)
    if kind == DocumentFormat.CSV:
        return PageList([delimited.page(encodings.decode(file.read()), budget)])
    if kind == DocumentFormat.HTML:
        return PageList([web.page(web.decode(file.read()), budget)])
    archive = Archive(file)
    if kind == DocumentFormat.XLSX:
        return Workbook(archive, budget)
    if kind == DocumentFormat.EPUB:
        return Book(archive, budget)
    return PageList(conversion.pages(kind, parts.checked_copy(archive, kind, budget), budget))
