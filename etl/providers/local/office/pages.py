"""Pages of documents without printed pages: a sheet, a slide, a chapter, or the text between two page breaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Codes of warnings. Their texts are added in the worker.
HIDDEN, IMAGE, ATTACHMENT = "hidden_text", "image_not_read", "attachment_not_read"
# Characters that Unicode reserves for use within programs: a page break, the place of a warning, and the bounds of text
# that is struck through.
PAGE_BREAK, MARKS = "\ufdd0", {HIDDEN: "\ufdd1", IMAGE: "\ufdd2"}
STRUCK, STRUCK_END = "\ufdd3", "\ufdd4"


@dataclass(slots=True, kw_only=True)
class OfficePage:
    """The Markdown of a page, the codes of its warnings, and the cells with a formula without a value: `B4, C7`."""

    text: str
    warnings: frozenset[str] = frozenset()
    formulas: str = ""


class OfficeDocument(Protocol):
    """A document, whose pages are read one by one."""

    def __len__(self) -> int: ...

    def page(self, index: int) -> OfficePage: ...


@dataclass(frozen=True, slots=True)
class PageList:
    """A document whose pages were read together."""

    pages: Sequence[OfficePage]

    def __len__(self) -> int:
        return len(self.pages)

    def page(self, index: int) -> OfficePage:
        return self.pages[index]
