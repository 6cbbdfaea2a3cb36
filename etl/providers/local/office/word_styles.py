"""Styles and numbering of DOCX: which paragraphs are headings, and the numbers that Word displays before them."""

import re
from collections import defaultdict
from typing import Any, NamedTuple

from etl.providers.local.office.xml import attribute, child, children, number

HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
MAX_DEPTH = 20  # of styles that are based on others
BODY_LEVEL = 9
LEVEL = re.compile(r"%(\d)")
ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
         (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


class ListPlace(NamedTuple):
    """The numbering of a paragraph, "" for none, and its level from 0."""

    number_id: str
    level: int


NOT_LISTED = ListPlace("", 0)


class Styles:
    def __init__(self, root: Any) -> None:
        self.styles = {attribute(each, "styleId"): each for each in children(root, "style")}

    def chain(self, style: str) -> list[Any]:
        """Return a style and those that it is based on, which may be a cycle."""
        found: list[Any] = []
        while (element := self.styles.get(style)) is not None and len(found) < MAX_DEPTH:
            found.append(element)
            style = value_of(child(element, "basedOn"))
        return found

    def heading_level(self, style: str, properties: Any) -> int:
        """Return the level of a heading from 1, or 0 for other paragraphs."""
        chain = self.chain(style)
        for holder in [properties, *(child(each, "pPr") for each in chain)]:
            level = child(holder, "outlineLvl")
            if level is not None:
                outline = number(value_of(level), BODY_LEVEL)
                return outline + 1 if outline < BODY_LEVEL else 0
        names = [value_of(child(each, "name")) for each in chain] or [style]
        if "title" in (name.lower() for name in names):
            return 1
        return next((int(match[1]) for name in names if (match := HEADING.fullmatch(name))), 0)

    def numbering(self, style: str, properties: Any) -> ListPlace:
        for holder in [properties, *(child(each, "pPr") for each in self.chain(style))]:
            found = child(holder, "numPr")
            if found is not None and (identifier := value_of(child(found, "numId"))):
                level = number(value_of(child(found, "ilvl")))
                return ListPlace("" if identifier == "0" else identifier, min(max(level, 0), 8))
        return NOT_LISTED


class Numbering:
    """The counters of lists. Lists with the same definition count on."""

    def __init__(self, root: Any) -> None:
        self.definitions = {attribute(each, "abstractNumId"): each for each in children(root, "abstractNum")}
        self.numbers = {attribute(each, "numId"): each for each in children(root, "num")}
        self.counts: defaultdict[str, list[int | None]] = defaultdict(lambda: [None] * 9)
        self.started: set[str] = set()

    def label(self, place: ListPlace) -> tuple[str, int]:
        """Count a paragraph, and return its label, "-" for a bullet, "" outside of lists, and its depth."""
        definition_id = value_of(child(self.numbers.get(place.number_id), "abstractNumId"))
        levels = self.levels(definition_id)
        if place.level not in levels:
            return ("-" if place.number_id else "", place.level)
        counts = self.counts[definition_id]
        if place.number_id not in self.started:
            self.started.add(place.number_id)
            self.restart(place.number_id, counts)
        current = counts[place.level]
        counts[place.level] = self.start(levels, place.level) if current is None else current + 1
        counts[place.level + 1 :] = [None] * (8 - place.level)
        if form(levels[place.level]) == "bullet":
            return "-", place.level
        text = value_of(child(levels[place.level], "lvlText"))
        return LEVEL.sub(lambda match: self.counted(levels, counts, int(match[1]) - 1), text).strip(), place.level

    def levels(self, definition_id: str) -> dict[int, Any]:
        found = children(self.definitions.get(definition_id), "lvl")
        return {number(attribute(each, "ilvl")): each for each in found}

    def restart(self, number_id: str, counts: list[int | None]) -> None:
        for each in children(self.numbers[number_id], "lvlOverride"):
            if (start := child(each, "startOverride")) is not None:
                counts[min(max(number(attribute(each, "ilvl")), 0), 8)] = number(value_of(start), 1) - 1

    def start(self, levels: dict[int, Any], level: int) -> int:
        return number(value_of(child(levels.get(level), "start")), 1)

    def counted(self, levels: dict[int, Any], counts: list[int | None], level: int) -> str:
        if level not in levels:
            return ""
        count = counts[level]
        return written(self.start(levels, level) if count is None else count, form(levels[level]))


def value_of(element: Any) -> str:
    return "" if element is None else attribute(element, "val")


def form(level: Any) -> str:
    return value_of(child(level, "numFmt")) or "decimal"


def written(count: int, form: str) -> str:
    """Write a count in the form of a list, such as `lowerRoman`."""
    if form == "none" or count < 0:
        return ""
    text = {"lowerLetter": letters, "upperLetter": letters, "lowerRoman": roman, "upperRoman": roman}.get(form, str)(
        count
    )
    return text.upper() if form.startswith("upper") else text.zfill(2) if form == "decimalZero" else text


def letters(count: int) -> str:
    return chr(ord("a") + (count - 1) % 26) * min((count - 1) // 26 + 1, 40) if count > 0 else ""


def roman(count: int) -> str:
    if count > 3999:  # noqa: PLR2004 - the largest Roman numeral
        return str(count)
    text = ""
    for value, sign in ROMAN:
        text += sign * (count // value)
        count %= value
    return text
