"""Detection of scales that are not beside their numbers, such as `TEUR`, `in thousands`, and `$'000`.

A scale may be in a label, a separate cell, the head of a table, or a note. It makes a number ambiguous, because it is
not known whether the model applied it to the value.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

from etl.postprocessors.citations.characters import TAG
from etl.postprocessors.citations.units import AMOUNTS, CURRENCY, LETTERS, ONE, SCALE, SCALED, THOUSAND, scales_of
from etl.postprocessors.document_text import PageSpan
from etl.postprocessors.tables import HTML_TABLE, Table, html_rows

ROW = re.compile(r"\n|<tr\b", re.IGNORECASE)
CELL = re.compile(r"(?<!\\)\||<t[dh]\b", re.IGNORECASE)
SPACE = r"[ \u00a0\t\u2060]"
BEGIN, END = r"(?<![^\W_])", r"(?![^\W_\u2e80-\uffff])"
MONEY = rf"(?:{CURRENCY}|[A-Z]{{3}}|(?:[A-Z][\w.]{{1,10}} )?(?:[Dd]ollars?|[Ee]uros?|[Pp]ounds?|[Ff]rancs?))"
ZEROS = rf"(?:(?:{CURRENCY}) ?['’]?|['’])000['’]?s?|000['’]?s"
TIMES = r"[x×*] ?1[., '’]?000(?:[., '’]?000){0,4}"
LETTER = rf"(?:{CURRENCY}) ?[kKmMbB]n?|[kKmM] ?(?:{CURRENCY})"
WIDE = r"[十百千万萬億亿십백천만억]{1,3}[円元圓원]"
CODE = "|".join(map(re.escape, sorted(SCALED, key=len, reverse=True)))
KINDS = {
    name: re.compile(f"{BEGIN}(?:{pattern}){END}")
    for name, pattern in {
        "code": CODE, "zeros": ZEROS, "times": TIMES, "letter": LETTER, "wide": WIDE, "word": f"(?i:{SCALE})"
    }.items()
}  # fmt: skip
UNIT = rf"{BEGIN}(?:{CODE}|{ZEROS}|{TIMES}|{LETTER}|{WIDE}|(?i:{SCALE})){END}"
ANY_UNIT = re.compile(UNIT)
POWERS = dict(zip("十십百백千천万萬만億亿억", (1, 1, 2, 2, 3, 3, 4, 4, 4, 8, 8, 8), strict=True))
IN = r"(?:\b(?i:in|en|i|w)\b|[(\[:：])"
# Possessive quantifiers: backtracking into a long run of spaces would take quadratic time.
ALONE = (
    rf"{SPACE}*+[(\[]?(?:{IN}?{SPACE}*+(?:{MONEY}{SPACE}?(?:{IN}{SPACE}+)?)?)?{UNIT}\.?(?:{SPACE}++(?:of|de|di|von))?"
    rf"{SPACE}*+(?:{MONEY})?{SPACE}*+[)\]]?{SPACE}*+"
)
# Before a number in its row: `Sales (TEUR): 500`, `| Sales in millions | 500 |`, `| TEUR | 500 |`.
LABEL = re.compile(rf"(?:{IN}[^\d\n|]{{0,30}}?{UNIT}[^\d\n]{{0,30}}|{UNIT}\.?[)\]:]*{SPACE}*\|[|{SPACE[1:-1]}]*)\Z")
AFTER = re.compile(
    rf"{SPACE}{{0,4}}(?:\|{ALONE}(?=\||\n|\Z)|[(\[]{SPACE}*(?:(?i:in|en){SPACE}+)?{UNIT}|(?=[x×*]){UNIT})"
)
WHOLE = re.compile(ALONE)
IN_BRACKETS = re.compile(rf"[(\[][^()\[\]\n]{{0,40}}?{UNIT}[^()\[\]\n]{{0,40}}[)\]]")
OF_AMOUNTS = re.compile(
    rf"\b(?:{AMOUNTS})\b[^.\n]{{0,60}}?{IN}[^.\n]{{0,20}}?{UNIT}"
    rf"|(?:单位|單位|単位|단위)[^\n]{{0,4}}?{UNIT}",
    re.IGNORECASE,
)
GAPS = re.compile(r"\t| {2,}")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
OTHER_DIGITS = re.compile(rf"(?:{YEAR.pattern}|{ZEROS}|1[., '’]?000)|(\d)")
MAX_LABEL, MAX_AFTER = 80, 20  # characters before and after a number that are searched
MAX_NOTE = 200  # characters of a line


def scales_in(text: str) -> Iterator[Decimal]:
    """Yield the scales that a text names."""
    for kind, pattern in KINDS.items():
        for match in pattern.finditer(text):
            yield from scales_of_unit(kind, match.group())


def scales_of_unit(kind: str, unit: str) -> tuple[Decimal, ...]:
    match kind:
        case "code":
            return (SCALED[unit],)
        case "zeros":
            return (THOUSAND,)
        case "times":
            return (Decimal(10) ** unit.count("0"),)
        case "letter":
            return tuple(LETTERS[char] for char in unit.casefold() if char in LETTERS)[:1]
        case "wide":
            return (Decimal(10) ** sum(POWERS[char] for char in unit[:-1]),)
    found = scales_of(unit, "")
    return () if found[0] == ONE else found  # `mill` and `tn` are more likely to be other words


def units_in(plain: str) -> list[int]:
    """Return the positions of all scale units in a text."""
    return [match.start() for match in ANY_UNIT.finditer(plain)]


def is_near(units: list[int], start: int, end: int) -> bool:
    """Return whether a unit is near enough to a number to belong to it."""
    first = bisect_left(units, start - MAX_LABEL)
    return first < len(units) and units[first] <= end + MAX_AFTER


def beside(plain: str, start: int, digits: int, end: int) -> tuple[Decimal, ...]:
    """Return the scales in the label before a number, or in the cell or brackets after it. `digits`: the end of its
    digits."""
    row = max(plain.rfind("\n", max(0, start - MAX_LABEL), start) + 1, start - MAX_LABEL, 0)
    found = LABEL.search(plain, row, start), AFTER.match(plain, digits), AFTER.match(plain, end)
    return tuple(scale for match in found if match for scale in scales_in(match.group()))


class Scales:
    """The scales of tables and pages."""

    def __init__(self, content: str, pages: tuple[PageSpan, ...], tables: list[Table]) -> None:
        self.content, self.tables = content, tables
        self.starts = [table.start for table in tables]
        self.columns = [columns_of(content, table) for table in tables]
        self.pages = [(page.start, page.end, tuple(notes_in(content[page.start : page.end]))) for page in pages]
        self.page_starts = [start for start, _, _ in self.pages]
        self.is_empty = not any(self.columns) and not any(notes for _, _, notes in self.pages)
        self.cells = [] if self.is_empty else [match.start() for match in CELL.finditer(content)]
        self.rows = [] if self.is_empty else [match.start() for match in ROW.finditer(content)]

    def at(self, start: int, end: int) -> tuple[tuple[Decimal, ...], bool]:
        """Return the possible scales of a number, and whether its own column names one."""
        if self.is_empty:
            return (), False
        number = self.table_at(start)
        if number is not None:
            columns = self.columns[number]
            own = columns.get(self.column_of(start), ())
            first = self.first_of(number)
            whole = (*columns.get(0, ()), *self.notes_at(start), *self.notes_at(self.tables[first].start))
            return (*own, *whole), bool(own)
        return self.notes_at(start) if not YEAR.fullmatch(self.content, start, end) else (), False

    def table_at(self, position: int) -> int | None:
        """Return the index of the table whose body rows contain a position, or None."""
        number = bisect_right(self.starts, position) - 1
        is_inside = number >= 0 and self.tables[number].body_start <= position < self.tables[number].end
        return number if is_inside else None

    def first_of(self, number: int) -> int:
        """Return the index of the table from which a table inherits its head, or its own index."""
        while number and self.tables[number].is_inherited:
            number -= 1
        return number

    def column_of(self, position: int) -> int:
        row = bisect_right(self.rows, position) - 1
        return bisect_left(self.cells, position) - bisect_left(self.cells, self.rows[row] if row >= 0 else 0)

    def notes_at(self, position: int) -> tuple[Decimal, ...]:
        page = bisect_right(self.page_starts, position) - 1
        return self.pages[page][2] if page >= 0 else ()


def columns_of(content: str, table: Table) -> dict[int, tuple[Decimal, ...]]:
    """Return the scales of a table's columns. Column 0 means all columns."""
    is_html = HTML_TABLE.match(content, table.start) is not None
    found: defaultdict[int, list[Decimal]] = defaultdict(list)
    for row in rows_of(table.head, is_html=is_html):
        cells = cells_of(row)
        first = next((column for column, cell in enumerate(cells) if cell), 0)
        for column, cell in enumerate(cells):
            found[0 if column == first or "span" in row else column] += scales_in(cell)
    for row in rows_of(content[table.body_start : table.end], is_html=is_html):
        cells = cells_of(row) if not any(map(str.isdecimal, row)) else []
        is_alone = sum(map(bool, cells)) == 1 or "span" in row
        for column, cell in enumerate(cells):
            if WHOLE.fullmatch(cell) or IN_BRACKETS.search(cell):
                found[0 if is_alone else column] += scales_in(cell)
    return {column: tuple(scales) for column, scales in found.items() if scales}


def rows_of(text: str, *, is_html: bool) -> Iterator[str]:
    if is_html:
        yield from (text[start:end] for start, end in html_rows(text))
    else:
        yield from text.splitlines()


def cells_of(row: str) -> list[str]:
    return [
        TAG.sub(" ", f"<td{cell}" if "<td" in row or "<th" in row else cell).strip("*_ ") for cell in CELL.split(row)
    ]


def notes_in(text: str) -> Iterator[Decimal]:
    """Yield the scales that notes on a page name for its amounts."""
    for line in text.splitlines():
        if (
            len(line) > MAX_NOTE
            or "|" in line
            or "<t" in line
            or any(match[1] for match in OTHER_DIGITS.finditer(line))
        ):
            continue
        parts = [part.strip("*_ .:：") for part in GAPS.split(line.strip())]
        if IN_BRACKETS.search(line) or OF_AMOUNTS.search(line) or any(map(WHOLE.fullmatch, parts)):
            yield from scales_in(line)
