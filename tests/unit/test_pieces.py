"""Splitting of long texts at natural boundaries (B16)."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.core.errors import DocumentTooLong
from etl.postprocessors.document_text import DocumentText, PageSpan, clean
from etl.postprocessors.splitting import Piece, split
from tests.integration.llm_factories import ocr_of


def text_of(*pages: str) -> DocumentText:
    return clean(ocr_of(*pages))


def pieces_of(*pages: str, size: int = 200, max_pieces: int = 1_000) -> list[Piece]:
    return split(text_of(*pages), size=size, max_pieces=max_pieces)


ROWS = [f"| {number} | {'x' * 20} |" for number in range(30)]
TABLE = "\n".join(["| n | what |", "|---|------|", *ROWS])
HTML = "<table><tr><th>n</th><th>what</th></tr>" + "".join(
    f"<tr><td>{n}</td><td>It is blue. Yes</td></tr>" for n in range(30)
)
LINES = st.sampled_from(
    [
        *("# Title", "| a | b |", "|---|---|", "Words. More words, and more.", "", "", "漢字が続く。", "x" * 250),
        *("<table><tr><td>x y</td></tr></table>", "<tr>", "</tr>", "- item", "| " + "cell " * 60 + "|"),
    ]
)
PAGES = st.lists(st.lists(LINES | st.text(max_size=80), max_size=25).map("\n".join), min_size=1, max_size=5)


@pytest.mark.slow
@given(PAGES, st.integers(50, 400))
@example([f"{'x' * 250}\n{'x' * 250}"], 50)
def test_every_character_is_in_one_piece(pages: list[str], size: int) -> None:
    text = text_of(*pages)
    pieces = split(text, size=size, max_pieces=10_000)

    between = zip([0, *(piece.end for piece in pieces)], [*(piece.start for piece in pieces), None], strict=True)
    assert all(not text.content[end:start].strip() for end, start in between)
    assert all(one.end <= other.start for one, other in pairwise(pieces))
    assert all(0 < len(piece.text) <= size for piece in pieces)
    assert all(piece.text == text.content[piece.start : piece.end] for piece in pieces)
    assert [piece.number for piece in pieces] == list(range(1, len(pieces) + 1))
    assert pieces == split(text, size=size, max_pieces=10_000)


@given(PAGES, st.integers(50, 400))
def test_a_piece_records_its_pages(pages: list[str], size: int) -> None:
    text = text_of(*pages)
    for piece in split(text, size=size, max_pieces=10_000):
        inside = range(piece.start, piece.end)
        touched = [
            span.number
            for span in text.pages
            if text.content[max(span.start, inside.start) : min(span.end, inside.stop)].strip()
        ]
        if touched:
            assert (piece.first_page, piece.last_page) == (touched[0], touched[-1])


@given(PAGES, st.integers(50, 400))
def test_rows_that_fit_are_not_split(pages: list[str], size: int) -> None:
    text = text_of(*pages)
    cuts = {piece.start for piece in split(text, size=size, max_pieces=10_000)}
    for row in re.finditer(r"^[^\n|]*\|[^\n]*$", text.content, re.MULTILINE):
        if row.end() - row.start() < size and not re.search("</?tr", row.group()):
            assert not cuts & set(range(row.start() + 1, row.end()))


def test_it_splits_between_pages() -> None:
    pieces = pieces_of("One. " * 25, "Two. " * 25, "Three. " * 25)
    assert [(piece.first_page, piece.last_page) for piece in pieces] == [(1, 1), (2, 2), (3, 3)]
    assert all(piece.text.startswith("<!-- page: ") for piece in pieces)


def test_short_pages_share_a_piece() -> None:
    [piece] = pieces_of("One.", "Two.", "", "Four.")
    assert (piece.first_page, piece.last_page, piece.pages) == (1, 4, "pages 1 to 4")


def test_it_splits_before_headings_and_never_after_them() -> None:
    page = "\n\n".join(f"## Part {number}\n\n{'word ' * 20}" for number in range(8))
    for piece in pieces_of(page)[1:]:
        assert piece.text.startswith("## Part")


def test_it_splits_between_paragraphs_then_sentences() -> None:
    assert all(piece.text.startswith("Para") for piece in pieces_of("\n\n".join(["Para " + "word " * 15] * 9))[1:])
    assert all(piece.text.startswith("Here") for piece in pieces_of("Here is a sentence. " * 50)[1:])
    assert all(piece.text.startswith("一") for piece in pieces_of("一二三四五六七八九十。" * 50)[1:])


@pytest.mark.parametrize("page", [f"Intro.\n\n{TABLE}\n\nEnd.", f"{HTML}</table>"])
def test_it_repeats_the_header_of_a_split_table(page: str) -> None:
    pieces = pieces_of(page)
    continuing = [piece for piece in pieces[1:] if "|" in piece.text or "<td>" in piece.text]
    assert len(continuing) > 3
    for piece in continuing:
        assert "what" in piece.lead
        assert piece.shown.startswith("<!-- page: 1 -->\n\n[a table goes on")
        assert piece.text in piece.shown
    assert pieces[0].lead == ""


def test_it_repeats_no_header_without_a_split_table() -> None:
    for page in (f"{TABLE[:60]}\n\n", "<table><tr><td>x</td></tr></table>"):
        assert not any(piece.lead for piece in pieces_of(page + "Words. " * 100))


def test_a_row_longer_than_a_piece_is_split_like_text() -> None:
    pieces = pieces_of("| " + "A sentence in a cell. " * 40 + "|")
    assert all(piece.text.startswith("A sentence") for piece in pieces[1:])


def test_text_without_breaks_is_split_anyway() -> None:
    pieces = pieces_of("x" * 999)
    assert "".join(piece.text for piece in pieces).count("x") == 999
    assert [len(piece.text) for piece in pieces[1:-1]] == [200] * 4


def test_it_refuses_texts_with_too_many_pieces() -> None:
    assert len(pieces_of("word " * 100, max_pieces=3)) == 3
    with pytest.raises(DocumentTooLong, match="2 pieces of 200 characters"):
        pieces_of("word " * 100, max_pieces=2)


@pytest.mark.slow
def test_large_texts_are_split_in_time() -> None:
    """A quadratic algorithm would take minutes for these texts."""
    for page in (
        "<tr>" * 100_000,
        "|" * 400_000,
        "<!--" * 100_000,
        "# " * 200_000,
        "\n" * 400_000 + "x",
        "<table>" * 50_000,
    ):
        assert len(pieces_of(page, size=8_000)) < 100


@given(st.text(alphabet=st.sampled_from("a\u200b<!->\n \U000e0041|[INST]"), max_size=200))
def test_cleaning_is_idempotent(page: str) -> None:
    once = text_of(page)
    assert once.content.count("<!-- page:") <= 1
    assert "\u200b" not in once.content
    assert text_of(once.page(1)).content == once.content


def test_pages_are_found_by_number() -> None:
    text = text_of("One", "", "Three")
    assert [text.page(number) for number in (1, 2, 3, 4)] == ["One", "", "Three", ""]
    assert text.pages == (PageSpan(number=1, start=18, end=21), PageSpan(number=3, start=41, end=46))


# ---- Items of several lines -----------------------------------------------------------------------------------------
def article_lines(number: int) -> list[str]:
    return [f"Article {number:04d} {'bolts and nuts ' * (number % 3)}", f"Quantity {number} pcs", f"Amount {number}.50"]


def plain_lines(number: int) -> list[str]:
    return [f"{WORDS[number % 7]} steel item-{number:04d}", f"{number} x 3.40", f"{number}.50 EUR"]


def indented(number: int) -> list[str]:
    more = [f"    galvanized, lot {number}"] * (number % 3 + 1)
    return [f"{WORDS[number % 7]} item-{number:04d} {number}.50", *more]


def numbered(number: int) -> list[str]:
    more = [f"{WORDS[number % 7]} with washers", f"{WORDS[number % 5]} on request"][: number % 3]
    return [f"{number}. {WORDS[number % 7]} item-{number:04d} {number}.50", *more]


def bulleted(number: int) -> list[str]:
    return [f"- {WORDS[number % 7]} item-{number:04d}", *["and so forth for this one"] * (number % 4)]


WORDS = ["Bolt", "Nut", "Washer", "Screw", "Rivet", "Hinge", "Clamp"]
FORMS = [article_lines, plain_lines, indented, numbered, bulleted]


@pytest.mark.parametrize("item_of", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("per_page", [10_000, 23])
@pytest.mark.parametrize("size", [700, 2_000, 8_000])
def test_items_of_several_lines_are_not_split(item_of: Any, per_page: int, size: int) -> None:
    """B42: the lines of an item are kept together even if there are no empty lines between items."""
    texts = ["\n".join(item_of(number)) for number in range(1, 501)]
    pages = [
        f"ACME Ltd, statement 4711\n\n{chr(10).join(texts[at : at + per_page])}\n\nPage {at // per_page + 1}"
        for at in range(0, 500, per_page)
    ]
    pieces = pieces_of(*pages, size=size)

    assert len(pieces) > 1
    whole = [text for text in texts if sum(text in piece.text for piece in pieces) == 1]
    assert whole == texts


def test_items_over_the_end_of_a_page_are_not_split() -> None:
    lines = [line for number in range(1, 301) for line in article_lines(number)]
    pages = [
        f"ACME Ltd, statement 4711\n\n{chr(10).join(lines[at : at + 50])}\n\nPage {at // 50 + 1}"
        for at in range(0, len(lines), 50)  # 50 is not a multiple of three, so pages end inside an item
    ]
    pieces = pieces_of(*pages, size=3_000)

    for number in range(1, 301):
        assert sum(all(line in piece.text for line in article_lines(number)) for piece in pieces) == 1, number


def test_lines_from_both_sides_are_shown_where_an_item_may_be_split() -> None:
    sentences = [f"Sentence {WORDS[n % 7]} number-{n:03d} of the text." for n in range(90)]
    pieces = pieces_of(" ".join(sentences), size=800)

    for piece, following in pairwise(pieces):
        assert (
            f"\n[this piece ends here; for reading only, the beginning of the next one:]\n{piece.after}" in piece.shown
        )
        assert following.shown.startswith("[for reading only, the end of the piece before this one:]\n")
        assert f"\n{following.before}\n[this piece begins here:]\n" in following.shown
        assert following.text.startswith(piece.after[:50])
        assert piece.text.strip().endswith(following.before[-50:])
        assert len(piece.after) <= 100
    assert (pieces[0].before, pieces[-1].after) == ("", "")


def test_no_context_is_shown_if_a_cut_is_certainly_between_items() -> None:
    page = "\n\n".join(f"## Part {number}\n\n{'word ' * 20}" for number in range(8))
    for pieces in (pieces_of(page), pieces_of(f"Intro.\n\n{TABLE}")):
        assert len(pieces) > 3
        assert not any(piece.before or piece.after for piece in pieces)


# ---- Tables over pages ----------------------------------------------------------------------------------------------
def read_table(pieces: list[Piece]) -> list[dict[str, str]]:
    """Return the rows by column name. Rows without a head above them in the same piece are omitted."""
    found = []
    for piece in pieces:
        head: list[str] = []
        lines = piece.shown.split("\n")
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            values = [cell.strip() for cell in line.strip("| ").split("|")]
            if line.startswith("|") and following.startswith("|--"):
                head = values
            elif line.startswith("|") and not line.startswith("|--") and head:
                found.append(dict(zip(head, values, strict=True)))
    return found


@pytest.mark.parametrize("size", [600, 1_500, 3_000])
def test_the_head_of_a_table_goes_with_every_piece_over_pages(size: int) -> None:
    """B42: a table that continues over several pages has its head only on the first one."""
    rows = [f"| A-{number} | {number} | {number}.50 |" for number in range(240)]
    head = ["| article | quantity | amount |", "|---|---|---|"]
    pages = [
        "\n".join(
            ["ACME Ltd", "Statement 4711", "", *(head if at == 0 else []), *rows[at : at + 30], "", "Page 1 of 8"]
        )
        for at in range(0, 240, 30)
    ]

    found = read_table(pieces_of(*pages, size=size))

    assert found == [{"article": f"A-{n}", "quantity": f"{n}", "amount": f"{n}.50"} for n in range(240)]


def test_a_first_row_that_was_mistaken_for_a_head_gets_the_head_of_the_table() -> None:
    first = f"| article | amount |\n|---|---|\n{chr(10).join(f'| A{n} | {n}.50 |' for n in range(20))}"
    second = f"| A20 | 20.50 |\n|---|---|\n{chr(10).join(f'| A{n} | {n}.50 |' for n in range(21, 40))}"
    pieces = pieces_of(first, second, size=400)

    leads = [piece.lead.split("\n")[0] for piece in pieces[1:]]
    assert leads == ["| article | amount |"] * len(leads)


def test_a_different_table_does_not_inherit_the_head_of_the_previous_one() -> None:
    other = "\n".join(["| name | city | code |", "|---|---|---|", *(f"| N{n} | C | 7 |" for n in range(9))])
    rows = read_table(pieces_of(TABLE, f"{other}\n\n{'Words. ' * 40}", size=400))
    assert [row["name"] for row in rows if "name" in row] == [f"N{n}" for n in range(9)]
    assert len(rows) == 30 + 9


def test_rows_that_continue_cells_stay_with_their_row() -> None:
    rows = [f"| {n} | first line {n} | {n}.50 |\n|  | second line {n} |  |" for n in range(60)]
    pieces = pieces_of("\n".join(["| n | what | amount |", "|---|---|---|", *rows]), size=400)
    assert len(pieces) > 5
    for row in rows:
        assert sum(row in piece.text for piece in pieces) == 1
