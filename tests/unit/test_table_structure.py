"""Detection of rows and columns of tables, with ruling lines, shaded heads, titles, notes, leaders, and prose."""

from random import Random
from time import process_time

import numpy as np
import pytest

from etl.providers.local.boxes import Box, group_rows
from etl.providers.local.layout import PageGeometry, analyze
from etl.providers.local.layout_model import Region
from etl.providers.local.rulings import Ruling, Rulings, find_rulings
from etl.providers.local.tables.alignment import aligned_tables
from tests.unit.test_layout import row, words

FIGURES = [("Kingfisher", "29"), ("Osprey", "20"), ("Mink", "35")]
FIGURE_ROWS = [f"| {name} | {value} |" for name, value in FIGURES]


def horizontal(*ys: float, x0: float = 40, x1: float = 300) -> list[Ruling]:
    return [Ruling(x0=x0, y0=y, x1=x1, y1=y) for y in ys]


def vertical(*xs: float, y0: float = 40, y1: float = 120) -> list[Ruling]:
    return [Ruling(x0=x, y0=y0, x1=x, y1=y1) for x in xs]


def figures(y: float, step: float = 20, *, x: float = 50, right: float = 200) -> list[Box]:
    return [
        word for index, (name, value) in enumerate(FIGURES)
        for word in row(y + step * index, (x, name), (right, value))
    ]  # fmt: skip


def read(boxes: list[Box], rulings: Rulings | None = None, regions: list[Region] | None = None) -> list[list[str]]:
    """Return the lines of each block."""
    geometry = PageGeometry(width=600, height=800, rulings=rulings or Rulings(), regions=regions or [])
    return [block.text.splitlines() for block in analyze(boxes, geometry)]


def table_region(x0: float, y0: float, x1: float, y1: float) -> Region:
    return Region(kind="table", score=0.97, x0=x0, y0=y0, x1=x1, y1=y1)


def test_long_pages_without_tables_are_searched_in_time() -> None:
    prose = "lorem ipsum dolor sit amet consectetur"
    rows = [
        [Box(text=prose, x0=x, y0=y, x1=x + 200, y1=y + 9, size=9.0) for x in ((0.0, 210.0) if y % 20 == 0 else (0.0,))]
        for y in (10.0 * index for index in range(600))
    ]
    before = process_time()
    assert aligned_tables(rows) == []
    assert process_time() - before < 6  # typically 1; in cubic time 14


def test_many_separate_lines_are_grouped_in_time() -> None:
    dashes = [
        Ruling(x0=x, y0=y, x1=x + 26, y1=y + 0.5) for y in (4.0 * row for row in range(200)) for x in range(0, 600, 30)
    ]
    before = process_time()
    assert list(Rulings(horizontal=dashes).grids()) == []
    assert process_time() - before < 2  # typically 0.2; in quadratic time 8


def test_titles_and_notes_between_the_lines_of_a_table_are_not_rows() -> None:
    boxes = [
        *words("Exhibit 19", 50, 40),
        *words("The share of the range of each of the species", 50, 52),
        *row(80, (50, "Species"), (200, "Percent")),
        *figures(100),
        *words("Note: the range is that of the year before last", 50, 165),
        *words("with islands.", 50, 177),
    ]
    rulings = Rulings(horizontal=horizontal(36, 74, 96, 116, 136, 158, 194))
    [title, table, note] = read(boxes, rulings, [table_region(40, 36, 300, 194)])
    assert "The share of the range of each of the species" in " ".join(title)
    assert [table[0], *table[2:]] == ["| Species | Percent |", *FIGURE_ROWS]
    assert " ".join(note) == "Note: the range is that of the year before last with islands."


def test_a_source_note_below_the_rows_is_not_a_row() -> None:
    boxes = [*row(80, (50, "Species"), (200, "Percent")), *figures(100), *words("Source: survey", 50, 160)]
    [table, source] = read(boxes, regions=[table_region(40, 76, 300, 175)])
    assert table[-1] == "| Mink | 35 |"
    assert source == ["Source: survey"]


