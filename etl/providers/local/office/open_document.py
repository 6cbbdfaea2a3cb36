"""ODT, ODS, and ODP: OpenDocument has the displayed text of each cell beside its value."""

from collections.abc import Iterator
from typing import Any

from etl.core.errors import FileCorrupt, FileEncrypted
from etl.core.formats import DocumentFormat
from etl.providers.local.office import markdown
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import MAX_SPAN, TextBudget
from etl.providers.local.office.pages import IMAGE, PAGE_BREAK, OfficePage, PageList
from etl.providers.local.office.sheets import Sheet
from etl.providers.local.office.slides import NOTES
from etl.providers.local.office.xml import attribute, child, children, local_name, number

SKIPPED = frozenset({
    "tracked-changes", "annotation", "annotation-end", "sequence-decls", "forms", "ruby-text", "page-number",
    "page-count",
})  # fmt: skip
PARAGRAPHS, BOXES = frozenset({"p", "h"}), frozenset({"frame", "text-box"})
HIDDEN_ROWS = frozenset({"collapse", "filter"})
TABLE_ROWS = ("table-header-rows", "table-rows", "table-row-group")
COLUMNS = ("table-header-columns", "table-columns", "table-column-group")
# A picture of at least this area may be a scan, in square centimeters.
LARGE_PICTURE = 60
UNITS = {"cm": 1.0, "mm": 0.1, "in": 2.54, "pt": 2.54 / 72, "px": 2.54 / 96}


def read(archive: Archive, kind: DocumentFormat, budget: TextBudget) -> "TextDocument | Spreadsheet | Slides":
    manifest = archive.optional("META-INF/manifest.xml")
    if manifest is not None and any(local_name(each) == "encryption-data" for each in manifest.iter()):
        raise FileEncrypted
    root = archive.tree("content.xml")
    body = next((each for each in root.iter() if local_name(each) == "body"), None)
    if body is None or not len(body):
        raise FileCorrupt
    content = next((each for each in body if local_name(each) in {"text", "spreadsheet", "presentation"}), body[0])
    if kind == DocumentFormat.ODS:
        return Spreadsheet(root, content, budget)
    if kind == DocumentFormat.ODP:
        return Slides(content, budget)
    return TextDocument(archive.optional("styles.xml"), root, content, budget)


# ---- Text -----------------------------------------------------------------------------------------------------------
class TextDocument(PageList):
    def __init__(self, styles: Any, root: Any, content: Any, budget: TextBudget) -> None:
        PageList.__init__(self)
        self.budget = budget
        self.notes: list[str] = []
        self.breaks = {
            name for name, properties in style_properties(root) if attribute(properties, "break-before") == "page"
        }
        self.numbered = numbered_levels(root, styles)
        for text in margins(styles, "header"):
            self.add(text)
        self.add_blocks(content)
        for text in margins(styles, "footer"):
            self.add(text)
        self.add_notes()

    def add_notes(self) -> None:
        for text in self.notes:
            self.append(text)
        self.notes = []

    def break_page(self) -> None:
        self.add_notes()
        PageList.break_page(self)

    def add_blocks(self, parent: Any) -> None:
        for each in parent:
            name = local_name(each)
            if name == "soft-page-break" or attribute(each, "style-name") in self.breaks:
                self.break_page()
            if name in {"p", "h"}:
                self.add_paragraph(each, name)
            elif name == "list":
                for line in list_lines(each, self.notes, self.numbered):
                    self.add(self.budget.spend(line))
            elif name == "table":
                self.add(markdown.table(padded(each, self.budget)))
            elif name not in SKIPPED:
                self.add_blocks(each)

    def add_paragraph(self, paragraph: Any, name: str) -> None:
        text = self.budget.spend(text_of(paragraph, self.notes))
        level = number(attribute(paragraph, "outline-level"), 1)
        is_title = attribute(paragraph, "style-name") == "Title"
        self.add(markdown.heading(level, text) if name == "h" or is_title else text)
        self.add_frames(paragraph)

    def add_frames(self, paragraph: Any) -> None:
        """Add the text boxes that are anchored in a paragraph, and note its pictures."""
        for box in outermost_boxes(paragraph):
            self.add_blocks(box)
        for each in paragraph.iter():
            if local_name(each) == "frame" and child(each, "image") is not None and area(each) >= LARGE_PICTURE:
                self.warn(IMAGE)


