"""Pages of documents that are not printed: a sheet, a slide, a chapter, or the text between two page breaks."""

from dataclasses import dataclass, field
from typing import Protocol

from etl.providers.local.office import markdown

PAGE_BREAK = "\0"  # in texts; no XML has this character
# Codes of warnings. The worker knows their texts.
HIDDEN, IMAGE, ATTACHMENT = "hidden_text", "image_not_read", "attachment_not_read"


@dataclass(slots=True, kw_only=True)
class OfficePage:
    """The Markdown of a page, and the codes of its warnings."""

    text: str
    warnings: frozenset[str] = frozenset()


class OfficeDocument(Protocol):
    """A document, whose pages are read one by one."""

    def __len__(self) -> int: ...

    def page(self, index: int) -> OfficePage: ...


@dataclass(frozen=True, slots=True)
class OnePage:
    """A document of one page."""

    only: OfficePage

    def __len__(self) -> int:
        return 1

    def page(self, _index: int) -> OfficePage:
        return self.only


@dataclass(slots=True)
class PageList:
    """Pages that are filled block by block, and divided at page breaks. A break without text since the last is ignored:
    programs record the same break twice."""

    pages: list[list[str]] = field(default_factory=lambda: [[]])
    warnings: list[set[str]] = field(default_factory=lambda: [set()])

    def add(self, block: str) -> None:
        first, *others = block.split(PAGE_BREAK)
        self.append(first)
        for each in others:
            self.break_page()
            self.append(each)

    def append(self, block: str) -> None:
        if block.strip():
            self.pages[-1].append(block.strip("\n"))

    def break_page(self) -> None:
        if self.pages[-1]:
            self.pages.append([])
            self.warnings.append(set())

    def warn(self, code: str) -> None:
        self.warnings[-1].add(code)

    def __len__(self) -> int:
        return max(1, len(self.pages) - (not self.pages[-1] and not self.warnings[-1]))

    def page(self, index: int) -> OfficePage:
        return OfficePage(text=markdown.join(self.pages[index]), warnings=frozenset(self.warnings[index]))