def test_a_shaded_head_is_a_separate_row() -> None:
    """Only the body rows are separated by lines. The head has light text on a dark background."""
    picture = np.full((300, 400, 3), 255, dtype=np.uint8)
    picture[74:96, 40:300] = (120, 80, 40)
    picture[80:90, 60:90] = 255
    for y in (116, 136, 156):
        picture[y, 40:300] = 0
    boxes = [*row(80, (50, "Species"), (200, "Percent")), *figures(100)]
    rulings = find_rulings(picture, 1.0)
    assert [round(line.y0) for line in rulings.edges] == [74, 96]
    [table] = read(boxes, rulings, [table_region(40, 74, 300, 156)])
    assert [table[0], *table[2:]] == ["| Species | Percent |", *FIGURE_ROWS]


def test_leaders_and_lines_of_dashes_are_not_text_of_cells() -> None:
    boxes = [
        *row(50, (50, "Species"), (200, "Percent")),
        *words("-" * 33, 50, 62),
        *row(74, (50, "Kingfisher ......"), (200, "29")),
        *row(86, (50, "Osprey............"), (200, "20")),
        *row(98, (50, "Mink ........"), (200, "35")),
    ]
    [table] = read(boxes)
    assert table == ["| Species | Percent |", "| --- | --- |", *FIGURE_ROWS]


def test_wide_spaces_in_a_framed_column_do_not_divide_it() -> None:
    """Gaps between words of justified heads may be as wide as gaps between columns."""
    boxes = [
        *row(50, (105, "Number"), (165, "of"), (205, "Share"), (265, "of")),
        *row(62, (105, "banks"), (165, "in"), (205, "banks"), (265, "in")),
        *row(84, (50, "None"), (105, "52"), (205, "60%")),
        *row(104, (50, "One"), (105, "28"), (205, "40%")),
        *row(124, (50, "Two"), (105, "11"), (205, "10%")),
        *row(144, (50, "Three"), (105, "8"), (205, "8%")),
        *row(164, (50, "Four"), (105, "1"), (205, "1%")),
    ]
    rulings = Rulings(horizontal(44, 80, 100, 120, 140, 160, 180), vertical(40, 100, 200, 300, y0=44, y1=180))
    [table] = read(boxes, rulings)
    assert table[0] == "|  | Number of banks in | Share of banks in |"
    assert table[2] == "| None | 52 | 60% |"


def test_columns_in_a_frame_need_no_line_between_them() -> None:
    boxes = [*row(80, (50, "Species"), (120, "Kind"), (200, "Percent"))]
    for index, (name, value) in enumerate(FIGURES):
        boxes += row(100 + 20 * index, (50, name), (120, "wild"), (200, value))
    rulings = Rulings(horizontal(76, 96, 116, 136, 156), vertical(40, 190, 300, y0=76, y1=156))
    [table] = read(boxes, rulings)
    assert table[2] == "| Kingfisher | wild | 29 |"


@pytest.mark.parametrize("around", [[], [10, 24, 38, 160, 174, 188]])
def test_prose_beside_a_table_is_not_part_of_it(around: list[int]) -> None:
    boxes = [*row(80, (350, "Species"), (500, "Percent")), *figures(94, 14, x=350, right=500)]
    ys = sorted([80, 94, 108, 122, *around])
    boxes += [word for y in ys for word in words("and the birds of the lakes eat much more fish", 50, y)]
    text = Region(kind="text", score=0.98, x0=45, y0=ys[0] - 4, x1=320, y1=ys[-1] + 14)
    blocks = read(boxes, regions=[table_region(345, 76, 550, 136), text])
    assert blocks[-1] == ["| Species | Percent |", "| --- | --- |", *FIGURE_ROWS]


def test_a_bold_heading_of_rows_is_not_a_part_of_the_next_row() -> None:
    boxes = [
        *row(50, (50, "Schools by kind and size"), (250, "2010"), (350, "2011")),
        *words("Public elementary schools", 50, 64, bold=True),
        *row(78, (50, "Kindergarten-enrollment"), (250, "0.3"), (350, "0.6")),
        *row(92, (50, "Other"), (250, "0.4"), (350, "0.7")),
    ]
    [table] = read(boxes)
    assert table[2:4] == ["| Public elementary schools |  |  |", "| Kindergarten-enrollment | 0.3 | 0.6 |"]


def test_lines_that_continue_a_text_belong_to_the_row_above() -> None:
    boxes = [
        *row(50, (50, "Income per person in"), (250, "Changes range between two")),
        *row(62, (50, "constant prices"), (250, "and four percent")),
        *row(74, (50, "Inflation"), (250, "Remains between one")),
        *row(86, (50, "Unemployment"), (250, "Remains below ten")),
    ]
    [table] = read(boxes, regions=[table_region(45, 46, 400, 100)])
    assert table[0] == "| Income per person in constant prices | Changes range between two and four percent |"


