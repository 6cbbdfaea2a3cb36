"""Layout analysis: Markdown from words and their positions (B13)."""

from random import Random
from time import process_time

import pytest

from etl.providers.local import hyphens
from etl.providers.local.boxes import Box
from etl.providers.local.layout import PageGeometry, analyze
from etl.providers.local.layout_model import Region
from etl.providers.local.order import reading_order

# The size of the type. A letter is half as wide, and a line is 1.2 times as high.
SIZE = 10.0


def to_markdown(boxes: list[Box], *, body: float = 0.0, width: float = 0.0) -> str:
    """Return the text of a page as Markdown, without an image of the page."""
    text = "\n\n".join(block.text for block in analyze(boxes, PageGeometry(body=body, width=width)))
    return hyphens.resolve(text, hyphens.words(text))


def words(text: str, x: float, y: float, *, size: float = SIZE, bold: bool = False) -> list[Box]:
    """Return the boxes of the words of a line of text."""
    boxes = []
    for word in text.split():
        width = len(word) * size / 2
        boxes.append(Box(text=word, x0=x, y0=y, x1=x + width, y1=y + 1.2 * size, size=size, bold=bold))
        x += width + size / 3
    return boxes


def lines(*texts: str, x: float = 50, y: float = 50, step: float = 14) -> list[Box]:
    return [box for number, text in enumerate(texts) for box in words(text, x, y + number * step)]


def row(y: float, *cells: tuple[float, str]) -> list[Box]:
    return [box for x, text in cells for box in words(text, x, y)]


def box(x0: float, y0: float, x1: float, y1: float, *, text: str = "a") -> Box:
    return Box(text=text, x0=x0, y0=y0, x1=x1, y1=y1, size=y1 - y0)


PROSE = ["the quick brown fox jumps over a lazy dog and runs on"] * 8


def test_full_lines_are_joined_and_short_lines_are_not() -> None:
    full = "words that fill the line up to its very end here now"
    assert to_markdown(lines(full, full, "and end.", "Next line")) == f"{full} {full} and end.\nNext line"


def test_a_gap_or_a_size_change_starts_a_paragraph() -> None:
    boxes = lines("First line", "second line") + lines("Far below", y=110) + words("Small print", 50, 140, size=7)
    assert to_markdown(boxes, width=595) == "First line\nsecond line\n\nFar below\n\nSmall print"


def test_large_type_is_a_heading() -> None:
    """B13: text with headings."""
    boxes = words("Title of it", 50, 20, size=20) + words("Part one", 50, 60, size=13) + lines(*PROSE, y=90)
    text = to_markdown(boxes)
    assert text.startswith("# Title of it\n\n## Part one\n\nthe quick")


def test_separate_bold_lines_are_headings() -> None:
    boxes = words("Warranty", 50, 20, bold=True) + lines(*PROSE, y=50)
    assert to_markdown(boxes).startswith("### Warranty\n\nthe quick")
    total = words("Total: 5.00", 50, 20, bold=True)
    assert to_markdown(total) == "Total: 5.00"


def test_rows_with_common_columns_are_a_table() -> None:
    """B13: text with tables."""
    boxes = [
        *row(50, (50, "Item"), (250, "Count"), (350, "Price")),
        *row(70, (50, "Brackets of steel"), (265, "12"), (355, "3.15")),
        *row(84, (50, "made to measure")),
        *row(104, (50, "A | B"), (270, "1"), (345, "148.20")),
        *row(160, (50, "Thank you for your order, which we hope to see again")),
    ]
    assert to_markdown(boxes) == (
        "| Item | Count | Price |\n| --- | --- | --- |\n| Brackets of steel made to measure | 12 | 3.15 |\n"
        "| A \\| B | 1 | 148.20 |\n\nThank you for your order, which we hope to see again"
    )


def test_a_line_that_continues_a_cell_may_begin_before_it() -> None:
    """A regression test: pages with centered cells could not be read."""
    boxes = [
        *row(50, (50, "Item"), (250, "Count"), (350, "Price")),
        *row(70, (60, "Brackets"), (260, "12"), (350, "3.15")),
        *row(84, (45, "made of steel")),
        *row(104, (60, "Cables"), (260, "1"), (350, "9.00")),
    ]
    assert "| Brackets made of steel | 12 | 3.15 |" in to_markdown(boxes)


def test_an_empty_cell_stays_empty() -> None:
    boxes = [
        *row(50, (50, "Item"), (250, "Count"), (350, "Price")),
        *row(70, (50, "Freight"), (350, "9.00")),
        *row(90, (50, "Brackets"), (250, "12"), (350, "3.15")),
    ]
    assert "| Freight |  | 9.00 |" in to_markdown(boxes)


