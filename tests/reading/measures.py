"""Measures of a reading against the ground truth. Each returns a score from 0 to 1 for each part that it compares."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.reading import trees
from tests.reading.corpus import Case
from tests.reading.grids import Cell, Grid, grids
from tests.reading.text import ends_of, fold, indel_similarity, plain, starts_of, words
from tests.reading.values import Haystack, as_number, numbers

Parts = dict[str, float]

FACTS = ("present", "absent", "order", "table")  # no equations, because none of the readers writes LaTeX
SIDES = ("up", "down", "left", "right")
ENOUGH_WORDS = 0.8  # minimum share of words of an invoice line's name that its row must have


def facts(case: Case, markdown: str) -> Parts:
    """Score facts by the rules of olmOCR-bench."""
    folded, tables = fold(markdown), grids(markdown)
    return {
        f"{fact['type']} {fact['id']}": float(holds(fact, folded, tables))
        for fact in case.facts()
        if fact["type"] in FACTS
    }


def holds(fact: Mapping[str, Any], folded: str, tables: list[Grid]) -> bool:
    edits = int(fact.get("max_diffs", 0))
    match fact["type"]:
        case "present" | "absent":
            return is_present(fact, folded, edits) is (fact["type"] == "present")
        case "order":
            before = starts_of(fold(fact["before"]), folded, max_edits=edits)
            after = starts_of(fold(fact["after"]), folded, max_edits=edits)
            return bool(before and after) and min(before) < max(after)
        case _:
            return any(is_related(fact, grid, cell) for grid in tables for cell in grid.cells)


def is_present(fact: Mapping[str, Any], folded: str, edits: int) -> bool:
    text, wanted = folded, fold(fact["text"])
    if not fact.get("case_sensitive", True):
        text, wanted = text.lower(), wanted.lower()
    first, last = fact.get("first_n"), fact.get("last_n")
    if first or last:
        text = (text[:first] if first else "") + (text[-last:] if last else "")
    return bool(ends_of(wanted, text, max_edits=edits))


def is_related(fact: Mapping[str, Any], grid: Grid, cell: Cell) -> bool:
    """Return whether a cell matches the cell of a fact, including its neighbors and headings."""
    edits = int(fact.get("max_diffs", 0))

    def fits(wanted: str, text: str) -> bool:
        wanted, text = fold(wanted), fold(text)
        return indel_similarity(wanted, text) >= max(0.5, 1 - edits / max(len(wanted), 1))

    if not fits(fact["cell"], cell.text):
        return False
    around = {side: grid.neighbors(cell, side) for side in SIDES if fact.get(side)}
    if fact.get("top_heading"):
        around["top_heading"] = grid.headings(cell, "up")
    if fact.get("left_heading"):
        around["left_heading"] = grid.headings(cell, "left")
    return all(any(fits(fact[side], each.text) for each in found) for side, found in around.items())


# ---- Values ---------------------------------------------------------------------------------------------------------
def fields(case: Case, markdown: str) -> Parts:
    """Score whether the text contains each value of the document."""
    haystack = Haystack(plain(markdown))
    return {name: float(haystack.has(value)) for name, value in (case.json("fields.json") or {}).items()}


def invoice_values(case: Case, markdown: str) -> Parts:
    haystack = Haystack(plain(markdown))
    values = (case.json("invoice.json") or {}).get("values", {})
    return {name: float(haystack.has(value)) for name, value in values.items()}


def invoice_rows(case: Case, markdown: str) -> Parts:
    """Score whether the name and the amount of each invoice line are in the same table row or line of text."""
    wanted = (case.json("invoice.json") or {}).get("rows", [])
    rows = [(set(words(row)), numbers(row)) for row in rows_of(markdown)] if wanted else []
    return {
        f"{index} {row['name']}": float(any(is_row(row, texts, amounts) for texts, amounts in rows))
        for index, row in enumerate(wanted, start=1)
    }


def is_row(row: Mapping[str, Any], texts: set[str], amounts: set[Any]) -> bool:
    name = set(words(row["name"]))
    return as_number(row["amount"]) in amounts and len(name & texts) >= ENOUGH_WORDS * len(name)


def rows_of(markdown: str) -> Iterator[str]:
    for grid in grids(markdown):
        for cells in grid.lines:
            yield " ".join(cell.text for cell in cells)
    for line in markdown.splitlines():
        if "|" not in line:
            yield plain(line)


# ---- Structure ------------------------------------------------------------------------------------------------------
def reading_order(case: Case, markdown: str) -> Parts:
    """Score the order of the text without markup by normalized indel distance (NID)."""
    truth = case.truth("truth.md") or case.truth("truth.txt")
    return {"nid": indel_similarity(plain(truth), plain(markdown))} if truth else {}


def headings(case: Case, markdown: str) -> Parts:
    """Score headings by MHS, if the ground truth has headings."""
    tree = trees.heading_tree(case.truth("truth.md") or "")
    if not any(node.kind == "heading" for node in tree.children):
        return {}
    own = trees.heading_tree(markdown)
    has_any = any(node.kind == "heading" for node in own.children)
    return {"mhs": trees.similarity(tree, own) if has_any else 0.0}


def tables(case: Case, markdown: str) -> Parts:
    """Score each table of the ground truth by TEDS against the most similar unused table of the reading."""
    wanted = grids(case.truth("tables.html") or case.truth("truth.md") or "")
    left = [(grid, set(words(grid.text()))) for grid in grids(markdown)] if wanted else []
    found: Parts = {}
    for index, grid in enumerate(wanted, start=1):
        own = set(words(grid.text()))
        best = max(left, key=lambda each: overlap(own, each[1]), default=None)
        if best is not None and overlap(own, best[1]):
            left.remove(best)
            found[f"table {index}"] = trees.similarity(trees.table_tree(grid), trees.table_tree(best[0]))
        else:
            found[f"table {index}"] = 0.0
    return found


def overlap(left: set[str], right: set[str]) -> float:
    return len(left & right) / max(1, len(left | right))


MEASURES: dict[str, Callable[[Case, str], Parts]] = {
    "facts": facts,
    "fields": fields,
    "values": invoice_values,
    "rows": invoice_rows,
    "order (NID)": reading_order,
    "tables (TEDS)": tables,
    "headings (MHS)": headings,
}
