"""OCR provider that reads documents on the worker's machine, in a sandboxed process and without a server (ADR 13)."""

import math
import re
import threading
import time
from base64 import b64decode
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import cache
from importlib.metadata import version
from typing import Any

import structlog
from django.conf import settings

from config.platform.observability.metrics import CAUGHT
from etl.core import errors
from etl.core.characters import remove_control_characters
from etl.core.errors import BadDocument, EmptyDocument, EtlError, OcrFailed, UnsupportedFormat
from etl.core.formats import OFFICE_FORMATS, PRINTED, DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import (
    BLOCK_KINDS,
    LOW_CONFIDENCE,
    Cell,
    Document,
    EInvoice,
    Lines,
    OCRProvider,
    OCRResult,
    PagedMarkdown,
    escape_markers,
)
from etl.providers.local import plain
from etl.providers.local.einvoices import rendering
from etl.providers.local.einvoices.received import einvoice_of
from etl.providers.local.einvoices.unreadable import REASONS
from etl.providers.local.process import Message, ReaderCrashed, ReaderProcess

log = structlog.get_logger(__name__)

PLAIN_FORMATS = frozenset({DocumentFormat.TEXT, DocumentFormat.MARKDOWN, DocumentFormat.XML})
# Formats that may contain an e-invoice.
EINVOICE_FORMATS = frozenset({DocumentFormat.PDF, DocumentFormat.XML})
# Increased when the output changes although the versions of the libraries do not.
VERSION = "6"
LIBRARIES = (
    "pypdfium2",
    "rapidocr",
    "rapid-layout",
    "onnxruntime",
    "pillow",
    "lxml",
    "docling-slim",
    "factur-x",
    "charset-normalizer",
)
# Below this mean confidence of all lines, including omitted ones, the script is probably unsupported. Blurred text has
# about 0.6.
UNKNOWN_SCRIPT = 0.45
LOCK_POLL_INTERVAL = 0.2  # seconds between checks of the deadline and the lease
# Seconds of processor time for an Office document. 2,000,000 cells take a third of it. Malicious email and HTML can
# keep parsers busy for hours. More time would not help, so the document is not retried.
MAX_OFFICE_SECONDS = 120
MAX_EINVOICE_SECONDS = 10  # of processor time; the largest e-invoices take 1 second
HIDDEN_TEXT = "The page has text that is not visible."
MAX_COPIES = 4  # of the text in messages: Markdown, blocks, lines, and running heads
# Details of warnings about pages of Office documents, by code.
OFFICE_WARNINGS = {
    "hidden_text": HIDDEN_TEXT,
    "image_not_read": "The page has a large picture. Text in it was not read.",
    "attachment_not_read": "The message has attachments. They were not read.",
    "unbalanced_quotes": "A quotation mark is not closed. Each line was read as a row, which splits cells with breaks.",
}
# A list of cells of a sheet, such as `B4, C7, …`.
CELLS = re.compile(r"[A-Z0-9, …-]{1,500}")
# The class and location of an exception. Other reasons are untrusted and not logged.
REASON = re.compile(r"\w{1,80}( at [\w.<>-]{1,80}:\d{1,6})?", re.ASCII)
# The errors that the reader process may report, by class name.
READER_ERRORS = {
    error.__name__: error
    for error in (
        errors.FileCorrupt, errors.FileEncrypted, errors.FileTooLarge, errors.TooManyPages, errors.TooManyPixels,
        errors.TooMuchText, errors.TooManyParts, errors.TooManyCells, errors.TooDeep, errors.OcrFailed,
    )
}  # fmt: skip


