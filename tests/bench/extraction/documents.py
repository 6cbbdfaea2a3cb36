"""Synthetic documents with their ground truth: values, and the page and line of each value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
ROWS = "rows"  # name of the list in every result


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A printed line and its page."""

    page: int
    line: str


@dataclass(slots=True, kw_only=True)
class Row:
    """An item of the list. `places`: the line of each value."""

    values: dict[str, Any]
    places: dict[str, Place] = field(default_factory=dict)

    @property
    def lines(self) -> list[Place]:
        return list({(place.page, place.line): place for place in self.places.values()}.values())

    @property
    def pages(self) -> set[int]:
        return {place.page for place in self.places.values()}


@dataclass(slots=True, kw_only=True)
class Document:
    """A document with its ground truth.

    `scalars`: values outside of the list, by JSON Pointer. `shown`: the places of each scalar, any of which may be
    cited.
    """

    family: str
    filename: str
    schema: Schema
    content: bytes = b""
    pages: int = 0
    text: str = ""  # the printed text
    rows: list[Row] = field(default_factory=list)
    scalars: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, list[Place]] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        return len(self.text.encode()) / 4


class Paper:
    """Builder of pages of lines, with a running head and a footer on each page."""

    def __init__(self, *, head: Sequence[str], foot: str, lines_per_page: int) -> None:
        self.head, self.foot, self.size = list(head), foot, lines_per_page
        self.pages: list[list[str]] = []
        self.new_page()

    def new_page(self) -> None:
        self.pages.append([])

    @property
    def number(self) -> int:
        return len(self.pages)

    @property
    def remaining_lines(self) -> int:
        return self.size - len(self.pages[-1])

    def add(self, line: str = "") -> Place:
        self.pages[-1].append(line)
        return Place(page=self.number, line=line)

    def text(self) -> str:
        """Return the pages, with form feeds between them."""
        total = len(self.pages)
        whole = [
            "\n".join(
                [*(self.head and [*self.head, ""]), *lines, *(self.foot and ["", self.foot.format(number, total)])]
            )
            for number, lines in enumerate(self.pages, 1)
        ]
        return "\f".join(whole)


def schema_of(rows: Mapping[str, Schema], scalars: Mapping[str, Schema], **options: Any) -> Schema:
    """Return the schema of a family. All members are required. `options`: schema keywords of the list."""
    item = {"type": "object", "properties": dict(rows), "required": list(rows), "additionalProperties": False}
    members = {**scalars, ROWS: {"type": "array", "items": item, **options}}
    schema = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return dict(json.loads(json.dumps(schema)))  # copy, so that schemas share no objects
