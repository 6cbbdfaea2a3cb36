"""LocalProvider: reads documents on the worker's machine, without a server. ADR 13: why in a sandboxed process."""

import re
import threading
import time
from collections.abc import Generator
from contextlib import closing
from functools import cache
from importlib.metadata import version
from typing import Any

import structlog
from django.conf import settings

from config.platform.observability.metrics import CAUGHT
from etl.core import errors
from etl.core.characters import without_useless
from etl.core.errors import EmptyDocument, OcrFailed, UnsupportedFormat
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import UNSURE, Document, MarkdownOfPages, OCRProvider, OCRResult, Page, unmarked
from etl.providers.local import plain
from etl.providers.local.process import Died, Message, ReaderProcess

log = structlog.get_logger(__name__)

PLAIN = frozenset({DocumentFormat.TEXT, DocumentFormat.MARKDOWN})
# Raised when the version of what comes out changes while the libraries' do not.
VERSION = "1"
LIBRARIES = ("pypdfium2", "rapidocr", "onnxruntime", "pillow")
REASON = re.compile(r"\w{1,80}( at [\w.<>-]{1,80}:\d{1,6})?", re.ASCII)
# The errors that the process may report, by class name.
KNOWN = {
    error.__name__: error
    for error in (
        errors.FileCorrupt, errors.FileEncrypted, errors.FileTooLarge, errors.TooManyPages, errors.TooManyPixels,
        errors.OcrFailed,
    )
}  # fmt: skip


class LocalProvider(OCRProvider):
    """PDF by its text layer, scans, and images by OCR, text as it is."""

    name = "local"
    title = "The local provider"
    formats = frozenset(
        {DocumentFormat.PDF, DocumentFormat.PNG, DocumentFormat.JPEG, DocumentFormat.TIFF, DocumentFormat.WEBP, *PLAIN}
    )

    def __init__(self) -> None:
        self.alone = threading.Lock()
        self.process: ReaderProcess | None = None

    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        if document.kind not in self.formats:
            raise UnsupportedFormat
        started = time.monotonic()
        texts = Texts(context)
        # Closed here: an error on its way keeps the generator, and with it the process, from the next document.
        with closing(plainly(document) if document.kind in PLAIN else self.read(document, context)) as messages:
            for message in messages:
                texts.take(message)
        return OCRResult(
            markdown=texts.markdown(),
            pages=tuple(texts.pages),
            provider=self.name,
            provider_task_id=f"local-{document.sha256[:12]}",
            metadata={
                "pages": len(texts.pages),
                "duration_ms": milliseconds(time.monotonic() - started),
                "version": VERSION,
                "engine": engine(),
                "ocr_pages": sum(page.method == "ocr" for page in texts.pages),
                "ocr_ms": milliseconds(texts.seconds),
            },
        )

    def look(self, document: Document, *, context: StageContext) -> int:
        """Return how many pages a PDF or image has, without reading them. Raises what `convert` does."""
        texts = Texts(context)
        with closing(self.read(document, context, look=True)) as messages:
            for message in messages:
                texts.take(message)
        return texts.total

    # ---- The process ------------------------------------------------------------------------------------------------
    def read(self, document: Document, context: StageContext, *, look: bool = False) -> Generator[Message]:
        while not self.alone.acquire(timeout=0.2):
            context.check()
        try:
            yield from self.started().ask({**request(document, context), "look": look}, context)
        finally:
            self.tidy()
            self.alone.release()

    def started(self) -> ReaderProcess:
        """Return the process, a new one if the last one is gone or belongs to the process that we were forked from."""
        if self.process is None or not self.process.usable():
            self.close()
            try:
                self.process = ReaderProcess()
            except OSError:  # no memory, or no more processes
                raise OcrFailed from None
        return self.process

    def tidy(self) -> None:
        """Let go of a process that has ended, or has done enough."""
        if self.process is not None and (self.process.is_worn() or not self.process.usable()):
            self.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None


def request(document: Document, context: StageContext) -> dict[str, Any]:
    sluice = settings.SLUICE
    return {
        "path": str(document.path.resolve()),
        "kind": document.kind.value,
        "seconds": context.remaining(),
        "limits": {
            "pages": sluice.etl_max_pages,
            "pixels": sluice.etl_max_pixels,
            "text": max(sluice.etl_max_file_bytes, 1024**2),
        },
    }


def plainly(document: Document) -> Generator[Message]:
    texts = plain.pages(document.path, most=settings.SLUICE.etl_max_pages)
    yield {"pages": len(texts)}
    for number, text in enumerate(texts, start=1):
        yield {"page": number, "text": text, "method": "text" if text.strip() else "none"}
    yield {"done": True}


# ---- The result -----------------------------------------------------------------------------------------------------
class Texts:
    """The growing Markdown and the facts about its pages."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.written = MarkdownOfPages()
        self.pages: list[Page] = []
        self.found = False
        self.total = 0
        self.seconds = 0.0

    def take(self, message: Message) -> None:
        """Add a message about a document. The process may be compromised, so nothing is assumed."""
        if "reason" in message:
            self.log_caught(message)
        if "error" in message:
            raise KNOWN.get(str(message["error"]), OcrFailed)
        try:
            if "pages" in message:
                self.total = int(message["pages"])
            elif "failed" in message:
                self.fail(int(message["failed"]))
            elif "page" in message:
                self.add(message)
            elif message.get("truncated"):
                self.context.warn("truncated", "The end of the file is missing; every page could be read.")
        except (KeyError, TypeError, ValueError):
            raise Died from None

    def add(self, message: Message) -> None:
        number = int(message["page"])
        confidence = message.get("confidence")
        self.write(number, str(message["text"]), str(message["method"]), confidence and float(confidence))
        self.seconds += float(message.get("ocr_seconds", 0))
        if message.get("hidden"):
            self.context.warn("hidden_text", "The page has text that people do not see.", page=number)
        if confidence is not None and confidence < UNSURE:
            self.context.warn("low_confidence", "Recognition is unsure about the text of the page.", page=number)

    def log_caught(self, message: Message) -> None:
        """Log and count an exception that the process caught. It sends the class and the place, or is compromised."""
        reason = str(message["reason"])
        log.error(
            "page_unreadable" if "failed" in message else "recognition_failed",
            page=message.get("failed"),
            reason=reason if REASON.fullmatch(reason) else "invalid",
        )
        CAUGHT.labels("page").inc()

    def fail(self, number: int) -> None:
        self.context.warn("page_failed", "The page could not be read.", page=number)
        self.write(number, "", "none", None)

    def write(self, number: int, text: str, method: str, confidence: float | None) -> None:
        text = unmarked(without_useless(text)).strip("\n")
        start, end = self.written.add(number, text)
        self.pages.append(Page(number=number, start=start, end=end, method=method, confidence=confidence))
        self.found = self.found or bool(text.strip())
        self.context.progress(number, self.total)

    def markdown(self) -> str:
        if not self.pages or len(self.pages) != self.total:
            raise Died
        if not self.found:
            raise EmptyDocument
        return str(self.written)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


@cache
def engine() -> str:
    return ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
