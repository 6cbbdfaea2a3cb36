"""Conversion of spreadsheet sheets to Markdown, independent of the file format."""

from dataclasses import dataclass, field

from etl.core.completeness import listed, ranges
from etl.providers.local.office import markdown
from etl.providers.local.office.pages import HIDDEN, IMAGE, OfficePage


@dataclass(slots=True, kw_only=True)
class Sheet:
    """A sheet. `rows`: the texts of cells by row and column, from 1. `hidden_columns`: first and last column of ranges.

    `formulas`: the column and row of each formula whose value is not in the file. `texts`: paragraphs of text boxes.
    `has_picture`: whether it has a large picture.
    """

    name: str
    is_hidden: bool = False
    rows: dict[int, dict[int, str]] = field(default_factory=dict)
    hidden_rows: list[int] = field(default_factory=list)
    hidden_columns: list[tuple[int, int]] = field(default_factory=list)
    formulas: list[tuple[int, int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    has_picture: bool = False

    def page(self) -> OfficePage:
        """Return a heading and tables. Empty rows separate tables. Hidden parts are included, with a note."""
        hidden = self.hidden_note()
        blocks = [
            markdown.heading(2, f"{self.name} (hidden sheet)" if self.is_hidden else self.name),
            hidden,
            *(markdown.table(to_rectangle(group)) for group in self.groups()),
            *self.texts,
        ]
        has_hidden_content = bool(self.rows or any(self.texts)) and (self.is_hidden or bool(hidden))
        warnings = {HIDDEN: has_hidden_content, IMAGE: self.has_picture}
        return OfficePage(
            text=markdown.join(blocks),
            warnings=frozenset(code for code, is_given in warnings.items() if is_given),
            formulas=listed(f"{column_name(column)}{row}" for column, row in self.formulas),
        )

    def groups(self) -> list[list[dict[int, str]]]:
        """Return the rows, split at empty rows."""
        found: list[list[dict[int, str]]] = []
        last = 0
        for number in sorted(self.rows):
            if not found or number != last + 1:
                found.append([])
            found[-1].append(self.rows[number])
            last = number
        return found

    def hidden_note(self) -> str:
        used = {column for row in self.rows.values() for column in row}
        rows = [number for number in self.hidden_rows if number in self.rows]
        columns = sorted(each for each in used if any(first <= each <= last for first, last in self.hidden_columns))
        notes = [f"Hidden rows: {ranges(rows)}."] if rows else []
        if columns:
            notes.append(f"Hidden columns: {listed(map(column_name, columns))}.")
        return " ".join(notes)


def to_rectangle(rows: list[dict[int, str]]) -> list[list[str]]:
    """Return the texts of rows as a rectangular list, without columns that are empty in all rows."""
    columns = sorted({column for row in rows for column in row})
    return [[row.get(column, "") for column in columns] for row in rows]


def column_name(number: int) -> str:
    name = ""
    while number > 0:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def column_number(reference: str) -> int:
    """Return the column number of a cell reference, such as 28 for AB12."""
    number = 0
    for letter in reference[:4]:
        if not "A" <= letter <= "Z":
            break
        number = number * 26 + ord(letter) - ord("A") + 1
    return number
