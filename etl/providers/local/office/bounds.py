"""Bounds of memory and time, for documents whose few bytes stand for many."""

from etl.core.errors import TooManyCells, TooMuchText

# Uncompressed bytes of one part, whose tree is in memory; of all parts that are read; and of parts that are streamed.
MAX_TREE, MAX_ARCHIVE = 48 * 1024**2, 256 * 1024**2
MAX_ENTRIES = 20_000
# Columns that one cell may span, and cells of all tables.
MAX_SPAN, MAX_CELLS = 1_000, 2_000_000


class TextBudget:
    """The number of bytes of text that a document may still produce.

    A spreadsheet repeats a text by its number, and OpenDocument repeats rows and cells by an attribute.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit
        self.cells = 0

    def spend(self, text: str, times: int = 1) -> str:
        """Return the text. Raises TooMuchText."""
        self.left -= (len(text.encode("utf-8", "replace")) + 1) * times
        if self.left < 0:
            raise TooMuchText.of(self.limit - self.left, self.limit)
        return text

    def count_cells(self, count: int) -> None:
        """Count cells of tables, also empty ones. Raises TooManyCells."""
        self.cells += count
        if self.cells > MAX_CELLS:
            raise TooManyCells.of(self.cells, MAX_CELLS)
