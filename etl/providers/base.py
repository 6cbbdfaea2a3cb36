"""OCR providers: from a document to Markdown with pages. A new one is a class, named by ETL_OCR_PROVIDER."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as a provider gets it. `path`: a local copy, named by us; `name`: `17.pdf`, never the client's."""

    path: Path
    kind: DocumentFormat
    size: int
    sha256: str
    name: str
    # Makes a URL that the document can be downloaded from for a while, for providers that fetch it themselves.
    url: Callable[[], str]


# Of text that was recognised with less confidence than this, words are wrong; nonsense still comes with 0.6.
UNSURE = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the result. `number` from 1; its text is `markdown[start:end]`, characters of the whole Markdown."""

    number: int
    start: int
    end: int
    method: str  # text: the document's own text; ocr: recognised; none: there was nothing to read
    confidence: float | None = None  # 0 to 1, the mean of the page's lines, where it was recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class OCRResult:
    """What OCR found. Every page of the document is in `pages`, in order, also those without text.

    `markdown` has a line `<!-- page: 3 -->` before each page's text. `metadata` has at least `pages`, `duration_ms` and
    `version`. A page that could not be read is a warning with code `page_failed` in the StageContext, or an error.
    It is never omitted silently.
    """

    markdown: str
    pages: tuple[Page, ...]
    provider: str
    provider_task_id: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the Markdown, as it is stored beside it."""
        return {
            "pages": [asdict(page) for page in self.pages],
            "provider": self.provider,
            "provider_task_id": self.provider_task_id,
            "metadata": self.metadata,
        }

    @classmethod
    def from_dict(cls, facts: dict[str, Any], *, markdown: str) -> Self:
        return cls(
            markdown=markdown,
            pages=tuple(Page(**page) for page in facts["pages"]),
            provider=facts["provider"],
            provider_task_id=facts["provider_task_id"],
            metadata=facts["metadata"],
        )


# The line that begins a page in Markdown; and what a reader may take for one, in a document.
PAGE_MARKER = r"<!-- page: (?P<number>[1-9][0-9]{0,5}) -->"
LOOKALIKE = re.compile(r"<!--\s+(?=page:\s*\d+\s*-->)", re.IGNORECASE)


def page_marker(number: int) -> str:
    """Return the line that begins a page in Markdown."""
    return f"<!-- page: {number} -->"


def without_markers(markdown: str) -> str:
    return re.sub(PAGE_MARKER, "", markdown)


def unmarked(text: str) -> str:
    """Return a document's text with nothing in it that would pass for one of our markers, and move pages about."""
    return LOOKALIKE.sub("<!--", text)


class MarkdownOfPages:
    """A Markdown while it grows, page by page."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0

    def add(self, number: int, text: str) -> tuple[int, int]:
        """Add a page after its marker. Returns where its text begins and ends."""
        head = f"{page_marker(number)}\n\n"
        start = self._length + len(head)
        end = start + len(text)
        self._parts += [head, text, "\n\n"]
        self._length = end + 2
        return start, end

    def __str__(self) -> str:
        return "".join(self._parts)


class OCRProvider(ABC):
    """Made once in each worker process, after the fork, and used for one document at a time."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # as people call it
    # What it takes, as submissions are checked against; a property where it depends on the server.
    formats: frozenset[DocumentFormat]

    @abstractmethod
    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        """Convert a document to Markdown. Raises EtlError, and the errors of `context.check()`."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what was started for documents to come, such as a process. It may be used again after that."""
