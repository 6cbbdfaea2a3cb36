"""XLSX: the displayed values of each sheet, and the cached values of formulas."""

from typing import Any

from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.number_formats import BUILT_IN, GENERAL, display
from etl.providers.local.office.pages import OfficePage
from etl.providers.local.office.sheets import Sheet, column_number
from etl.providers.local.office.xml import attribute, child, children, local_name, number, stream

VISIBLE = "visible"
TRUE = {"1", "true"}
MAX_COLUMNS, MAX_ROWS = 16_384, 1_048_576


class Workbook:
    """The sheets of a workbook, each a page. Sheets that are only a chart have no text."""

    def __init__(self, archive: Archive, budget: TextBudget) -> None:
        self.archive, self.budget = archive, budget
        main = archive.main_part()
        root = archive.tree(main)
        related = archive.related(main)
        # XlsxWriter stores 0 as the value of each formula, and this request to calculate them.
        self.is_calculated = all(attribute(each, "fullCalcOnLoad") not in TRUE for each in children(root, "calcPr"))
        self.is_1904 = any(attribute(each, "date1904") in TRUE for each in children(root, "workbookPr"))
        self.sheets = [
            (attribute(each, "name"), attribute(each, "state", VISIBLE), *related.get(relation(each), ("", "")))
            for each in children(child(root, "sheets"), "sheet")
        ]
        self.strings = self.shared_strings(main)
        styles = archive.parts_of_kind(main, "styles")
        self.formats = formats(archive.tree(styles[0])) if styles else []

    def __len__(self) -> int:
        return len(self.sheets)

    def page(self, index: int) -> OfficePage:
        name, state, kind, part = self.sheets[index]
        sheet = Sheet(name=name, is_hidden=state != VISIBLE)
        if kind == "worksheet":
            self.read_rows(sheet, part)
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

    def read_row(self, sheet: Sheet, number: int, row: Any) -> None:
        found: dict[int, str] = {}
        column = 0
        for cell in children(row, "c"):
            column = column_number(attribute(cell, "r")) or column + 1
            if self.is_without_value(cell):
                sheet.formulas.append((column, number))
            elif (text := self.text(cell)).strip():
                found[column] = self.budget.spend(text)
        self.budget.count_cells(len(found))
        if found:
            sheet.rows[number] = found

    def is_without_value(self, cell: Any) -> bool:
        """Return whether a cell has a formula without the number that it results in."""
        if attribute(cell, "t", "n") != "n" or child(cell, "f") is None:
            return False
        value = child(cell, "v")
        content = "" if value is None else value.text or ""
        return not content or (content == "0" and not self.is_calculated)

    def text(self, cell: Any) -> str:
        kind = attribute(cell, "t", "n")
        if kind == "inlineStr":
            inline = child(cell, "is")
            return "" if inline is None else text_of(inline)
        value = child(cell, "v")
        content = "" if value is None else value.text or ""
        if kind == "s":
            index = number(content, -1)
            return self.strings[index] if 0 <= index < len(self.strings) else ""
        if kind == "b":
            return "TRUE" if content == "1" else "FALSE"
        if kind == "n" and content:
            style = number(attribute(cell, "s"))
            return display(content, self.formats[style] if style < len(self.formats) else GENERAL, is_1904=self.is_1904)
        return content.replace("T00:00:00", "") if kind == "d" else content


def relation(sheet: Any) -> str:
    """Return the relationship's ID, which has a namespace; `sheetId` is another number."""
    return next((value for key, value in sheet.attrib.items() if key.endswith("}id")), "")


def is_hidden(element: Any) -> bool:
    return attribute(element, "hidden") in TRUE


def text_of(element: Any) -> str:
    """Return the text of a string, without its phonetic hints."""
    return "".join(
        each.text or "" for each in element.iter() if local_name(each) == "t" and local_name(each.getparent()) != "rPh"
    )


def formats(styles: Any) -> list[str]:
    """Return the format code of each cell style."""
    own = children(child(styles, "numFmts"), "numFmt")
    codes = {number(attribute(each, "numFmtId")): attribute(each, "formatCode") for each in own}
    identifiers = [number(attribute(each, "numFmtId")) for each in children(child(styles, "cellXfs"), "xf")]
    return [codes.get(each) or BUILT_IN.get(each, GENERAL) for each in identifiers]
