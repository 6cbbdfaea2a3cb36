"""CSV and other delimited text, read as one page with one table."""

import csv
from io import StringIO

from etl.core.delimited_text import has_open_quote, rows_of_lines
from etl.core.errors import FileCorrupt
from etl.core.formats import DECLARED_DELIMITER, delimiter_of
from etl.providers.local.office import markdown
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import QUOTES, OfficePage

SAMPLE = 65_536  # characters to detect the delimiter from


def page(text: str, budget: TextBudget) -> OfficePage:
    """Return the table as a page. Raises FileCorrupt and FileTooLarge."""
    csv.field_size_limit(budget.limit)
    delimiter = delimiter_of(text[:SAMPLE], is_named=True) or ","
    lines = list(StringIO(DECLARED_DELIMITER.sub("", text, count=1), newline=""))
    rows = []
    try:
        is_open = has_open_quote(lines, delimiter)
        for row in rows_of_lines(lines, delimiter) if is_open else csv.reader(lines, delimiter=delimiter):
            budget.count_cells(len(row))
            rows.append([budget.spend(cell) for cell in row])
    except csv.Error:
        raise FileCorrupt from None
    return OfficePage(text=markdown.table(rows), warnings=frozenset({QUOTES}) if is_open else frozenset())
