"""Reader of values from a text, which uses only the text and the schema of a request.

The columns of a table are identified by its head. Without a head, the reader assumes the order of the schema's members,
like a model, and confuses numbers. Lines of an item whose beginning is not in the text become a separate item.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.bench.extraction import languages
from tests.bench.extraction.documents import ROWS, Schema

MARKER = re.compile(r"<!-- page: (\d+) -->|\[page (\d+)\]")
ONLY_READ = re.compile(r"^\[.*for reading only.*\]$", re.IGNORECASE)
HEAD_FOLLOWS = re.compile(r"^\[a table goes on.*for reading only.*\]$", re.IGNORECASE)
GOES_ON = re.compile(r"^\[.*(?:goes on|begins here).*\]$", re.IGNORECASE)
CELLS_OF_HTML = re.compile(r"<t[dh][^>]*>(.*?)</t[dh]>", re.IGNORECASE)
LABELED = re.compile(r"^([^:|]{2,40}?)\s*:\s+(.+)$")
ITEM = re.compile(r"^(?:(?:Article|Item|Artikel) (?P<name>\S+)|(?P<clause>\d+\.\d+)) {2}(?P<rest>\S.*)$")
MAX_QUOTE = 200
GAP = re.compile(r" {2,}")
UNDERLINE = re.compile(r"^[|\s:-]+$")  # the line below the head of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A value, with its page and quote."""

    value: Any
    page: int
    quote: str


Item = dict[str, Found]


def split_cells(line: str) -> list[str]:
    """Return the cells of a table row, or an empty list for other lines."""
    if "<td" in line:
        return CELLS_OF_HTML.findall(line)
    if line.lstrip().startswith("|"):
        return [] if UNDERLINE.match(line) else [cell.strip() for cell in line.strip().strip("|").split("|")]
    if line.startswith(" ") or ITEM.match(line) or LABELED.match(line):
        return []
    cells = GAP.split(line.strip())
    return cells if len(cells) > 1 else []


@dataclass(slots=True, kw_only=True)
class Reading:
    """The values of a text. `scalars`: values outside of the list, by JSON Pointer."""

    rows: list[Item] = field(default_factory=list)
    scalars: dict[str, Found] = field(default_factory=dict)


def read(text: str, schema: Schema) -> Reading:
    return Reader(text, schema).read()


def members_of(schema: Schema) -> dict[str, Schema]:
    """Return the members of an item."""
    rows = schema.get("properties", {}).get(ROWS, {})
    return dict(rows.get("items", {}).get("properties", {}))


