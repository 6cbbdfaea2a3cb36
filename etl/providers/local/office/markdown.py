"""Markdown of headings, lists, and tables."""

from collections.abc import Iterable, Sequence


def heading(level: int, text: str) -> str:
    return f"{'#' * max(1, min(level, 6))} {one_line(text)}" if text.strip() else ""


def one_line(text: str) -> str:
    return " ".join(text.split())


def strike_through(text: str) -> str:
    """Mark a text as struck through. Outer spaces stay outside of the marks, as Markdown requires."""
    core = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{before}~~{one_line(core)}~~{after}" if core else text


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table, without empty rows and columns. A single column becomes paragraphs."""
    lines = [[one_line(cell) for cell in row] for row in rows]
    lines = [line for line in lines if any(line)]
    used = sorted({index for line in lines for index, cell in enumerate(line) if cell})
    if len(used) <= 1:
        return "\n\n".join(cell for line in lines for cell in line if cell)
    return full_table([[line[at] if at < len(line) else "" for at in used] for line in lines])


def full_table(cells: list[list[str]]) -> str:
    """Return a table with all rows and columns. The first row is its head."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def join(blocks: Iterable[str]) -> str:
    """Join blocks with blank lines. Consecutive list items stay in one list."""
    text, was_item = "", False
    for block in filter(None, blocks):
        is_item = block.lstrip().startswith(("- ", "* ")) or block.lstrip()[:6].partition(". ")[0].isdecimal()
        text += ("" if not text else "\n" if was_item and is_item else "\n\n") + block
        was_item = is_item
    return text
