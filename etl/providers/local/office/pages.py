"""Pages of Office documents: sheets, slides, chapters, or the text between two page breaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# Codes of warnings. The worker adds their texts.
HIDDEN, IMAGE, ATTACHMENT, QUOTES = "hidden_text", "image_not_read", "attachment_not_read", "unbalanced_quotes"
# Unicode noncharacters, used as internal marks: of a page break, of content that needs a warning, and of the start and
# end of text that is struck through.
PAGE_BREAK, MARKS = "\ufdd0", {HIDDEN: "\ufdd1", IMAGE: "\ufdd2"}
STRUCK, STRUCK_END = "\ufdd3", "\ufdd4"


@dataclass(slots=True, kw_only=True)
class OfficePage:
    """The Markdown of a page, and the codes of its warnings.

    `formulas`: the cells with a formula whose value is not in the file, such as `B4, C7`.
    """

    text: str
    warnings: frozenset[str] = frozenset()
    formulas: str = ""


class OfficeDocument(Protocol):
    """A document whose pages are read separately."""

    def __len__(self) -> int: ...

    def page(self, index: int) -> OfficePage: ...


@dataclass(frozen=True, slots=True)
class PageList:
    """A document whose pages were read all at once."""

    pages: Sequence[OfficePage]

    def __len__(self) -> int:
        return len(self.pages)

    def page(self, index: int) -> OfficePage:
        return self.pages[index]
