"""PPTX: the texts, tables, charts, and speaker notes of each slide."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from etl.providers.local.office import markdown
from etl.providers.local.office.archive import Archive
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import HIDDEN, IMAGE, OfficePage
from etl.providers.local.office.xml import attribute, child, children, local_name, number

TITLES = frozenset({"title", "ctrTitle"})
# Placeholders that show a number or date on every slide.
MARGINS = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})
LARGE_PICTURE = 0.25  # share of the slide
NOTES = "Speaker notes"
MAX_POINTS = 1_000


class Presentation:
    """The slides of a presentation, each a page."""

    def __init__(self, archive: Archive, budget: TextBudget) -> None:
        self.archive, self.budget = archive, budget
        main = archive.main_part()
        root = archive.tree(main)
        related = archive.related(main)
        identifiers = [relation(each) for each in children(child(root, "sldIdLst"), "sldId")]
        self.slides = [related[each][1] for each in identifiers if each in related]
        size = child(root, "sldSz")
        self.area = area(size) if size is not None else 0

    def __len__(self) -> int:
        return len(self.slides)

    def page(self, index: int) -> OfficePage:
        name = self.slides[index]
        root = self.archive.tree(name)
        reader = SlideReader(self, name)
        blocks = [block for shape in shapes(root) for block in reader.blocks(shape)]
        blocks.sort(key=lambda block: not block.startswith("# "))  # the title first, otherwise in the slide's order
        if attribute(root, "show", "1") in {"0", "false"}:
            blocks.insert(0, "(hidden slide)")
            reader.warnings.add(HIDDEN)
        for part in self.archive.parts_of_kind(name, "notesSlide"):
            notes = SlideReader(self, part).notes(self.archive.tree(part))
            blocks += [markdown.heading(3, NOTES), *notes] if notes else []
        return OfficePage(text=self.budget.spend(markdown.join(blocks)), warnings=frozenset(reader.warnings))


class SlideReader:
    """`name`: the slide's part, which its relationships belong to."""

    def __init__(self, presentation: Presentation, name: str) -> None:
        self.presentation, self.name = presentation, name
        self.archive = presentation.archive
        self.related = self.archive.related(name)
        self.warnings: set[str] = set()

    def blocks(self, shape: Any) -> Iterator[str]:
        kind = local_name(shape)
        if kind == "graphicFrame":
            yield from self.graphic(shape)
        elif kind == "pic":
            self.note_picture(shape)
        elif (body := child(shape, "txBody")) is not None:
            yield from text_blocks(body, placeholder(shape))

    def notes(self, root: Any) -> list[str]:
        bodies = [child(each, "txBody") for each in shapes(root) if (placeholder(each) or "body") not in MARGINS]
        return [block for body in bodies if body is not None for block in text_blocks(body, None)]

    def graphic(self, frame: Any) -> Iterator[str]:
        for each in frame.iter():
            name = local_name(each)
            if name == "tbl":
                yield markdown.table(table_rows(each))
            elif name == "chart" and (part := self.related.get(relation(each))):
                yield from chart(self.archive.tree(part[1])) if part[1] in self.archive else ()
            elif name == "relIds":
                yield from self.diagram(attribute(each, "dm"))

    def diagram(self, identifier: str) -> Iterator[str]:
        part = self.related.get(identifier, ("", ""))[1]
        if part in self.archive:
            for paragraph in self.archive.tree(part).iter():
                if local_name(paragraph) == "p" and (text := paragraph_text(paragraph).strip()):
                    yield f"- {markdown.one_line(text)}"

    def note_picture(self, shape: Any) -> None:
        extent = child(shape, "spPr", "xfrm", "ext")
        if extent is not None and area(extent) > LARGE_PICTURE * self.presentation.area:
            self.warnings.add(IMAGE)


def shapes(root: Any) -> Iterator[Any]:
    """Yield the shapes of a slide, also those in groups."""
    for each in root.iter():
        if local_name(each) in {"sp", "pic", "graphicFrame"}:
            yield each


def placeholder(shape: Any) -> str | None:
    """Return the kind of a placeholder, None for other shapes."""
    for properties in children(shape, "nvSpPr"):
        found = child(properties, "nvPr", "ph")
        if found is not None:
            return attribute(found, "type", "body")
    return None


def text_blocks(body: Any, kind: str | None) -> Iterator[str]:
    if kind in MARGINS:
        return
    paragraphs = [(each, text) for each in children(body, "p") if (text := paragraph_text(each)).strip()]
    if kind in TITLES:
        yield markdown.heading(1, " ".join(text for _, text in paragraphs))
        return
    for paragraph, text in paragraphs:
        properties = child(paragraph, "pPr")
        level = number(attribute(properties, "lvl")) if properties is not None else 0
        is_item = is_bulleted(properties, is_body=kind in {"body", "obj"} and len(paragraphs) > 1)
        yield f"{'  ' * min(level, 8)}- {markdown.one_line(text)}" if is_item else text.strip()


def is_bulleted(properties: Any, *, is_body: bool) -> bool:
    names = {local_name(each) for each in properties} if properties is not None else set()
    return "buNone" not in names and (is_body or bool(names & {"buChar", "buAutoNum"}))


def paragraph_text(paragraph: Any) -> str:
    marks = {"t": "", "br": "\n", "tab": " "}
    return "".join(marks[name] or each.text or "" for each in paragraph.iter() if (name := local_name(each)) in marks)


def table_rows(table: Any) -> Iterator[list[str]]:
    for row in children(table, "tr"):
        yield [
            " ".join(paragraph_text(each) for each in cell.iter() if local_name(each) == "p")
            for cell in children(row, "tc")
        ]


def chart(root: Any) -> Iterator[str]:
    """Yield the title of a chart, and the values of its series as a table."""
    title = next((each for each in root.iter() if local_name(each) == "title"), None)
    if title is not None:
        yield markdown.one_line(" ".join(each.text or "" for each in title.iter() if local_name(each) == "t"))
    series = [each for each in root.iter() if local_name(each) == "ser"]
    categories = next((points(found) for each in series if (found := child(each, "cat")) is not None), [])
    columns = [["", *categories]]
    columns += [[" ".join(points(child(each, "tx"))), *points(child(each, "val"))] for each in series]
    yield markdown.table(zip_longest(*columns, fillvalue=""))


def points(element: Any) -> list[str]:
    """Return the cached values of a series."""
    found = element.iter() if element is not None else ()
    return [each.text or "" for each in found if local_name(each) == "v"][:MAX_POINTS]


def area(element: Any) -> int:
    return number(attribute(element, "cx")) * number(attribute(element, "cy"))


def relation(element: Any) -> str:
    """Return the relationship's ID, which has a namespace."""
    return next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
