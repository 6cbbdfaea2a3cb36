"""Limits of memory and time, against small documents that expand to huge ones (decompression bombs)."""

from etl.core.errors import TooManyCells, TooMuchText

# Maximum uncompressed bytes of one part that is parsed into memory, and of all parts together.
MAX_TREE, MAX_ARCHIVE = 48 * 1024**2, 256 * 1024**2
MAX_ENTRIES = 20_000
# Maximum columns that a cell may span, and maximum cells of all tables.
MAX_SPAN, MAX_CELLS = 1_000, 2_000_000


class TextBudget:
    """The number of bytes of text that a document may still produce.

    A small file may produce much text: XLSX refers to shared strings by number, and OpenDocument repeats rows and cells
    with an attribute.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit
        self.cells = 0

    def spend(self, text: str, times: int = 1) -> str:
        """Count a text and return it. `times`: the number of repetitions. Raises TooMuchText."""
        self.left -= (len(text.encode("utf-8", "replace")) + 1) * times
        if self.left < 0:
            raise TooMuchText.of(self.limit - self.left, self.limit)
        return text

    def count_cells(self, count: int) -> None:
        """Count cells of tables, including empty ones. Raises TooManyCells."""
        self.cells += count
        if self.cells > MAX_CELLS:
            raise TooManyCells.of(self.cells, MAX_CELLS)
