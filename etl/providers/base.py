"""Base class of OCR providers, which convert a document to Markdown with pages. ETL_OCR_PROVIDER selects one."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext

# The lines of a page. Each line is a list of cells from left to right: x0, y0, x1, and y1 in points from the top left
# of the page, and the text.
Cell = tuple[float, float, float, float, str]
Lines = list[list[Cell]]

# Kinds of the blocks of a page.
BLOCK_KINDS = ("title", "text", "list", "table", "figure", "caption", "header", "footer", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class EInvoice:
    """An e-invoice: the XML invoice in a document. `data` has the shape of docs/e-invoices.md, with exact numbers.

    `errors`: dictionaries with `code` and `detail`. The code is `schema`, `profile`, or the number of a rule of EN
    16931.
    """

    syntax: str  # cii or ubl
    profile: str
    errors: tuple[dict[str, str], ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return the fields that the API shows with a task."""
        errors = list(self.errors)
        return {"syntax": self.syntax, "profile": self.profile, "valid": not errors, "errors": errors}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document for a provider.

    `path`: a local copy. `name`: a generated name such as `17.pdf`, never the client's file name. `may_be_empty`: a
    document without text is not an error, because a model can read the images of its pages.
    """

    path: Path
    kind: DocumentFormat
    size: int
    sha256: str
    name: str
    # Returns a temporary URL, for providers that download the document themselves.
    url: Callable[[], str]
    einvoice: EInvoice | None = None  # embedded in the document
    may_be_empty: bool = False


# Below this confidence, recognized text contains wrong words. Even nonsense has a confidence of 0.6.
LOW_CONFIDENCE = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the result. `number` from 1; its text is `markdown[start:end]`, characters of the whole Markdown."""

    number: int
    start: int
    end: int
    method: str  # text: the document's own text; ocr: recognized; none: no content
    confidence: float | None = None  # of OCR: the mean of the page's lines, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OCRResult:
    """The result of OCR.

    - `markdown` has a line `<!-- page: 3 -->` before the text of each page.
    - `pages` has every page of the document in order, including pages without text. A page that could not be read
      causes an error, or a warning with code `page_failed` in the StageContext. It is never omitted silently.
    - `metadata` has at least `pages`, `duration_ms`, and `version`.
    - `layout` has the size of each page, and its blocks with their boxes, if the provider knows them.
    - `lines` maps page numbers to the printed lines of the page. Each line is a list of cells
      `[x0, y0, x1, y1, text]`. They locate citations on the page.
    - `einvoice` has the data of the embedded e-invoice, or None.
    """

    markdown: str
    pages: tuple[Page, ...]
    provider: str
    provider_task_id: str
    metadata: dict[str, Any] = field(default_factory=dict)
    layout: tuple[dict[str, Any], ...] = field(default=(), compare=False)  # stored separately
    lines: dict[int, Lines] = field(default_factory=dict, compare=False)  # stored separately
    einvoice: dict[str, Any] | None = field(default=None, compare=False)  # stored separately

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for the stored JSON, except those that are stored separately."""
        return {
            "pages": [asdict(page) for page in self.pages],
            "provider": self.provider,
            "provider_task_id": self.provider_task_id,
            "metadata": self.metadata,
        }

    @classmethod
    def from_dict(
        cls, facts: dict[str, Any], *, markdown: str, lines: dict[int, Lines], einvoice: dict[str, Any] | None = None
    ) -> Self:
        return cls(
            markdown=markdown,
            lines=lines,
            einvoice=einvoice,
            pages=tuple(Page(**page) for page in facts["pages"]),
            provider=facts["provider"],
            provider_task_id=facts["provider_task_id"],
            metadata=facts["metadata"],
        )


# The line before a page in Markdown, and text in a document that looks like one.
PAGE_MARKER = r"<!-- page: (?P<number>[1-9][0-9]{0,5}) -->"
MARKER_LOOKALIKE = re.compile(r"<!--\s+(?=page:\s*\d+\s*-->)", re.IGNORECASE)


def page_marker(number: int) -> str:
    """Return the line before a page in Markdown."""
    return f"<!-- page: {number} -->"


def without_markers(markdown: str) -> str:
    return re.sub(PAGE_MARKER, "", markdown)


def escape_markers(text: str) -> str:
    """Change text in a document that looks like a page marker, because it would shift the page numbers."""
    return MARKER_LOOKALIKE.sub("<!--", text)


class PagedMarkdown:
    """Builder of a Markdown text and its `pages`."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self._parts: list[str] = []
        self._length = 0

    def add(self, number: int, text: str, *, method: str = "text", confidence: float | None = None) -> tuple[int, int]:
        """Add a page after its marker. Return the start and end of its text."""
        head = f"{page_marker(number)}\n\n"
        start = self._length + len(head)
        end = start + len(text)
        self._parts += [head, text, "\n\n"]
        self._length = end + 2
        self.pages.append(Page(number=number, start=start, end=end, method=method, confidence=confidence))
        return start, end

    def __str__(self) -> str:
        return "".join(self._parts)


class OCRProvider(ABC):
    """Base class of OCR providers. Each worker process creates one instance and uses it for one document at a time."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # for display
    # Accepted formats, checked at submission. Providers may define a property instead.
    formats: frozenset[DocumentFormat]

    @abstractmethod
    def convert(self, document: Document, *, context: StageContext) -> OCRResult:
        """Convert a document to Markdown. Raises EtlError and the errors of `context.check()`."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release resources such as a process. The provider may be used again afterwards."""