def rows_of(*rows: tuple[str, ...], y: float, x: tuple[float, ...], step: float = 20) -> list[Box]:
    return [
        word for index, cells in enumerate(rows)
        for word in row(y + step * index, *((at, cell) for at, cell in zip(x, cells, strict=True) if cell))
    ]  # fmt: skip


AMOUNTS = [("Cadmium", "100", "12", "7"), ("Copper", "50", "-", "3"), ("Lead", "200", "20", "20")]


def test_a_head_of_several_lines_is_not_part_of_the_first_row() -> None:
    columns = (50.0, 200.0, 280.0, 360.0)
    boxes = [
        *rows_of(
            ("", "to air", "to water", "to land"), ("", "kg/year", "kg/year", "kg/year"), y=50, x=columns, step=12
        ),
        *rows_of(*AMOUNTS, y=76, x=columns),
    ]
    [table] = read(boxes)
    assert table[0] == "|  | to air kg/year | to water kg/year | to land kg/year |"
    assert table[2] == "| Cadmium | 100 | 12 | 7 |"


def test_a_text_that_spans_several_columns_of_a_head_is_a_separate_row() -> None:
    columns = (50.0, 200.0, 280.0, 360.0)
    boxes = [
        *words("The release limits of", 230, 40),
        *rows_of(("Metal", "air", "water", "land"), y=54, x=columns),
        *rows_of(*AMOUNTS, y=76, x=columns),
    ]
    [table] = read(boxes, Rulings(horizontal=horizontal(36, 72, 92, 112, 132, x1=400)))
    assert table[0] == "|  | The release limits of | The release limits of |  |"
    assert table[2:4] == ["| Metal | air | water | land |", "| Cadmium | 100 | 12 | 7 |"]


def test_lines_of_texts_above_a_ruling_line_are_one_head() -> None:
    columns = (50.0, 200.0, 300.0)
    boxes = [
        *rows_of(("", "Some year", "No year"), ("Group", "in school", "in school"), y=50, x=columns, step=12),
        *rows_of(("All", "85.1", "14.9"), ("Boys", "82.7", "17.3"), y=82, x=columns),
    ]
    [table] = read(boxes, Rulings(horizontal=horizontal(46, 78, 120, x1=400)))
    assert table[0] == "| Group | Some year in school | No year in school |"
    assert len(table) == 4


def test_a_heading_with_a_colon_is_not_a_part_of_the_next_row() -> None:
    columns = (50.0, 220.0, 300.0)
    boxes = [
        *words("Of those who were chosen:", 50, 50),
        *rows_of(("Three-year-old boys", "85.1", "14.9"), ("Boys", "82.7", "17.3"), y=62, x=columns, step=12),
    ]
    [table] = read(boxes, regions=[table_region(45, 46, 400, 100)])
    assert table[0] == "| Of those who were chosen: |  |  |"


def test_spaces_in_monospaced_text_are_not_gaps_between_columns() -> None:
    """In monospaced text, a space is as wide as a letter."""
    names = [(f"{age} years", f"{age}{age}") for age in range(40, 48)]
    boxes = []
    for index, (name, count) in enumerate(names):
        x, y = 50.0, 50 + 14.0 * index
        for text in (*name.split(), count):
            x = 250 if text == count else x
            boxes.append(Box(text=text, x0=x, y0=y, x1=x + 7.2 * len(text), y1=y + 14, size=12))
            x += 7.2 * (len(text) + 1)
    [table] = read(boxes, regions=[table_region(45, 46, 300, 165)])
    assert [table[0], *table[2:]] == [f"| {name} | {count} |" for name, count in names]


def test_whole_numbers_beside_each_other_are_two_cells() -> None:
    boxes = []
    for index in range(5):
        boxes += row(50 + 14 * index, (50, f"{20 + index} years"), (150, "1,022,490"), (199, "255,744"))
    [table] = read(boxes)
    assert table[2] == "| 21 years | 1,022,490 | 255,744 |"