def test_two_pairs_are_not_a_table() -> None:
    assert "|" not in to_markdown([*row(50, (50, "Seller"), (300, "Buyer")), *row(70, (50, "signed"), (300, "signed"))])


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    left = [f"left number {number} with a text that fills its column" for number in range(8)]
    right = [f"right number {number} with words that fill it as well" for number in range(8)]
    title = "A title that goes over both of the columns and that is therefore as long as it is here, or longer"
    boxes = words(title, 50, 20) + lines(*left, x=50, y=60) + lines(*right, x=340, y=63)
    text = to_markdown(boxes)
    order = [text.index(line) for line in (title, *left, *right)]
    assert order == sorted(order)


def test_lists_keep_their_lines() -> None:
    assert to_markdown(lines("• one thing that goes on", "• another thing as well", "1. the first")) == (
        "- one thing that goes on\n- another thing as well\n1. the first"
    )


def test_chinese_lines_are_joined_without_spaces() -> None:
    def line(text: str, y: float) -> Box:
        return Box(text=text, x0=50, y0=y, x1=50 + 10 * len(text), y1=y + 12, size=10)

    assert to_markdown([line("乙方应当在收到货物之后三十日以内支付", 50), line("全部货款。", 64)]) == (
        "乙方应当在收到货物之后三十日以内支付全部货款。"
    )


def test_korean_words_keep_their_spaces() -> None:
    first, second = (
        Box(text=text, x0=x, y0=50, x1=x + 40, y1=62, size=SIZE) for text, x in (("미래국가", 50), ("정보보안", 94))
    )
    assert to_markdown([first, second]) == "미래국가 정보보안"


def test_a_hyphen_at_the_end_of_a_line_stays() -> None:
    boxes = lines("a warranty of all these long words and of twenty-", "four months.")
    assert to_markdown(boxes).endswith("twenty-four months.")


def test_overprinted_words_are_read_once() -> None:
    assert to_markdown([*words("Total", 50, 50), *words("Total", 50.3, 50)]) == "Total"


def test_an_empty_page_has_no_text() -> None:
    assert to_markdown([]) == ""


def test_a_hyphen_at_the_end_of_a_line_is_removed_if_the_document_has_the_word() -> None:
    boxes = lines("the warranty covers all of these long words, the war-", "ranty of all.")
    assert to_markdown(boxes).endswith("the warranty of all.")


def test_right_to_left_lines_are_in_logical_order() -> None:
    """In Hebrew, the first word is on the right, but numbers with spaces are written from left to right."""
    boxes = [*row(50, (300, "שלום"), (272, "עולם"), (236, "12 345")), *row(64, (300, "שורה"), (271, "שנייה"))]
    assert to_markdown(boxes, width=500) == "שלום עולם 12 345\nשורה שנייה"


def test_the_analysis_of_a_right_to_left_page_does_not_move_its_words() -> None:
    """The lines of the page share these boxes, and citations use their positions."""
    boxes = row(50, (300, "שלום"), (100, "עולם"))
    before = [(box.x0, box.x1) for box in boxes]

    blocks = analyze(boxes, PageGeometry(width=500))

    assert [(box.x0, box.x1) for box in boxes] == before
    assert {block.x1 for block in blocks} == {max(box.x1 for box in boxes)}


def test_words_in_another_script_stay_in_their_order() -> None:
    boxes = row(50, (300, "שלוםשלום"), (240, "Hello world"), (192, "עולםעולם"))
    assert to_markdown(boxes, width=500) == "שלוםשלום Hello world עולםעולם"
    line = "An English line with the words"
    assert to_markdown(row(50, (50, line), (215, "עולם"), (240, "שלום"))) == f"{line} שלום עולם"


def test_cells_of_several_lines_do_not_split_a_table() -> None:
    """The amounts are centered vertically beside cells of two lines."""
    boxes = [
        *row(50, (50, "Item"), (250, "Count"), (350, "Price")),
        *row(70, (50, "Brackets of hard")), *row(76, (250, "12"), (350, "3.15")), *row(82, (50, "steel")),
        *row(100, (50, "Cables of pure")), *row(106, (250, "1"), (350, "9.00")), *row(112, (50, "copper")),
    ]  # fmt: skip
    text = to_markdown(boxes)
    assert "| Brackets of hard steel | 12 | 3.15 |" in text
    assert "| Cables of pure copper | 1 | 9.00 |" in text


def test_narrow_blocks_at_a_gutter_are_read() -> None:
    """A regression test: splitting at a gutter did not terminate if all blocks were on one side of it."""
    blocks = [box(10, 10, 11, 20), box(10.5, 15, 11, 30), box(12, 12, 12.5, 40)]
    assert sorted(map(id, reading_order(blocks))) == sorted(map(id, blocks))


