"""Reads a document page by page into messages for the worker. Runs only in the reader process."""

import re
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

from etl.core.errors import BadDocument, FileCorrupt, FileTooLarge, OcrFailed, TooManyPages, TooManyPixels
from etl.core.formats import DocumentFormat
from etl.providers.local.boxes import Box, mean_confidence
from etl.providers.local.images import ImagePages
from etl.providers.local.layout import to_markdown
from etl.providers.local.pages import DocumentLimits, LocalPage
from etl.providers.local.pdf import Pdf
from etl.providers.local.recognition import Engine, EngineBroken, EngineNotLoaded

LIBRARY = re.compile(r"\blib[\w.+-]+\.so[\d.]*")
# Errors of the whole document, even if they occur on one page.
DOCUMENT_ERRORS = (FileTooLarge, TooManyPages, TooManyPixels)

Message = dict[str, Any]


class DocumentReader:
    """Reader of one document. `source`: its pages."""

    def __init__(self, engine: Engine, *, document: BinaryIO, kind: DocumentFormat, limits: DocumentLimits) -> None:
        self.engine = engine
        self.limits = limits
        self.source: Pdf | ImagePages = (
            Pdf(document, limits) if kind == DocumentFormat.PDF else ImagePages(document, kind, limits)
        )
        self.text_bytes = 0
        self.failed_pages = 0

    def read_all(self) -> Iterator[Message]:
        """Yield `{"pages": 3}`, then `{"page": 1, "text": …}` or `{"failed": 1}` for each page, then `{"done": …}`."""
        total = self.page_count()
        is_truncated = self.source.is_truncated
        yield {"pages": total}
        for index in range(total):
            yield self.read_page(index)
        if self.failed_pages == total or (is_truncated and self.failed_pages):
            raise FileCorrupt
        yield {"done": True, "truncated": is_truncated}

    def count_pages(self) -> Iterator[Message]:
        """Yield only the number of pages, after the checks that do not require reading them."""
        total = self.page_count()
        self.source.check_sizes()
        yield {"pages": total}
        yield {"done": True}

    def page_count(self) -> int:
        total = len(self.source)
        if total > self.limits.pages:
            raise TooManyPages
        return total

    def read_page(self, index: int) -> Message:
        seconds = self.engine.seconds
        try:
            result = self.convert(self.source.page(index))
        except (*DOCUMENT_ERRORS, EngineBroken, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise any exception for a damaged page; the worker logs it
            self.failed_pages += 1
            return {"failed": index + 1, "reason": describe_location(error)}
        self.text_bytes += len(result["text"].encode())
        if self.text_bytes > self.limits.text:
            raise FileTooLarge
        return {"page": index + 1, **result, "ocr_seconds": self.engine.seconds - seconds}

    def convert(self, page: LocalPage) -> Message:
        """Return the Markdown of a page from its text layer or, if it is longer, from OCR."""
        layer = join_parts(page.parts, page.body, page.width)
        if not page.needs_ocr:
            return {"text": layer, "method": "text" if layer else "none", "hidden": page.hidden}
        image = page.render()
        lines = self.engine.read(image)
        recognized = join_parts(lines, 0.0, image.shape[1])
        if len(recognized) < len(layer):
            return {"text": layer, "method": "text", "hidden": page.hidden}
        return {
            "text": recognized,
            "method": "ocr" if recognized else "none",
            "confidence": mean_confidence(line for part in lines for line in part),
            "hidden": False,  # OCR reads only visible text
        }

    def close(self) -> None:
        self.source.close()


def join_parts(parts: list[list[Box]], body: float, width: float) -> str:
    return "\n\n".join(filter(None, (to_markdown(part, body=body, width=width) for part in parts)))


def read(engine: Engine, request: Message, document: BinaryIO) -> Iterator[Message]:
    """Yield messages about a document. The last one has one of these keys:

    `done`; `error`: the name of a class in `etl.core.errors`; `startup_error`: the reason why OCR is not available.
    """
    try:
        reader = DocumentReader(
            engine, document=document, kind=DocumentFormat(request["kind"]), limits=DocumentLimits(**request["limits"])
        )
        try:
            yield from reader.count_pages() if request.get("count_only") else reader.read_all()
        finally:
            reader.close()
    except BadDocument as error:
        yield {"error": type(error).__name__}
    except MemoryError:
        yield {"error": FileTooLarge.__name__}
    except EngineNotLoaded as error:
        yield {"startup_error": describe_import_error(error.__cause__ or error)}
    except EngineBroken as error:
        yield {"error": OcrFailed.__name__, "reason": describe_location(error.__cause__ or error)}


def describe_location(error: BaseException) -> str:
    """Return the class and location of an exception, without its message, which may quote the document."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    return " ".join([type(error).__name__, *(f"at {each.filename.rpartition('/')[2]}:{each.lineno}" for each in frame)])


def describe_import_error(error: BaseException) -> str:
    """Return the class of an exception and the modules or libraries it names, without its message.

    Examples: `ModuleNotFoundError rapidocr`, `ImportError libGL.so.1`.
    """
    names = [getattr(error, "name", None), *LIBRARY.findall(str(error))]
    return " ".join([type(error).__name__, *dict.fromkeys(str(name) for name in names if name)])[:200]
