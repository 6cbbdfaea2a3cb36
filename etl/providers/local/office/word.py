"""DOCX: paragraphs, headings, lists, tables, notes, text boxes, headers and footers."""

import re
from collections.abc import Iterator
from typing import Any

from etl.providers.local.office import markdown
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import MAX_SPAN, TextBudget
from etl.providers.local.office.pages import HIDDEN, IMAGE, PAGE_BREAK, PageList
from etl.providers.local.office.word_styles import Numbering, Styles, value_of
from etl.providers.local.office.xml import attribute, child, children, local_name, number

# Text that was deleted or moved away, and what Word writes for older programs beside what newer ones show.
SKIPPED = frozenset({"del", "moveFrom", "Fallback", "instrText", "delText", "pPr", "rPr", "sdtPr", "tblPr", "sectPr"})
CHARACTERS = {"tab": " ", "noBreakHyphen": "-", "cr": "\n", "lastRenderedPageBreak": PAGE_BREAK}
OFF = frozenset({"0", "false", "off", "none"})
# A picture of at least this area may be a scan. A logo is smaller. In square EMU: 360,000 EMU are a centimeter.
LARGE_PICTURE = 60 * 360_000**2


class WordDocument(PageList):
    def __init__(self, archive: Archive, budget: TextBudget) -> None:
        PageList.__init__(self)
        self.budget = budget
        self.main = archive.main_part()
        self.archive = archive
        self.styles = Styles(self.related_tree("styles"))
        self.numbering = Numbering(self.related_tree("numbering"))
        self.notes = {kind: self.note_elements(kind) for kind in ("footnotes", "endnotes")}
        self.cited: list[str] = []
        self.labels: dict[tuple[str, str], str] = {}  # of the notes that were cited
        for text in self.margins("header"):
            self.add(text)
        self.add_blocks(child(archive.tree(self.main), "body"))
        for text in self.margins("footer"):
            self.add(text)
        self.add_notes()

    def break_page(self) -> None:
        self.add_notes()
        PageList.break_page(self)

    # ---- Parts ------------------------------------------------------------------------------------------------------
    def related_tree(self, kind: str) -> Any:
        names = self.archive.parts_of_kind(self.main, kind)
        return self.archive.tree(names[0]) if names else None

    def margins(self, kind: str) -> list[str]:
        """Return the different headers or footers, each once: letterheads and bank details are in them."""
        found = []
        for name in self.archive.parts_of_kind(self.main, kind):
            inner = WordPart(self, self.archive.tree(name))
            found.append(inner.text().replace(PAGE_BREAK, ""))
        return [text for text in dict.fromkeys(found) if re.search(r"[^\W\d_]", text)]

    def note_elements(self, kind: str) -> dict[str, Any]:
        root = self.related_tree(kind)
        return {} if root is None else {attribute(each, "id"): each for each in root}

    def cite_note(self, kind: str, identifier: str) -> str:
        """Return the label of a note. Its text follows once, although a malicious note may cite itself and others."""
        note, place = self.notes[kind].get(identifier), (kind, identifier)
        if note is None or place in self.labels:
            return self.labels.get(place, "")
        label = self.labels[place] = f"[^{identifier}]" if kind == "footnotes" else f"[^e{identifier}]"
        text = markdown.one_line(" ".join(self.paragraph_text(each) for each in outermost(note, "p")))
        self.cited.append(self.budget.spend(f"{label}: {text}"))
        return label

    def add_notes(self) -> None:
        for text in self.cited:
            self.append(text)
        self.cited = []

    # ---- Blocks -----------------------------------------------------------------------------------------------------
    def add_blocks(self, parent: Any) -> None:
        for each in parent if parent is not None else ():
            name = local_name(each)
            if name == "p":
                self.add_paragraph(each)
            elif name == "tbl":
                self.add_table(each)
            elif name not in SKIPPED:  # content controls, custom XML, and insertions
                self.add_blocks(child(each, "sdtContent") if name == "sdt" else each)

    def add_paragraph(self, paragraph: Any) -> None:
        properties = child(paragraph, "pPr")
        if is_on(child(properties, "pageBreakBefore")):
            self.break_page()
        text = self.paragraph_text(paragraph)
        if text.strip():
            self.add(self.budget.spend(self.decorate(text, properties)))
        elif PAGE_BREAK in text:
            self.break_page()
        for box in outermost(paragraph, "txbxContent"):
            self.add_blocks(box)

    def decorate(self, text: str, properties: Any) -> str:
        """Return the text of a paragraph as a heading or list item, with the number that Word displays."""
        text = text.strip()
        before, text = (PAGE_BREAK, text[1:].strip()) if text.startswith(PAGE_BREAK) else ("", text)
        style = value_of(child(properties, "pStyle"))
        level = self.styles.heading_level(style, properties)
        label, depth = self.numbering.label(self.styles.numbering(style, properties))
        if level:
            is_numbered = label not in ("", "-")
            return before + markdown.heading(level, f"{label} {text}" if is_numbered else text)
        if not label:
            return before + text
        marker = label if label == "-" or re.fullmatch(r"\d+[.)]", label) else f"- {label}"
        return f"{before}{'  ' * depth}{marker} {text}"

    def add_table(self, table: Any) -> None:
        rows: list[list[str]] = []
        for row in self.rows(table):
            cells = self.cells(row)
            if any(PAGE_BREAK in cell for cell in cells) and rows:
                self.append(markdown.table(rows))
                self.break_page()
                rows = rows[:1] if is_on(child(table_row(table), "trPr", "tblHeader")) else []
            rows.append([cell.replace(PAGE_BREAK, " ") for cell in cells])
        self.append(markdown.table(rows))
        for box in outermost(table, "txbxContent"):
            self.add_blocks(box)

    def rows(self, table: Any) -> Iterator[Any]:
        for each in table:
            if local_name(each) == "tr":
                yield each
            elif local_name(each) not in SKIPPED:
                yield from self.rows(child(each, "sdtContent") if local_name(each) == "sdt" else each) or ()

    def cells(self, row: Any) -> list[str]:
        found: list[str] = []
        for cell in self.cell_elements(row):
            span = child(cell, "tcPr", "gridSpan")
            merge = child(cell, "tcPr", "vMerge")
            is_continued = merge is not None and attribute(merge, "val", "continue") == "continue"
            text = "" if is_continued else self.budget.spend(self.cell_text(cell))
            width = min(number(attribute(span, "val"), 1), MAX_SPAN) if span is not None else 1
            found += [text, *[""] * (width - 1)]
        return found

    def cell_elements(self, row: Any) -> Iterator[Any]:
        for each in row:
            if local_name(each) == "tc":
                yield each
            elif local_name(each) == "sdt" and (content := child(each, "sdtContent")) is not None:
                yield from self.cell_elements(content)

    def cell_text(self, cell: Any) -> str:
        return " ".join(filter(None, (self.paragraph_text(each) for each in outermost(cell, "p"))))

    # ---- Text -------------------------------------------------------------------------------------------------------
    def paragraph_text(self, paragraph: Any) -> str:
        return "".join(self.pieces(paragraph))

    def pieces(self, element: Any) -> Iterator[str]:
        """Yield the texts of a paragraph, without those of text boxes, which are blocks of their own."""
        for each in element:
            name = local_name(each)
            if name == "t":
                yield each.text or ""
            elif name in CHARACTERS:
                yield CHARACTERS[name]
            elif name == "br":
                yield PAGE_BREAK if attribute(each, "type") == "page" else "\n"
            elif name in {"footnoteReference", "endnoteReference"}:
                yield self.cite_note(name.replace("Reference", "s"), attribute(each, "id"))
            elif name == "checkBox":
                yield checkbox(each)
            elif name not in SKIPPED and name != "txbxContent":
                self.note_properties(each, name)
                yield from self.pieces(each)

    def note_properties(self, element: Any, name: str) -> None:
        if name == "r" and is_on(child(element, "rPr", "vanish")):
            self.warn(HIDDEN)
        if name in {"inline", "anchor"} and (extent := child(element, "extent")) is not None:
            area = number(attribute(extent, "cx")) * number(attribute(extent, "cy"))
            if area >= LARGE_PICTURE and any(local_name(each) == "blip" for each in element.iter()):
                self.warn(IMAGE)


class WordPart(WordDocument):
    """A header or footer, with the styles of its document."""

    def __init__(self, document: WordDocument, root: Any) -> None:
        PageList.__init__(self)
        self.budget, self.archive, self.main = document.budget, document.archive, document.main
        self.styles, self.numbering, self.notes, self.cited = document.styles, document.numbering, document.notes, []
        self.labels = document.labels
        self.add_blocks(root)

    def text(self) -> str:
        return markdown.join(block for page in self.pages for block in page)


def outermost(element: Any, name: str) -> Iterator[Any]:
    """Yield the descendants with a name that are not inside another one, nor in what is left out."""
    for each in element:
        if local_name(each) == name:
            yield each
        elif local_name(each) not in SKIPPED:
            yield from outermost(each, name)


def table_row(table: Any) -> Any:
    return next(children(table, "tr"), table)


def is_on(element: Any) -> bool:
    return element is not None and attribute(element, "val", "1") not in OFF


def checkbox(element: Any) -> str:
    checked = child(element, "checked")
    return "[x] " if is_on(child(element, "default") if checked is None else checked) else "[ ] "
