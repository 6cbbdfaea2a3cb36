"""Conversion of Word, PowerPoint, OpenDocument, and HTML documents with docling's parsers, without its ML models.

docling receives only content that `parts` or `web` has checked. They also insert marks for content that docling does
not preserve: page breaks, hidden text, text that is struck through, and large pictures.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from docling.backend.abstract_backend import DeclarativeDocumentBackend
from docling.backend.html_backend import HTMLDocumentBackend
from docling.backend.mspowerpoint_backend import MsPowerpointDocumentBackend
from docling.backend.msword_backend import MsWordDocumentBackend
from docling.backend.opendocument_backend import OdpDocumentBackend, OdsDocumentBackend, OdtDocumentBackend
from docling.datamodel.backend_options import HTMLBackendOptions
from docling.datamodel.base_models import InputFormat
from docling.datamodel.document import InputDocument
from docling_core.transforms.serializer.markdown import MarkdownDocSerializer, MarkdownParams
from docling_core.types.doc.document import ContentLayer, DoclingDocument, GroupItem
from docling_core.types.doc.labels import GroupLabel

from etl.core.errors import FileCorrupt
from etl.core.formats import DocumentFormat
from etl.providers.local.office import markdown
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import HIDDEN, MARKS, PAGE_BREAK, STRUCK, STRUCK_END, OfficePage

BACKENDS: dict[DocumentFormat, type[DeclarativeDocumentBackend]] = {
    DocumentFormat.DOCX: MsWordDocumentBackend,
    DocumentFormat.PPTX: MsPowerpointDocumentBackend,
    DocumentFormat.ODT: OdtDocumentBackend,
    DocumentFormat.ODP: OdpDocumentBackend,
    DocumentFormat.ODS: OdsDocumentBackend,
    DocumentFormat.HTML: HTMLDocumentBackend,
}
# Formats in which docling returns a group for each page, such as a slide or sheet.
PAGED = frozenset({DocumentFormat.PPTX, DocumentFormat.ODP, DocumentFormat.ODS})
LAYERS = {ContentLayer.BODY, ContentLayer.FURNITURE, ContentLayer.INVISIBLE}
FURNITURE_LAYERS = {ContentLayer.FURNITURE}  # headers, footers, and footnotes
OPTIONS = MarkdownParams(
    layers=LAYERS, image_placeholder="", escape_underscores=False, escape_html=False, include_formatting=False,
    include_hyperlinks=False, compact_tables=True, indent=2, include_picture_classification=False,
    traverse_pictures=True,
)  # fmt: skip
# By default, docling treats the text above the first heading of HTML as a page header.
WHOLE_PAGE = HTMLBackendOptions.model_validate({"infer_furniture": False})
SHEET = "sheet: "  # before the name of a sheet
SPEAKER_NOTES_HEADING = "Speaker notes"
FOOTNOTE_LABEL = re.compile(r"(\[\^\w+\]):")  # the label of a footnote, inserted by `parts`
BREAK_AFTER_PREFIX = re.compile(rf"^([\s#>|*-]*(?:[\d.]+\)?\s+)?){PAGE_BREAK}")
STRUCK_TEXT = re.compile(f"{STRUCK}([^{STRUCK_END}]*){STRUCK_END}")
ADJACENT_STRIKES = re.compile(f"{STRUCK_END}([ \\t]*){STRUCK}")
STRUCK_LINE = re.compile(rf"[^\s{PAGE_BREAK}](?:[^\n{PAGE_BREAK}]*[^\s{PAGE_BREAK}])?")
DELIMITER_ROW = re.compile(r"^\|(?:[ :]*-+[ :]*\|)+$", re.MULTILINE)


def convert(kind: DocumentFormat, content: bytes) -> DoclingDocument:
    """Convert a checked document. Raises FileCorrupt."""
    source = InputDocument(
        path_or_stream=BytesIO(content), format=InputFormat(kind.value), backend=BACKENDS[kind], filename=f"x.{kind}",
        backend_options=WHOLE_PAGE if kind == DocumentFormat.HTML else None,
    )  # fmt: skip
    backend = source._backend if source.valid else None
    if not isinstance(backend, DeclarativeDocumentBackend):
        raise FileCorrupt
    return backend.convert()


def pages(kind: DocumentFormat, content: bytes, budget: TextBudget) -> list[OfficePage]:
    """Return the Markdown of each page of a checked document. Raises FileCorrupt, and the errors of the budget."""
    return Pages(convert(kind, content), budget).read(is_paged=kind in PAGED)


class Pages:
    def __init__(self, document: DoclingDocument, budget: TextBudget) -> None:
        self.document, self.budget = document, budget
        clear_spans(document)
        self.serializer = MarkdownDocSerializer(doc=document, params=OPTIONS)

    def read(self, *, is_paged: bool) -> list[OfficePage]:
        children = [each.resolve(self.document) for each in self.document.body.children]
        if is_paged:
            groups = [each for each in children if isinstance(each, GroupItem) and not is_comments(each)]
            return [page(strike(self.page_text(each))) for each in groups]
        return [page(text) for text in split(strike(self.flow(children)))]

    def flow(self, children: Iterable[Any]) -> str:
        """Return the text of a document, with its headers first, and its footers and footnotes last."""
        body = MarkdownDocSerializer(
            doc=self.document, params=OPTIONS.model_copy(update={"layers": LAYERS - FURNITURE_LAYERS})
        )
        margins: dict[str, bool] = {}
        for each in children:
            if each.content_layer in FURNITURE_LAYERS and re.search(r"[^\W\d_]", text := self.text(each)):
                margins[text] = getattr(each, "name", "") == "page header"
        before = (text for text, is_header in margins.items() if is_header)
        after = (text for text, is_header in margins.items() if not is_header)
        return "\n\n".join([*before, self.budget.spend(body.serialize().text), *after])

    def page_text(self, group: GroupItem) -> str:
        """Return the text of a slide or sheet."""
        is_hidden = group.content_layer == ContentLayer.INVISIBLE
        blocks = [self.text(group)]
        if group.name.startswith(SHEET):
            name = group.name.removeprefix(SHEET)
            blocks.insert(0, markdown.heading(2, f"{name} (hidden sheet)" if is_hidden else name))
        notes = [
            self.budget.spend(text)
            for each, _ in self.document.iterate_items(group, included_content_layers={ContentLayer.NOTES})
            if (text := str(getattr(each, "text", "")))
        ]
        blocks += [markdown.heading(3, SPEAKER_NOTES_HEADING), *notes] if notes else []
        return markdown.join(blocks)

    def text(self, item: Any) -> str:
        text = self.serializer.serialize(item=item).text.strip("\n")
        layers = {each.content_layer for each, _ in self.document.iterate_items(item, included_content_layers=LAYERS)}
        return self.budget.spend(text + MARKS[HIDDEN] if ContentLayer.INVISIBLE in layers and text else text)


def clear_spans(document: DoclingDocument) -> None:
    """Keep the text of a spanning cell only in its first cell. Otherwise, rows would contain amounts twice."""
    for table in document.tables:
        for cell in table.data.table_cells:
            cell.row_span = cell.col_span = 1
            cell.end_row_offset_idx = cell.start_row_offset_idx + 1
            cell.end_col_offset_idx = cell.start_col_offset_idx + 1


def is_comments(item: Any) -> bool:
    return bool(getattr(item, "label", None) == GroupLabel.COMMENT_SECTION)


def strike(text: str) -> str:
    """Mark text that is struck through as `~~text~~`, separately in each line."""
    text = STRUCK_TEXT.sub(lambda struck: STRUCK_LINE.sub(r"~~\g<0>~~", struck[1]), ADJACENT_STRIKES.sub(r"\1", text))
    return text.replace(STRUCK, "").replace(STRUCK_END, "")


def page(text: str) -> OfficePage:
    """Return a page, with its marks converted to warnings."""
    warnings = frozenset(code for code, mark in MARKS.items() if mark in text)
    for mark in MARKS.values():
        text = text.replace(mark, "")
    text = re.sub(r" +$", "", text.replace("&#124;", "\\|"), flags=re.MULTILINE)
    text = DELIMITER_ROW.sub(lambda rule: re.sub("-+", "---", rule[0]), text)
    return OfficePage(text=re.sub(r"\n{3,}", "\n\n", text).strip("\n"), warnings=warnings)


# ---- Pages of a text ------------------------------------------------------------------------------------------------
def split(text: str) -> list[str]:
    """Split a text into pages. Each footnote goes to the page with its reference."""
    lines = text.split("\n")
    labels = ((line, FOOTNOTE_LABEL.match(line)) for line in lines)
    notes = {line: label[1] for line, label in labels if label}
    found = list(split_pages(line for line in lines if line not in notes))
    for line, label in notes.items():
        at = next((index for index, each in enumerate(found) if label in each), len(found) - 1)
        found[at] = f"{found[at]}\n\n{line.replace(PAGE_BREAK, '')}"
    return found


def split_pages(lines: Iterable[str]) -> Iterator[str]:
    """Yield the pages. The head of a table is repeated if the table continues on the next page."""
    page_lines: list[str] = []
    head: list[str] = []
    for line in lines:
        is_row = line.startswith("|")
        if not is_row:
            head = []
        elif page_lines and DELIMITER_ROW.fullmatch(line):
            head = [page_lines[-1], line]
        first, *others = split_at_breaks(line, head) if PAGE_BREAK in line else [line]
        page_lines.append(first)
        for other in others:
            if any(each.strip() for each in page_lines):
                yield "\n".join(page_lines)
                page_lines = []
            page_lines.append(other)
    yield "\n".join(page_lines)


def split_at_breaks(line: str, head: list[str]) -> list[str]:
    """Split a line at its page breaks. A table row moves to the next page. Markdown prefixes stay with their text."""
    if line.startswith("|"):
        return ["", "\n".join([*head, line.replace(PAGE_BREAK, "")])]
    return BREAK_AFTER_PREFIX.sub(rf"{PAGE_BREAK}\1", line).split(PAGE_BREAK)