def margins(styles: Any, kind: str) -> list[str]:
    """Return the different headers or footers of a document, each once."""
    found = [each for each in styles.iter() if local_name(each) == kind] if styles is not None else []
    lines = (" ".join(texts(each)) for each in found)
    return list(dict.fromkeys(line for line in lines if any(char.isalpha() for char in line)))


def texts(element: Any) -> Iterator[str]:
    found = (text_of(each).strip() for each in paragraphs(element))
    return (text for text in found if any(char.isalnum() for char in text))


def paragraphs(element: Any, *, is_in_text: bool = False) -> Iterator[Any]:
    """Yield the paragraphs of an element and of the text boxes in them, each once.

    Not those of notes, whose text `pieces` yields: if they came twice, nested notes would come exponentially often.
    """
    for each in element:
        name = local_name(each)
        is_found = name in PARAGRAPHS and not is_in_text
        if is_found:
            yield each
        if name != "note" and name not in SKIPPED:
            yield from paragraphs(each, is_in_text=(is_in_text or is_found) and name not in BOXES)


def outermost_boxes(element: Any) -> Iterator[Any]:
    """Yield the text boxes of a paragraph that are not inside another one, which yields those itself."""
    for each in element:
        if local_name(each) == "text-box":
            yield each
        elif local_name(each) not in SKIPPED and local_name(each) != "note":
            yield from outermost_boxes(each)


def list_lines(
    element: Any,
    notes: list[str],
    numbered: frozenset[tuple[str, int]] = frozenset(),
    *,
    depth: int = 0,
    style: str = "",
) -> Iterator[str]:
    """Yield the items of a list. `numbered`: the styles and levels, from 1, whose items have numbers."""
    style = attribute(element, "style-name") or style
    count = 0
    for item in children(element, "list-item", "list-header"):
        count = number(attribute(item, "start-value"), count + 1)
        marker = f"{count}." if (style, depth + 1) in numbered else "-"
        for each in item:
            if local_name(each) == "list":
                yield from list_lines(each, notes, numbered, depth=depth + 1, style=style)
            elif text := markdown.one_line(text_of(each, notes)):
                yield f"{'  ' * depth}{marker} {text}"


def numbered_levels(*roots: Any) -> frozenset[tuple[str, int]]:
    """Return the list styles and levels whose items have numbers."""
    return frozenset(
        (attribute(style, "name"), number(attribute(level, "level")))
        for root in roots
        for holder in children(root, "automatic-styles", "styles")
        for style in children(holder, "list-style")
        for level in children(style, "list-level-style-number")
        if attribute(level, "num-format")
    )


def text_of(element: Any, notes: list[str] | None = None) -> str:
    return "".join(pieces(element, notes if notes is not None else []))


def pieces(element: Any, notes: list[str]) -> Iterator[str]:
    yield element.text or ""
    for each in element:
        name = local_name(each)
        if name == "s":
            yield " " * min(number(attribute(each, "c"), 1), MAX_SPAN)
        elif name == "tab":
            yield " "
        elif name == "line-break":
            yield "\n"
        elif name == "soft-page-break":
            yield PAGE_BREAK
        elif name == "note":
            label = f"[^{text_of(child(each, 'note-citation'))}]" if child(each, "note-citation") is not None else ""
            notes.append(
                f"{label}: {' '.join(texts(child(each, 'note-body')))}" if child(each, "note-body") is not None else ""
            )
            yield label
        elif name not in SKIPPED and name not in BOXES:
            yield from pieces(each, notes)
        yield each.tail or ""


# ---- Tables ---------------------------------------------------------------------------------------------------------
def padded(table: Any, budget: TextBudget) -> list[list[str]]:
    rows = [row for _, row, _ in read_rows(table, budget)]
    width = max((max(row, default=0) for row in rows), default=0)
    return [[row.get(at, "") for at in range(1, width + 1)] for row in rows]


def read_rows(table: Any, budget: TextBudget) -> Iterator[tuple[int, dict[int, str], bool]]:
    """Yield the rows that have text: their number, their texts by column, and whether they are hidden."""
    position = 0
    for row in descend(table, "table-row", TABLE_ROWS):
        repeated = max(1, number(attribute(row, "number-rows-repeated"), 1))
        found = read_cells(row, budget)
        budget.count_cells(len(found) * (repeated - 1))
        if found:
            for text in found.values():
                budget.spend(text, repeated - 1)
            is_hidden = attribute(row, "visibility") in HIDDEN_ROWS
            yield from ((position + at, found, is_hidden) for at in range(1, repeated + 1))
        position += repeated


