"""A document, read page by page into messages for the worker. Runs only in the process that reads documents."""

import re
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

from etl.core.errors import BadDocument, FileCorrupt, FileTooLarge, OcrFailed, TooManyPages, TooManyPixels
from etl.core.formats import DocumentFormat
from etl.providers.local.boxes import Box, mean_score
from etl.providers.local.images import Pictures
from etl.providers.local.layout import markdown
from etl.providers.local.pages import DocumentLimits, LocalPage
from etl.providers.local.pdf import Pdf
from etl.providers.local.recognition import Engine, EngineBroken, EngineNotLoaded

LIBRARY = re.compile(r"\blib[\w.+-]+\.so[\d.]*")
# These are about the whole document, also when one page shows them.
OF_THE_DOCUMENT = (FileTooLarge, TooManyPages, TooManyPixels)

Message = dict[str, Any]


class Reading:
    """One document. Yields `{"pages": 3}`, then for each page `{"page": 1, "text": …}` or `{"failed": 1}`."""

    def __init__(self, engine: Engine, *, document: BinaryIO, kind: DocumentFormat, limits: DocumentLimits) -> None:
        self.engine = engine
        self.limits = limits
        self.source: Pdf | Pictures = (
            Pdf(document, limits) if kind == DocumentFormat.PDF else Pictures(document, kind, limits)
        )
        self.bytes = 0
        self.failed = 0

    def messages(self) -> Iterator[Message]:
        total = len(self.source)
        if total > self.limits.pages:
            raise TooManyPages
        cut_off = self.source.is_cut_off
        yield {"pages": total}
        for number in range(total):
            yield self.message(number)
        if self.failed == total or (cut_off and self.failed):
            raise FileCorrupt
        yield {"done": True, "truncated": cut_off}

    def look(self) -> Iterator[Message]:
        """Yield only the number of pages, after the checks that need no reading."""
        total = len(self.source)
        if total > self.limits.pages:
            raise TooManyPages
        self.source.check()
        yield {"pages": total}
        yield {"done": True}

    def message(self, number: int) -> Message:
        seconds = self.engine.seconds
        try:
            facts = self.read(self.source.page(number))
        except (*OF_THE_DOCUMENT, EngineBroken, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - libraries raise anything for a damaged page; the worker logs it
            self.failed += 1
            return {"failed": number + 1, "reason": place_of(error)}
        self.bytes += len(facts["text"].encode())
        if self.bytes > self.limits.text:
            raise FileTooLarge
        return {"page": number + 1, **facts, "ocr_seconds": self.engine.seconds - seconds}

    def read(self, page: LocalPage) -> Message:
        layer = text_of(page.parts, page.body, page.width)
        if not page.scan:
            return {"text": layer, "method": "text" if layer else "none", "hidden": page.hidden}
        picture = page.draw()
        lines = self.engine.read(picture)
        recognized = text_of(lines, 0.0, picture.shape[1])
        if len(recognized) < len(layer):
            return {"text": layer, "method": "text", "hidden": page.hidden}
        return {
            "text": recognized,
            "method": "ocr" if recognized else "none",
            "confidence": mean_score(line for part in lines for line in part),
            "hidden": False,  # what was recognized is what people see
        }

    def close(self) -> None:
        self.source.close()


def text_of(parts: list[list[Box]], body: float, width: float) -> str:
    return "\n\n".join(filter(None, (markdown(part, body=body, width=width) for part in parts)))


def read(engine: Engine, request: Message, document: BinaryIO) -> Iterator[Message]:
    """Yield the messages about a document; the last has `done`, or `error`, which names a class of `etl.core.errors`,
    or `broken`, the reason why OCR is not available."""
    try:
        reading = Reading(
            engine, document=document, kind=DocumentFormat(request["kind"]), limits=DocumentLimits(**request["limits"])
        )
        try:
            yield from reading.look() if request.get("look") else reading.messages()
        finally:
            reading.close()
    except BadDocument as error:
        yield {"error": type(error).__name__}
    except MemoryError:
        yield {"error": FileTooLarge.__name__}
    except EngineNotLoaded as error:
        yield {"broken": reason(error.__cause__ or error)}
    except EngineBroken as error:
        yield {"error": OcrFailed.__name__, "reason": place_of(error.__cause__ or error)}


def place_of(error: BaseException) -> str:
    """Return the class and place of an exception, without its message, which may quote the document."""
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    return " ".join([type(error).__name__, *(f"at {each.filename.rpartition('/')[2]}:{each.lineno}" for each in frame)])


def reason(error: BaseException) -> str:
    """Return the class of an exception and the names of the modules or libraries in it, but not its message:
    `ModuleNotFoundError rapidocr`, `ImportError libGL.so.1`."""
    names = [getattr(error, "name", None), *LIBRARY.findall(str(error))]
    return " ".join([type(error).__name__, *dict.fromkeys(str(name) for name in names if name)])[:200]