def scalars_of(schema: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield the pointers and schemas of all values outside the list."""
    for name, inside in schema.get("properties", {}).items():
        if "properties" in inside:
            yield from scalars_of(inside, f"{above}/{name}")
        elif name != ROWS:
            yield f"{above}/{name}", inside


class Reader:
    def __init__(self, text: str, schema: Schema) -> None:
        self.text, self.decimal = text, languages.decimal_sign(text)
        self.members, self.scalars = members_of(schema), dict(scalars_of(schema))
        self.found = Reading()
        self.page = 1
        self.head: list[str] | None = None
        self.item: Item | None = None  # current item of several lines
        self.row: Item | None = None  # current table row, which may have a second line
        self.quoted: list[str] = []  # lines of the current item so far
        self.is_context = False  # in context lines: items that begin here are not returned
        self.is_head_next = False
        self.groups: Item = {}  # values of the current groups, which apply to the rows below them

    def read(self) -> Reading:
        for line in self.text.splitlines():
            if marker := MARKER.search(line):
                self.page = int(marker[1] or marker[2])
                self.quoted = []
            elif HEAD_FOLLOWS.match(line):
                self.is_head_next, self.groups = True, {}
            elif ONLY_READ.match(line):
                self.is_context = True
            elif GOES_ON.match(line):
                self.is_context = False
            elif line.strip():
                self.line(line)
        return self.found

    def line(self, line: str) -> None:
        if cells := split_cells(line):
            self.cells(cells, quote=" ".join(cells) if "<td" in line else line.strip().strip("|").strip())
        elif UNDERLINE.match(line):
            return
        elif match := ITEM.match(line):
            self.begin(match, line)
        elif line.startswith(" ") and ":" in line:
            self.continue_item(line)
        elif match := LABELED.match(line):
            self.labeled(match, line)

    # ---- Tables -----------------------------------------------------------------------------------------------------
    def cells(self, cells: list[str], *, quote: str) -> None:
        names = [languages.MEMBERS.get(cell.casefold()) for cell in cells]
        if all(names):
            self.head, self.is_head_next = [str(name) for name in names], False
            return
        if self.is_head_next or cells[0].casefold() in languages.CARRIED:
            self.is_head_next = False
            return
        if self.group(cells):
            return
        if not cells[0] and self.row is not None and sum(map(bool, cells)) == 1:
            self.continue_cell(self.row, cells, quote)
            return
        is_known = self.head and len(self.head) == len(cells)
        order = self.head if self.head and is_known else list(self.members)  # a guess without a head
        item = {
            name: self.value(name, cell, self.members[name], quote)
            for name, cell in zip(order, cells, strict=False)
            if name in self.members
        }
        self.row = self.add(self.groups | {name: value for name, value in item.items() if value})

    def group(self, cells: list[str]) -> bool:
        """Return whether a row is a group. If so, record its value, and reset the values of inner groups."""
        label, _, text = cells[0].partition(": ")
        name = languages.MEMBERS.get(label.casefold(), "")
        if any(cells[1:]) or name not in self.members:
            return False
        names = list(self.groups)
        kept = names[: names.index(name)] if name in names else names
        self.groups = {each: self.groups[each] for each in kept} | {name: Found(value=text, page=self.page, quote="")}
        return True

    def add(self, item: Item) -> Item:
        """Add an item to the result, unless it begins in context lines. Return it."""
        if not self.is_context:
            self.found.rows.append(item)
        return item

    def continue_cell(self, row: Item, cells: list[str], quote: str) -> None:
        """Add the second line of a cell to the row above it."""
        column = next(index for index, cell in enumerate(cells) if cell)
        name = self.head[column] if self.head and column < len(self.head) else list(self.members)[column]
        above = row.get(name)
        if above and isinstance(above.value, str):
            joined = f"{above.quote}\n{quote}" if above.page == self.page else above.quote
            row[name] = Found(value=f"{above.value} {cells[column]}", page=above.page, quote=joined)

    # ---- Items of several lines -------------------------------------------------------------------------------------
    def begin(self, match: re.Match[str], line: str) -> None:
        first, second, *_ = self.members
        self.item, self.quoted = {}, [line]
        for name, value in ((first, match["name"] or match["clause"]), (second, match["rest"])):
            self.item[name] = Found(value=value, page=self.page, quote=line.strip())
        self.add(self.item)

    def continue_item(self, line: str) -> None:
        if self.item is None:
            self.item = self.add({})
        self.quoted.append(line)
        for part in GAP.split(line.strip()):
            label, _, text = part.partition(":")
            name = languages.MEMBERS.get(label.strip().casefold(), "")
            if name in self.members:
                whole = "\n".join(self.quoted).strip()
                quote = whole if len(whole) <= MAX_QUOTE else line.strip()
                if value := self.value(name, text.strip(), self.members[name], quote):
                    self.item[name] = value

    # ---- Single values ----------------------------------------------------------------------------------------------
    def labeled(self, match: re.Match[str], line: str) -> None:
        self.item = self.row = None  # the next lines do not belong to an item
        if self.is_context:
            return
        name = languages.MEMBERS.get(match[1].strip().casefold(), "")
        pointer = f"/{name}"
        if pointer not in self.scalars:
            return
        value = self.value(name, match[2].strip(), self.scalars[pointer], line.strip())
        if value:
            self.found.scalars[pointer] = value  # the last value counts, according to the schemas

    def value(self, name: str, text: str, schema: Schema, quote: str) -> Found | None:
        kinds = schema.get("type", "string")
        result = self.convert(text, kinds if isinstance(kinds, list) else [kinds], schema)
        return None if result is None else Found(value=result, page=self.page, quote=quote[:MAX_QUOTE])

    def convert(self, text: str, kinds: list[str], schema: Schema) -> Any:
        if not text:
            return None
        if "boolean" in kinds:
            return languages.BOOLEANS.get(text.casefold())
        if {"number", "integer"} & set(kinds):
            return languages.read_number(text, self.decimal)
        return languages.read_date(text) if schema.get("format") == "date" else text
