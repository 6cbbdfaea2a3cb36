"""Page-by-page reader of documents, which yields messages for the worker. Runs only in the reader process."""

import re
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any, BinaryIO

from etl.core.errors import BadDocument, FileCorrupt, FileTooLarge, OcrFailed, TooManyPages, TooManyPixels, TooMuchText
from etl.core.formats import OFFICE_FORMATS, DocumentFormat
from etl.providers.local import hyphens, page_images, page_json
from etl.providers.local.images import ImagePages
from etl.providers.local.ocr_engine import Engine
from etl.providers.local.onnx_models import EngineBroken, EngineNotLoaded
from etl.providers.local.page_recognition import PageRecognizer, PageText, describe_location
from etl.providers.local.pages import DocumentLimits
from etl.providers.local.pdf import Pdf
from etl.providers.local.running_heads import RunningHeads, is_prose, restore_if_empty

LIBRARY = re.compile(r"\blib[\w.+-]+\.so[\d.]*")
# Errors of the whole document, even if they occur on one page.
DOCUMENT_ERRORS = (FileTooLarge, TooManyPages, TooManyPixels)
# Number of following pages that are read before a page is sent, because running heads are recognized by repetition.
LOOKAHEAD = 2

Message = dict[str, Any]


class DocumentReader:
    """Reader of one document. `source`: its pages."""

    def __init__(self, engine: Engine, *, document: BinaryIO, kind: DocumentFormat, limits: DocumentLimits) -> None:
        self.engine = engine
        self.recognizer = PageRecognizer(engine)
        self.limits = limits
        self.source: Pdf | ImagePages = (
            Pdf(document, limits) if kind == DocumentFormat.PDF else ImagePages(document, kind, limits)
        )
        self.heads = RunningHeads()
        self.words: set[str] = set()
        self.text_bytes = 0
        self.failed_pages = 0

    def read_all(self) -> Iterator[Message]:
        """Yield `{"pages": 3}`, then `{"page": 1, "text": …}` or `{"failed": 1}` for each page, then `{"done": …}`."""
        total = self.page_count()
        is_truncated = self.source.is_truncated
        yield {"pages": total}
        read: deque[PageText | Message] = deque()
        for index in range(total):
            read.append(self.read_page(index))
            if len(read) > LOOKAHEAD:
                yield self.message(index + 1 - LOOKAHEAD, read.popleft())
        for number in range(total - len(read) + 1, total + 1):
            yield self.message(number, read.popleft())
        if self.failed_pages == total or (is_truncated and self.failed_pages):
            raise FileCorrupt
        yield {"done": True, "truncated": is_truncated}

    def count_pages(self) -> Iterator[Message]:
        """Yield only the number of pages, after the checks that do not require reading the pages."""
        total = self.page_count()
        self.source.check_sizes()
        yield {"pages": total}
        yield {"done": True}

    def draw_pages(
        self, first: int, last: int, width: int | None, pixels: int | None, *, jpeg: bool
    ) -> Iterator[Message]:
        """Yield `{"drawn": 3, "image": …}` for each page from `first` to `last`. The image is WebP or JPEG in base64.

        For a page that cannot be drawn, yield `{"drawn": 3, "image": None, "reason": …}`.
        """
        size = page_images.ImageSize(width, pixels or page_images.MAX_PIXELS)
        for index in range(first - 1, min(last, self.page_count())):
            try:
                image = page_images.encode(self.source.draw(index, size), size, jpeg=jpeg)
            except (*DOCUMENT_ERRORS, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - as in `read_page`; the worker logs it
                yield {"drawn": index + 1, "image": None, "reason": describe_location(error)}
            else:
                yield {"drawn": index + 1, "image": b64encode(image).decode()}
        yield {"done": True}

    def page_count(self) -> int:
        total = len(self.source)
        if total > self.limits.pages:
            raise TooManyPages.of(total, self.limits.pages)
        return total

    def read_page(self, index: int) -> PageText | Message:
        """Return the text of a page, or the message `{"failed": …}`."""
        seconds = self.engine.seconds
        try:
            page = self.recognizer.recognize(self.source.page(index))
        except (*DOCUMENT_ERRORS, EngineBroken, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise any exception for a damaged page; the worker logs it
            self.failed_pages += 1
            return {"failed": index + 1, "reason": describe_location(error)}
        page.ocr_seconds = self.engine.seconds - seconds
        for turn, blocks in page.parts:
            self.heads.add(blocks, page.size_of(turn)[1], number=index + 1)
        self.words |= hyphens.words(page.text())
        return page

    def message(self, number: int, page: PageText | Message) -> Message:
        """Return the message about a page. Call it after the next LOOKAHEAD pages have been read."""
        if isinstance(page, dict):
            return page
        blocks = list(page.blocks())
        prose, letters = is_prose(blocks), sum(len(block.text) for block in blocks)
        for turn, part in page.parts:
            is_marginal = sum(len(block.text) for block in part) < letters / 2  # such as a sideways stamp
            self.heads.mark(part, page.size_of(turn)[1], number=number, is_prose=prose or is_marginal)
        restore_if_empty(blocks)
        for block in blocks:
            block.text = hyphens.resolve(block.text, self.words)
        text = page.text()
        self.text_bytes += len(text.encode())
        if self.text_bytes > self.limits.text:
            raise TooMuchText.of(self.text_bytes, self.limits.text)
        return {
            "page": number,
            "text": text,
            "method": page.method,
            "confidence": page.confidence,
            "hidden": page.hidden,
            "layout_failed": page.layout_failed,
            "legibility": page.legibility,
            "image_not_read": page.image_not_read,
            "ocr_seconds": page.ocr_seconds,
            "layout": page_json.describe(page, number),
            "lines": page_json.describe_lines(page),
        }


def prepare(request: Message) -> None:
    """Load the libraries that only some documents need, before the fork, so that later documents need not load them.

    For Office documents, this takes a second and 120 MB. For e-invoices, it also compiles schemas.
    """
    if request.get("einvoice"):
        from etl.providers.local.einvoices import reading as einvoices

        einvoices.load()
    elif request.get("kind") in OFFICE_FORMATS:
        from etl.providers.local.office import reading  # noqa: F401


def read(engine: Engine, request: Message, document: BinaryIO) -> Iterator[Message]:
    """Yield messages about a document. The last message has one of these keys:

    - `done`
    - `error`: the name of a class in `etl.core.errors`
    - `startup_error`: the reason why OCR is not available
    """
    kind, limits = DocumentFormat(request["kind"]), DocumentLimits(**request["limits"])
    try:
        if request.get("einvoice"):
            from etl.providers.local.einvoices import reading as einvoices

            yield from einvoices.read(kind, document, limits)
            return
        if kind in OFFICE_FORMATS:
            from etl.providers.local.office import reading as office

            yield from office.read(kind, document, limits, describe=describe_location)
            return
        reader = DocumentReader(engine, document=document, kind=kind, limits=limits)
        with closing(reader.source):
            if draw := request.get("draw"):
                yield from reader.draw_pages(**draw)
            else:
                yield from reader.count_pages() if request.get("count_only") else reader.read_all()
    except BadDocument as error:
        yield {"error": type(error).__name__, "found": error.found, "limit": error.limit}
    except MemoryError:
        yield {"error": FileTooLarge.__name__}
    except EngineNotLoaded as error:
        yield {"startup_error": describe_import_error(error.__cause__ or error)}
    except EngineBroken as error:
        yield {"error": OcrFailed.__name__, "reason": describe_location(error.__cause__ or error)}


def describe_import_error(error: BaseException) -> str:
    """Return the class of an exception and the modules or libraries that it names, without its message.

    Examples: `ModuleNotFoundError rapidocr`, `ImportError libGL.so.1`.
    """
    names = [getattr(error, "name", None), *LIBRARY.findall(str(error))]
    return " ".join([type(error).__name__, *dict.fromkeys(str(name) for name in names if name)])[:200]