class LocalProvider(OCRProvider):
    """OCR provider for PDFs, images, Office documents, web pages, text files, and e-invoices.

    It uses the text layer of a PDF if possible. XML that is not an e-invoice is read as text.
    """

    name = "local"
    title = "The local provider"
    formats = PRINTED | OFFICE_FORMATS | PLAIN_FORMATS

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: ReaderProcess | None = None

    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        if document.kind not in self.formats:
            raise UnsupportedFormat
        started = time.monotonic()
        result = self.collect(
            plain_messages(document) if document.kind in PLAIN_FORMATS else self.read(document, context), context
        )
        if not (result.has_text or document.may_be_empty):
            raise EmptyDocument
        return OCRResult(
            markdown=result.markdown(),
            pages=tuple(result.text.pages),
            layout=tuple(result.layout),
            lines=result.lines,
            provider=self.name,
            provider_task_id=f"local-{document.sha256[:12]}",
            metadata={
                "pages": len(result.text.pages),
                "duration_ms": milliseconds(time.monotonic() - started),
                "version": VERSION,
                "engine": library_versions(),
                "ocr_pages": sum(page.method == "ocr" for page in result.text.pages),
                "ocr_ms": milliseconds(result.ocr_seconds),
            },
        )

    def find_einvoice(self, document: Document, *, context: StageContext) -> EInvoice | None:
        """Return the e-invoice in a document, or None.

        An e-invoice that cannot be read causes a warning, never an error, because the pages can still be read. Raises
        WorkerMisconfigured or OcrFailed if no process could be started, and the errors of `context.check()`.
        """
        if document.kind not in EINVOICE_FORMATS:
            return None
        try:
            message = self.einvoice_message(document, context)
            if "unreadable" not in message:
                return einvoice_of(message["einvoice"]) if message["einvoice"] else None
            reason = REASONS[message["unreadable"]]
        except (errors.FileCorrupt, errors.FileEncrypted):
            return None  # `convert` reports the error of the document
        except (BadDocument, ReaderCrashed, KeyError, TypeError, ValueError, AttributeError):
            reason = REASONS["crashed"]
        context.warn("einvoice_unreadable", f"The e-invoice was not read. {reason}")
        return None

    def einvoice_message(self, document: Document, context: StageContext) -> Message:
        """Return the message about an e-invoice. Raises the errors of `convert`."""
        found: Message = {}
        with closing(self.read(document, context, einvoice=True)) as messages:
            for message in messages:
                if "error" in message:
                    raise reader_error(message)
                found |= message
        return found

    def count_pages(self, document: Document, *, context: StageContext) -> int:
        """Return the number of pages of a PDF or image, without reading them. Raises the errors of `convert`."""
        return self.collect(self.read(document, context, count_only=True), context).total

    def draw_pages(
        self,
        document: Document,
        *,
        first: int,
        last: int,
        width: int | None = None,
        pixels: int | None = None,
        jpeg: bool = False,
        context: StageContext,
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield the number and the image of each page of a PDF or image, from `first` to `last`.

        Images are WebP or JPEG, and have the given width or at most the given number of pixels. The image is None for a
        page that cannot be drawn. Raises the errors of `convert`.
        """
        draw = {"first": first, "last": last, "width": width, "pixels": pixels, "jpeg": jpeg}
        with closing(self.read(document, context, draw=draw)) as messages:
            for message in messages:
                if "error" in message:
                    raise reader_error(message)
                if "drawn" in message:
                    yield parse_drawn_page(message)

    def collect(self, messages: Generator[Message], context: StageContext) -> "ResultBuilder":
        result = ResultBuilder(context)
        # The generator holds the lock. Without `closing`, the traceback of an error would keep the generator alive.
        with closing(messages):
            for message in messages:
                result.add(message)
        return result

    # ---- The process ------------------------------------------------------------------------------------------------
    def read(self, document: Document, context: StageContext, **options: Any) -> Generator[Message]:
        while not self.lock.acquire(timeout=LOCK_POLL_INTERVAL):
            context.check()
        try:
            yield from self.running_process().read(make_request(document, context, **options), context)
        finally:
            self.lock.release()

    def running_process(self) -> ReaderProcess:
        """Return the reader process. Start a new one if it has exited, or was started before a fork."""
        if self.process is None or not self.process.is_usable():
            self.close()
            try:
                self.process = ReaderProcess()
            except OSError:  # out of memory or process IDs
                raise OcrFailed from None
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None


def make_request(
    document: Document,
    context: StageContext,
    *,
    count_only: bool = False,
    draw: dict[str, int | None] | None = None,
    einvoice: bool = False,
) -> dict[str, Any]:
    sluice = settings.SLUICE
    office_seconds = MAX_OFFICE_SECONDS if document.kind in OFFICE_FORMATS else None
    return {
        "path": str(document.path.resolve()),
        "kind": document.kind.value,
        "seconds": context.remaining(),
        "processor_seconds": MAX_EINVOICE_SECONDS if einvoice else office_seconds,
        "count_only": count_only,
        "draw": draw,
        "einvoice": einvoice,
        "limits": {
            "pages": sluice.etl_max_pages,
            "pixels": sluice.etl_max_pixels,
            "text": max_text(),
        },
    }


def max_text() -> int:
    """Return the maximum number of bytes of a document's text."""
    return max(settings.SLUICE.etl_max_file_bytes, 1024**2)


def plain_messages(document: Document) -> Generator[Message]:
    """Yield messages about a text file or XML e-invoice, in the format of the reader process."""
    if document.kind == DocumentFormat.XML and document.einvoice:
        texts = [rendering.render(document.einvoice.data)]
    else:
        texts = plain.read_pages(document.path, max_pages=settings.SLUICE.etl_max_pages)
    yield {"pages": len(texts)}
    for number, text in enumerate(texts, start=1):
        yield {"page": number, "text": text, "method": "text" if text.strip() else "none"}
    yield {"done": True}


# ---- The result -----------------------------------------------------------------------------------------------------
class ResultBuilder:
    """Builder of the Markdown and the pages of a document from messages. Adds warnings to the context."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.text = PagedMarkdown()
        self.has_text = False
        self.total = 0
        self.size = 0  # characters
        self.ocr_seconds = 0.0
        self.layout: list[dict[str, Any]] = []
        self.lines: dict[int, Lines] = {}

    def add(self, message: Message) -> None:
        """Add a message. Its content is untrusted, because the reader process may be compromised."""
        if "reason" in message:
            log_exception(event_of(message), message["reason"], page=message.get("failed"))
        if "error" in message:
            raise reader_error(message)
        try:
            if "pages" in message:
                self.total = checked_total(message["pages"])
            elif "failed" in message:
                self.add_failed_page(int(message["failed"]), class_name(message["reason"]))
            elif "page" in message:
                self.add_page(message)
            elif message.get("truncated"):
                self.context.warn("truncated", "The end of the file is missing. All pages could be read.")
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ReaderCrashed from None

    def add_page(self, message: Message) -> None:
        number = int(message["page"])
        confidence = message.get("confidence")
        self.append(number, str(message["text"]), str(message["method"]), confidence and finite(confidence))
        self.ocr_seconds += finite(message.get("ocr_seconds", 0))
        self.add_positions(number, message)
        if message.get("hidden"):
            self.context.warn("hidden_text", HIDDEN_TEXT, page=number)
        for code in message.get("warnings", ()):
            self.context.warn(code, OFFICE_WARNINGS[code], page=number)
        if cells := message.get("formulas"):
            detail = f"The file has no stored values for these formulas: {checked_cells(cells)}."
            self.context.warn("formula_without_value", detail, page=number)
        if confidence is not None and confidence < LOW_CONFIDENCE:
            self.context.warn("low_confidence", "The recognized text of the page may have errors.", page=number)
        legibility = finite(message.get("legibility", 1))
        if legibility < UNKNOWN_SCRIPT:
            detail = f"The OCR engine may not support the script: the mean confidence of all lines is {legibility:.2f}."
            self.context.warn("unsupported_script", detail, page=number)
        if message.get("image_not_read"):
            self.context.warn(
                "image_not_read", "Some images on the page were not read. They may contain text.", page=number
            )
        if reason := message.get("layout_failed"):
            log_exception("layout_failed", reason, page=number)
            self.context.warn(
                "layout_failed",
                "The layout of the page could not be analyzed. Its text is returned as lines without structure.",
                page=number,
                reason=class_name(reason),
            )

    def add_positions(self, number: int, message: Message) -> None:
        """Add the blocks and lines of a page, with their positions."""
        if layout := message.get("layout"):
            self.layout.append(checked_layout(layout, number))
            self.count(sum(len(block["text"]) for block in self.layout[-1]["blocks"]))
        if lines := message.get("lines"):
            self.lines[number] = [[checked_cell(*cell) for cell in line] for line in lines]
            self.count(sum(len(text) for line in self.lines[number] for *_, text in line))

    def add_failed_page(self, number: int, reason: str) -> None:
        self.context.warn("page_failed", "The page could not be read.", page=number, reason=reason)
        self.append(number, "", "none", None)

    def append(self, number: int, text: str, method: str, confidence: float | None) -> None:
        text = escape_markers(remove_control_characters(text)).strip("\n")
        self.count(len(text))
        if len(self.text.pages) >= self.total:
            raise ReaderCrashed
        self.text.add(number, text, method=method, confidence=confidence)
        self.has_text = self.has_text or bool(text.strip())
        self.context.progress(number, self.total)

    def count(self, size: int) -> None:
        """Count characters. Raises ReaderCrashed if there are more than a correct reader process sends."""
        self.size += size
        if self.size > MAX_COPIES * max_text():
            raise ReaderCrashed

    def markdown(self) -> str:
        if not self.text.pages or len(self.text.pages) != self.total:
            raise ReaderCrashed
        return str(self.text)


def log_exception(event: str, reason: object, *, page: object) -> None:
    """Log and count an exception that the reader process caught. The values of its message are untrusted."""
    log.error(event, page=page if isinstance(page, int) else None, reason=checked_reason(reason))
    CAUGHT.labels("page").inc()


def event_of(message: Message) -> str:
    """Return the name of the log event for an exception that the reader process caught."""
    if "failed" in message:
        return "page_unreadable"
    return "recognition_failed" if message.get("error") == OcrFailed.__name__ else "document_unreadable"


def parse_drawn_page(message: Message) -> tuple[int, bytes | None]:
    """Return the number and the image of a page. The image is untrusted and only checked for its format."""
    if reason := message.get("reason"):
        log_exception("page_not_drawn", reason, page=message.get("drawn"))
    try:
        number, image = int(message["drawn"]), message["image"] and b64decode(message["image"], validate=True)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ReaderCrashed from None
    if image and not is_image(image):
        raise ReaderCrashed
    return number, image or None


def is_image(content: bytes) -> bool:
    return content[:3] == b"\xff\xd8\xff" or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


def reader_error(message: Message) -> EtlError:
    """Return the error that the reader process reported, with the found value and the limit."""
    error: type[EtlError] = READER_ERRORS.get(str(message["error"]), OcrFailed)
    found, limit = message.get("found"), message.get("limit")
    if issubclass(error, BadDocument) and isinstance(found, int) and isinstance(limit, int):
        return error.of(found, limit)
    return error()


def checked_total(pages: object) -> int:
    total = int(str(pages))
    if total > settings.SLUICE.etl_max_pages:
        raise ReaderCrashed
    return total


def checked_cells(cells: object) -> str:
    if not CELLS.fullmatch(str(cells)):
        raise ReaderCrashed
    return str(cells)


def checked_layout(layout: Message, number: int) -> dict[str, Any]:
    """Return a page's layout with only the known fields, because the reader process may be compromised."""
    blocks = [
        {
            "id": f"{number}-{index}",
            "kind": block["kind"] if block["kind"] in BLOCK_KINDS else "other",
            "bbox": [finite(each) for each in block["bbox"][:4]],
            "text": escape_markers(remove_control_characters(str(block["text"]))),
        }
        for index, block in enumerate(layout["blocks"], start=1)
    ]
    size = {name: finite(layout[name]) for name in ("width", "height")}
    return {"page": number, **size, "rotation": int(layout["rotation"]), "blocks": blocks}


def checked_cell(x0: Any, y0: Any, x1: Any, y1: Any, text: Any) -> Cell:
    return finite(x0), finite(y0), finite(x1), finite(y1), remove_control_characters(str(text))


def finite(number: Any) -> float:
    """Return a number as float. Raises ValueError for infinity and NaN, which JSON cannot represent."""
    if not math.isfinite(value := float(number)):
        raise ValueError(value)
    return value


def checked_reason(reason: object) -> str:
    return str(reason) if REASON.fullmatch(str(reason)) else "invalid"


def class_name(reason: object) -> str:
    """Return the class of an exception that the reader process caught."""
    return checked_reason(reason).partition(" ")[0]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


@cache
def library_versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
