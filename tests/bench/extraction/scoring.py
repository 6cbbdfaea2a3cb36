"""Comparison of results with the ground truth: rows, single values, citations, and losses without a warning."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from tests.bench.extraction.documents import ROWS, Document, Place, Row

SURE = ("exact", "normalized")  # levels of citations that a wrong value must not have
# Codes of warnings that do not report losses.
NO_LOSS = (
    *("repaired", "merge_conflict", "sum_differs", "citation_unverified", "value_not_in_text"),
    *("usage_unknown", "usage_incomplete", "possible_prompt_injection", "number_unrepresentable"),
)
PAGES = re.compile(r"pages? ((?:\d+(?: to |, and |, | and |-|–)?)+)")
MAX_RANGE = 15  # pages
UNCOUNTED = 10**6
WINDOW = 60  # rows to search for the counterpart of a changed row
MIN_EQUAL = 2  # minimum equal members of a counterpart
MARKUP = re.compile(r"<[^>\n]*>|[|*_#\\]|(?<=\s)-{3,}(?=\s)")


@dataclass(slots=True, kw_only=True)
class Score:
    """The score of a result.

    - `wrong`: different values whose citation has a level in SURE.
    - `lost`: missing values and rows that no warning names. `named`: number of those that a warning names.
    - `astray`: values that are not cited at their line.
    """

    status: str
    error: str = ""
    detail: str = ""
    rows: int = 0
    right: int = 0
    extra: int = 0
    scalars: int = 0
    scalars_right: int = 0
    differing: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    named: int = 0
    astray: list[str] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def score(document: Document, task: dict[str, Any]) -> Score:
    result = Score(
        status=task["status"],
        error=(task["error"] or {}).get("code", ""),
        detail=(task["error"] or {}).get("detail", ""),
    )
    result.rows, result.scalars = len(document.rows), len(document.scalars)
    if task["status"] != "completed":
        return result
    return Scoring(document, task, result).run()


class Scoring:
    def __init__(self, document: Document, task: dict[str, Any], result: Score) -> None:
        self.document, self.result = document, result
        self.data = task["result"]["data"]
        self.warnings = task["metadata"]["warnings"]
        # Computed values, and values that were not found, have no quote.
        self.citations = {
            each["pointer"]: each | {"quote": each["quote"] or ""} for each in task["result"]["citations"]
        }
        self.budgets = [named_in(warning["detail"]) for warning in self.warnings]
        result.warnings = Counter(warning["code"] for warning in self.warnings)
        result.levels = Counter(each["match"] for each in task["result"]["citations"])
        self.by_page: dict[int, list[Row]] = {}
        for row in document.rows:
            for page in row.pages:
                self.by_page.setdefault(page, []).append(row)

    def run(self) -> Score:
        self.scalars()
        self.rows(self.data.get(ROWS) or [])
        return self.result

    # ---- Single values ----------------------------------------------------------------------------------------------
    def scalars(self) -> None:
        for pointer, truth in self.document.scalars.items():
            value = at(self.data, pointer)
            if value is None:
                self.loss(pointer, pointer)
            elif is_equal(value, truth):
                self.result.scalars_right += 1
                self.cited(pointer, self.document.shown[pointer])
            else:
                self.differs(pointer, value, truth)

    # ---- Rows -------------------------------------------------------------------------------------------------------
    def rows(self, given: list[Any]) -> None:
        found = set()
        for row, index in aligned(self.document.rows, given):
            if row is None:
                self.result.extra += 1
                continue
            found.add(id(row))
            if all(is_equal(given[index].get(name), value) for name, value in row.values.items()):
                self.result.right += 1
            self.members(row, given[index], f"/{ROWS}/{index}")
        for number, row in enumerate(self.document.rows):
            if id(row) not in found:
                self.loss(f"/{ROWS}", f"row {number + 1} on page {min(row.pages)}", pages=row.pages)

    def members(self, row: Row, given: dict[str, Any], pointer: str) -> None:
        for name, truth in row.values.items():
            value, member_pointer = given.get(name), f"{pointer}/{name}"
            if value is None and truth is not None:
                self.loss(member_pointer, member_pointer, pages=row.pages)
            elif not is_equal(value, truth):
                self.differs(member_pointer, value, truth)
            elif value is not None and name in row.places:
                # Members of groups have no place, because any row may be cited.
                self.cited_in_row(member_pointer, row, row.places[name])

    # ---- Verdicts ---------------------------------------------------------------------------------------------------
    def differs(self, pointer: str, value: Any, truth: Any) -> None:
        self.result.differing += 1
        citation = self.citations.get(pointer)
        if citation and citation["match"] in SURE:
            self.result.wrong.append(
                f"{pointer} is {value!r} for {truth!r}: {citation['match']} by {citation['quote'][:80]!r}"
            )

    def loss(self, pointer: str, what: str, *, pages: set[int] | None = None) -> None:
        for number, warning in enumerate(self.warnings):
            if self.budgets[number] and names(warning, pointer, pages or set()):
                self.budgets[number] -= 1
                self.result.named += 1
                return
        self.result.lost.append(what)

    def cited(self, pointer: str, places: list[Place]) -> bool:
        citation = self.citations.get(pointer)
        is_cited_here = citation is not None and any(
            citation["page"] == place.page and overlaps(citation["quote"], place.line) for place in places
        )
        if not is_cited_here:
            shown = f"page {citation['page']}: {citation['quote'][:80]!r}" if citation else "nothing"
            self.result.astray.append(f"{pointer} on page {places[0].page} is cited by {shown}")
        return is_cited_here

    def cited_in_row(self, pointer: str, row: Row, place: Place) -> None:
        """Check that a citation is at a line of the row, and does not match another row of the page better."""
        if not self.cited(pointer, [place, *row.lines]):
            return
        quote = self.citations[pointer]["quote"]
        for other in self.by_page[self.citations[pointer]["page"]]:
            if plain(place.line) == plain(other.places.get(pointer.rpartition("/")[2], place).line):
                continue
            if any(holds(line.line, quote) for line in other.lines) and not holds(quote, place.line):
                self.result.astray.append(
                    f"{pointer} on page {place.page} is cited by {quote[:80]!r}, as in another row"
                )
                return


def names(warning: dict[str, Any], pointer: str, pages: set[int]) -> bool:
    """Return whether a warning names a loss by its pointer or page."""
    if warning["code"] in NO_LOSS:
        return False
    detail = warning["detail"]
    if pointer != f"/{ROWS}" and re.search(rf"{re.escape(pointer)}(?![\w/])", detail):
        return True
    return bool(pages & {*pages_in(detail), *([warning["page"]] if "page" in warning else [])})


def named_in(detail: str) -> int:
    """Return the number of losses that a warning covers: the number of items in its text, or UNCOUNTED without one."""
    counted = re.match(r"(\d+) items?\b", detail)
    return int(counted[1]) if counted else UNCOUNTED


def pages_in(detail: str) -> Iterator[int]:
    """Yield the pages that a text names. Long ranges are ignored."""
    for match in PAGES.finditer(detail):
        for part in re.split(r", and |, | and ", match[1]):
            ends = [int(each) for each in re.findall(r"\d+", part)]
            if ends and ends[-1] - ends[0] < MAX_RANGE:
                yield from range(ends[0], ends[-1] + 1)


# ---- Comparison -----------------------------------------------------------------------------------------------------
def aligned(truth: list[Row], given: list[Any]) -> Iterator[tuple[Row | None, int]]:
    """Yield, for each given row, the matching row of the ground truth or None, and the index of the given row."""
    ours, theirs = [signature(row.values) for row in truth], [signature(each) for each in given]
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(truth[i1:i2], range(j1, j2), strict=True)
            continue
        position = i1
        for index in range(j1, j2):
            nearby = range(position, min(i2, position + WINDOW))
            best = max(nearby, key=lambda at: similarity(truth[at], given[index]), default=None)
            if best is None or similarity(truth[best], given[index]) < MIN_EQUAL:
                yield None, index
            else:
                position = best + 1
                yield truth[best], index


def similarity(row: Row, given: Any) -> int:
    return sum(value is not None and is_equal(given.get(name), value) for name, value in row.values.items())


def signature(values: dict[str, Any]) -> str:
    """Return a text that is the same for equal rows. 12 and 12.0 are equal."""
    plain_values = {name: float(value) if type(value) is int else value for name, value in values.items()}
    return json.dumps(plain_values, sort_keys=True)


def is_equal(value: Any, truth: Any) -> bool:
    if isinstance(truth, bool) or isinstance(value, bool):
        return value is truth
    return bool(value == truth)


def at(data: Any, pointer: str) -> Any:
    for name in pointer.strip("/").split("/"):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def plain(text: str) -> str:
    """Return the normalized words of a line, without table markup."""
    return " ".join(MARKUP.sub(" ", text).split()).casefold()


def holds(text: str, part: str) -> bool:
    return f" {plain(part)} " in f" {plain(text)} "


def overlaps(quote: str, line: str) -> bool:
    """Return whether a quote is part of a line, or contains the line."""
    return plain(quote) != "" and (plain(quote) in plain(line) or holds(quote, line))
