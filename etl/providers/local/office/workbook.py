"""Reader of XLSX workbooks: displayed values of cells, and stored values of formulas."""

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from lxml import etree

from etl.providers.local.office import markdown
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.number_formats import BUILT_IN, GENERAL, display, display_text
from etl.providers.local.office.pages import OfficePage
from etl.providers.local.office.parts import LARGE_PICTURE, emu_area
from etl.providers.local.office.sheets import Sheet, column_number
from etl.providers.local.office.xml import attribute, child, children, local_name, number, stream

VISIBLE = "visible"
TRUE = {"1", "true"}


@dataclass(frozen=True, slots=True)
class CellStyle:
    format: str = GENERAL
    is_struck: bool = False


class Workbook:
    """A workbook. Each sheet is a page. Chart sheets have no text."""

    def __init__(self, archive: Archive, budget: TextBudget) -> None:
        self.archive, self.budget = archive, budget
        main = archive.main_part()
        root = archive.tree(main)
        related = archive.related(main)
        # XlsxWriter stores 0 as the value of each formula, and sets this flag so that programs calculate them.
        self.is_calculated = all(attribute(each, "fullCalcOnLoad") not in TRUE for each in children(root, "calcPr"))
        self.is_1904 = any(attribute(each, "date1904") in TRUE for each in children(root, "workbookPr"))
        self.sheets = [
            (attribute(each, "name"), attribute(each, "state", VISIBLE), *related.get(relation(each), ("", "")))
            for each in children(child(root, "sheets"), "sheet")
        ]
        self.strings = self.shared_strings(main)
        styles = archive.parts_of_kind(main, "styles")
        self.styles = cell_styles(archive.tree(styles[0])) if styles else []

    def __len__(self) -> int:
        return len(self.sheets)

    def page(self, index: int) -> OfficePage:
        name, state, kind, part = self.sheets[index]
        sheet = Sheet(name=name, is_hidden=state != VISIBLE)
        if kind == "worksheet":
            self.read_rows(sheet, part)
            for drawing in self.archive.parts_of_kind(part, "drawing"):
                self.read_drawing(sheet, self.archive.tree(drawing))
        return sheet.page()

    def shared_strings(self, main: str) -> list[str]:
        names = self.archive.parts_of_kind(main, "sharedStrings")
        return [text_of(each) for each in stream(self.archive.stream(names[0]), "si")] if names else []

    def read_rows(self, sheet: Sheet, part: str) -> None:
        last = 0
        for element in stream(self.archive.stream(part), "row", "col"):
            if local_name(element) == "col":
                if is_hidden(element):
                    sheet.hidden_columns.append((number(attribute(element, "min")), number(attribute(element, "max"))))
                continue
            last = number(attribute(element, "r"), last + 1)
            self.read_row(sheet, last, element)
            if is_hidden(element):
                sheet.hidden_rows.append(last)

    def read_drawing(self, sheet: Sheet, root: Any) -> None:
        """Read text boxes and other shapes with text, and find large pictures."""
        etree.strip_elements(root, "{*}Fallback", with_tail=False)  # a copy for earlier programs
        for paragraph in root.iterfind(".//{*}txBody/{*}p"):
            text = markdown.one_line("".join(each.text or "" for each in paragraph.iter("{*}t")))
            sheet.texts.append(self.budget.spend(text))
        pictures = (each for each in root if next(each.iter("{*}pic"), None) is not None)
        sheet.has_picture |= any(emu_area(size) >= LARGE_PICTURE for each in pictures for size in each.iter("{*}ext"))

    def read_row(self, sheet: Sheet, number: int, row: Any) -> None:
        found: dict[int, str] = {}
        column = 0
        for cell in children(row, "c"):
            column = column_number(attribute(cell, "r")) or column + 1
            if self.is_without_value(cell):
                self.budget.count_cells(1)
                sheet.formulas.append((column, number))
            elif (text := self.text(cell)).strip():
                found[column] = self.budget.spend(text)
        self.budget.count_cells(len(found))
        if found:
            sheet.rows[number] = found

    def is_without_value(self, cell: Any) -> bool:
        """Return whether a cell has a formula whose result is not stored."""
        if attribute(cell, "t", "n") != "n" or child(cell, "f") is None:
            return False
        value = child(cell, "v")
        content = "" if value is None else value.text or ""
        return not content or (content == "0" and not self.is_calculated)

    def text(self, cell: Any) -> str:
        """Return the displayed text of a cell. Text that is struck through is marked."""
        index = number(attribute(cell, "s"))
        style = self.styles[index] if 0 <= index < len(self.styles) else CellStyle()
        text = self.formatted(cell, style.format)
        return markdown.strike_through(text.replace("~~", "")) if style.is_struck else text

    def formatted(self, cell: Any, code: str) -> str:
        kind = attribute(cell, "t", "n")
        if kind == "inlineStr":
            inline = child(cell, "is")
            return "" if inline is None else display_text(text_of(inline), code)
        value = child(cell, "v")
        content = "" if value is None else value.text or ""
        if kind == "s":
            index = number(content, -1)
            return display_text(self.strings[index], code) if 0 <= index < len(self.strings) else ""
        if kind == "b":
            return "TRUE" if content == "1" else "FALSE"
        if kind == "n" and content:
            return display(content, code, is_1904=self.is_1904)
        if kind == "str":
            return display_text(content, code)
        return content.replace("T00:00:00", "") if kind == "d" else content


def relation(sheet: Any) -> str:
    """Return the relationship ID of a sheet. Its attribute has a namespace, unlike `sheetId`."""
    return next((value for key, value in sheet.attrib.items() if key.endswith("}id")), "")


def is_hidden(element: Any) -> bool:
    return attribute(element, "hidden") in TRUE


def text_of(element: Any) -> str:
    """Return the text of a string, without phonetic hints. Text that is struck through is marked."""
    texts = ((each, each.getparent()) for each in element.iter() if local_name(each) == "t")
    runs = [(is_struck(child(run, "rPr")), each.text or "") for each, run in texts if local_name(run) != "rPh"]
    groups = ((struck, "".join(text for _, text in group)) for struck, group in groupby(runs, itemgetter(0)))
    return "".join(markdown.strike_through(text) if struck else text for struck, text in groups)


def is_struck(font: Any) -> bool:
    return any(attribute(each, "val", "1") in TRUE for each in children(font, "strike"))


def cell_styles(styles: Any) -> list[CellStyle]:
    own = children(child(styles, "numFmts"), "numFmt")
    codes = {number(attribute(each, "numFmtId")): attribute(each, "formatCode") for each in own}
    struck = {index for index, each in enumerate(children(child(styles, "fonts"), "font")) if is_struck(each)}
    found = [
        (number(attribute(each, "numFmtId")), number(attribute(each, "fontId")))
        for each in children(child(styles, "cellXfs"), "xf")
    ]
    return [CellStyle(codes.get(code) or BUILT_IN.get(code, GENERAL), font in struck) for code, font in found]