@pytest.mark.slow
def test_thousands_of_scattered_words_take_seconds() -> None:
    """B12: 5,000 words on a page of 20 KB must not take minutes."""
    random = Random(2)
    places = [(random.randrange(600), random.randrange(800)) for _ in range(5_000)]
    words = [box(x, y, x + 0.5, y + 1, text=f"w{index}.") for index, (x, y) in enumerate(places)]
    started = process_time()
    text = to_markdown(words, width=600)
    assert process_time() - started < 15
    assert all(word.text in text for word in words)


def item(y: float, name: str, *below: str) -> list[Box]:
    """Return an item of an invoice, with texts below its number and name."""
    first = row(y, (50, "1"), (110, name), (220, "9.90"), (280, "20 pcs"), (350, "19 %"), (420, "198.00"))
    return [*first, *row(y + 11, *zip((50, 110), below, strict=False))]


def test_the_lines_below_an_item_are_parts_of_it() -> None:
    boxes = [*item(50, "Dividers", "2031", "A4"), *item(75, "Yogurt", "2032", "20/0500")]
    assert to_markdown(boxes).splitlines()[::2] == [
        "| 1 2031 | Dividers A4 | 9.90 | 20 pcs | 19 % | 198.00 |",
        "| 1 2032 | Yogurt 20/0500 | 9.90 | 20 pcs | 19 % | 198.00 |",
    ]


def test_a_single_item_is_a_row() -> None:
    text = to_markdown(item(50, "Dividers", "2031", "A4"))
    assert text.splitlines()[0] == "| 1 2031 | Dividers A4 | 9.90 | 20 pcs | 19 % | 198.00 |"


def test_a_single_item_of_one_line_is_a_row() -> None:
    """A page that continues an invoice may have neither a head nor a second row with the same columns."""
    boxes = [*item(50, "Dividers"), *lines("Price before discounts: 10.90", "Made of recycled paper", x=110, y=100)]
    assert "| 1 | Dividers | 9.90 | 20 pcs | 19 % | 198.00 |" in to_markdown(boxes).splitlines()


def test_prices_and_discounts_below_an_item_are_parts_of_it() -> None:
    discounts = [(110, "was 10.50"), (220, "less 0.30"), (280, "regular"), (350, "yearly")]
    boxes = [*item(50, "Sugar", "2031", "extra"), *row(73, *discounts), *item(97, "Sugar", "2031", "extra")]
    assert to_markdown(boxes).splitlines()[::2] == [
        "| 1 2031 | Sugar extra was 10.50 | 9.90 less 0.30 | 20 pcs regular | 19 % yearly | 198.00 |",
        "| 1 2031 | Sugar extra | 9.90 | 20 pcs | 19 % | 198.00 |",
    ]


def test_the_largest_gap_between_items_ends_the_first() -> None:
    """Notes after the gap may belong to either item."""
    note = lines("Packages: 1", x=110, y=95)
    boxes = [*item(50, "Sugar", "2031", "extra"), *note, *item(112, "Flour", "2032", "fine")]
    text = to_markdown(boxes).splitlines()
    assert text[0] == "| 1 2031 | Sugar extra | 9.90 | 20 pcs | 19 % | 198.00 |"
    assert text[-1].endswith("Flour fine | 9.90 | 20 pcs | 19 % | 198.00 |")


def test_texts_with_amounts_are_rows_where_the_model_is_sure_of_a_text() -> None:
    charges = [("Liability of a person", "50.00 €"), ("Partner", "0.00 €"), ("Tax", "9.50 €")]
    boxes = [
        word for index, (name, amount) in enumerate(charges)
        for word in row(50 + 14 * index, (50, name), (300, amount))
    ]  # fmt: skip
    names = Region(kind="text", score=0.97, x0=48, y0=48, x1=200, y1=95)
    whole = Region(kind="text", score=0.95, x0=48, y0=48, x1=360, y1=95)
    for regions in ([names], [whole]):
        [table] = analyze(list(boxes), PageGeometry(width=600, height=800, regions=regions))
        assert "| Partner | 0.00 € |" in table.text.splitlines()


def test_a_heading_between_rows_of_a_statement_stays_a_row() -> None:
    figures = [(200, "10.00"), (280, "11.00"), (360, "12.00"), (440, "13.00")]
    boxes = [
        *row(50, (50, "Cash and its equivalents"), *figures),
        *row(64, (50, "Receivables"), *figures),
        *row(78, (50, "Other")),
        *row(92, (50, "Land"), *figures),
    ]
    assert "| Other |  |  |  |  |" in to_markdown(boxes).splitlines()