def read_cells(row: Any, budget: TextBudget) -> dict[int, str]:
    found: dict[int, str] = {}
    column = 0
    for cell in children(row, "table-cell", "covered-table-cell"):
        repeated = max(1, number(attribute(cell, "number-columns-repeated"), 1))
        text = " ".join(cell_texts(cell)).strip() if local_name(cell) == "table-cell" else ""
        if text:
            budget.spend(text, repeated)
            budget.count_cells(repeated)
            found |= dict.fromkeys(range(column + 1, column + repeated + 1), text)
        column += repeated
    return found


def cell_texts(cell: Any) -> Iterator[str]:
    for each in cell:
        if local_name(each) in {"p", "h"}:
            yield text_of(each)
        elif local_name(each) not in SKIPPED:
            yield from cell_texts(each)


def descend(table: Any, name: str, groups: tuple[str, ...]) -> Iterator[Any]:
    for each in table:
        if local_name(each) == name:
            yield each
        elif local_name(each) in groups:
            yield from descend(each, name, groups)


# ---- Spreadsheets ---------------------------------------------------------------------------------------------------
class Spreadsheet:
    """The sheets of a spreadsheet, each a page."""

    def __init__(self, root: Any, content: Any, budget: TextBudget) -> None:
        self.budget = budget
        self.tables = list(children(content, "table"))
        self.hidden = {
            name for name, properties in style_properties(root) if attribute(properties, "display") == "false"
        }

    def __len__(self) -> int:
        return len(self.tables)

    def page(self, index: int) -> OfficePage:
        table = self.tables[index]
        is_hidden = attribute(table, "style-name") in self.hidden
        sheet = Sheet(name=attribute(table, "name"), is_hidden=is_hidden, hidden_columns=hidden_columns(table))
        for position, row, is_row_hidden in read_rows(table, self.budget):
            sheet.rows[position] = row
            if is_row_hidden:
                sheet.hidden_rows.append(position)
        return sheet.page()


def hidden_columns(table: Any) -> list[tuple[int, int]]:
    found, column = [], 0
    for each in descend(table, "table-column", COLUMNS):
        repeated = max(1, number(attribute(each, "number-columns-repeated"), 1))
        if attribute(each, "visibility") in HIDDEN_ROWS:
            found.append((column + 1, column + repeated))
        column += repeated
    return found


def style_properties(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each automatic style with each of its properties."""
    for style in children(child(root, "automatic-styles"), "style"):
        yield from ((attribute(style, "name"), properties) for properties in style)


# ---- Presentations --------------------------------------------------------------------------------------------------
class Slides:
    """The slides of a presentation, each a page."""

    def __init__(self, content: Any, budget: TextBudget) -> None:
        self.budget = budget
        self.slides = list(children(content, "page"))

    def __len__(self) -> int:
        return len(self.slides)

    def page(self, index: int) -> OfficePage:
        slide = self.slides[index]
        blocks, warnings = list[str](), set[str]()
        for shape in (each for each in slide if local_name(each) != "notes"):
            blocks += self.blocks(shape)
            if child(shape, "image") is not None and area(shape) >= LARGE_PICTURE:
                warnings.add(IMAGE)
        blocks.sort(key=lambda block: not block.startswith("# "))
        notes = [text for each in children(slide, "notes") for text in texts(each)]
        blocks += [markdown.heading(3, NOTES), *notes] if notes else []
        return OfficePage(text=self.budget.spend(markdown.join(blocks)), warnings=frozenset(warnings))

    def blocks(self, shape: Any) -> Iterator[str]:
        is_title = attribute(shape, "class") == "title"
        if is_title:
            yield markdown.heading(1, " ".join(texts(shape)))
            return
        for each in shape:
            name = local_name(each)
            if name in {"p", "h"}:
                yield text_of(each).strip()
            elif name == "list":
                yield from list_lines(each, [])
            elif name == "table":
                yield markdown.table(padded(each, self.budget))
            elif name not in SKIPPED and name != "image":
                yield from self.blocks(each)


def area(frame: Any) -> float:
    """Return the area of a frame in square centimeters."""
    return length(attribute(frame, "width")) * length(attribute(frame, "height"))


def length(text: str) -> float:
    value, unit = text[:-2], text[-2:]
    return float(value) * UNITS.get(unit, 0.0) if value.replace(".", "", 1).isdecimal() else 0.0