def test_a_number_with_spaces_is_one_cell() -> None:
    boxes = []
    for index in range(5):
        boxes += row(50 + 14 * index, (50, f"{20 + index} years"), (150, "12 345 678"), (250, "1 255"))
    [table] = read(boxes)
    assert table[2] == "| 21 years | 12 345 678 | 1 255 |"


def test_the_gap_between_columns_is_the_gap_between_their_wider_heads() -> None:
    countries = [(name, "100", "6") for name in ("Austria", "Belgium", "Bulgaria", "Croatia")]
    boxes = [
        *row(50, (50, "Country"), (130, "Share of all the population"), (275, "Rate")),
        *words("of the year", 150, 62),
        *rows_of(*countries, y=76, x=(50.0, 165.0, 285.0)),
    ]
    [table] = read(boxes)
    assert table[0] == "| Country | Share of all the population of the year | Rate |"


def test_edges_of_shaded_lines_do_not_divide_the_cells_of_a_row() -> None:
    columns = (50.0, 120.0, 280.0)
    area = [("Area", "Emissions of less than", "Dry cleaners"), ("", "ten tons a year", "and shops")]
    road = [("Road", "Motor vehicles that are", "Cars, trucks"), ("", "operated on roads", "and others")]
    boxes = [
        *rows_of(("Source", "Definition", "Examples"), y=30, x=columns),
        *rows_of(*area, y=50, x=columns, step=12),
        *rows_of(*road, y=84, x=columns, step=12),
    ]
    rulings = Rulings(horizontal=horizontal(46, 79, x1=400), edges=horizontal(48, 62, 75, 80, 95, 108, x1=400))
    [table] = read(boxes, rulings, [table_region(45, 28, 400, 112)])
    assert table[2] == "| Area | Emissions of less than ten tons a year | Dry cleaners and shops |"
    assert table[3] == "| Road | Motor vehicles that are operated on roads | Cars, trucks and others |"


def test_a_table_does_not_include_the_rows_of_the_table_above_it() -> None:
    """The gap between them is too large for rows, but not for column heads."""
    upper = [box for y in (50, 66, 82, 98) for box in row(y, (50, "Mink"), (150, "35"), (250, "7"))]
    lower = [box for y in range(119, 231, 16) for box in row(y, (50, "Osprey of the northern sea"), (250, "20"))]

    tables = aligned_tables(group_rows([*upper, *lower]))

    assert [len(table.rows) for table in tables] == [4, 7]


@pytest.mark.parametrize(
    "rulings",
    [
        Rulings(),
        Rulings(
            vertical=vertical(50, 56.5, 140, 200, y0=92, y1=162),
            horizontal=horizontal(*range(92, 163, 14), x0=50, x1=200),
        ),
    ],
)
def test_letters_narrower_than_half_of_the_type_size_are_in_their_column(rulings: Rulings) -> None:
    boxes = [
        Box(text=text, x0=x0, x1=x1, y0=y, y1=y + 12, size=10)
        for y in range(94, 164, 14)
        for text, x0, x1 in (("I", 52, 54.8), ("Item", 72, 100), ("10.50", 150, 177))
    ]
    [table] = read(boxes, rulings)
    assert table[2:] == ["| I | Item | 10.50 |"] * 4


@pytest.mark.parametrize("seed", range(40))
def test_no_word_of_a_page_is_lost(seed: int) -> None:
    """Words of any width and distance, with and without ruling lines at any position."""
    random = Random(seed)
    boxes, number = [], 0
    for y in range(50, 700, random.choice([12, 14, 20, 28])):
        x = 40.0 + random.choice([0, 0, 20])
        while x < 500 and random.random() < 0.95:
            number += 1
            width = random.choice([2.0, 3.0, 5.0, 12.0, 40.0, 90.0])
            boxes.append(Box(text=f"w{number}w", x0=x, x1=x + width, y0=y, y1=y + 12, size=random.choice([8, 10, 14])))
            x += width + random.choice([1.0, 2.0, 3.0, 6.0, 12.0, 30.0, 80.0])
    lines = [random.randrange(30, 520) for _ in range(random.choice([0, 4, 8]))]
    rulings = Rulings(
        vertical=vertical(*lines, y0=40, y1=720),
        horizontal=horizontal(*range(45, 720, random.choice([14, 28, 300])), x0=30, x1=540) if lines else [],
    )
    text = "\n".join(line for block in read(boxes, rulings) for line in block)
    assert [box.text for box in boxes if box.text not in text] == []
