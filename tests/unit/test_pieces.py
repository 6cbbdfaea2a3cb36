"""Cutting a long text where a reader would (B16)."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from etl.core.errors import DocumentTooLong
from etl.postprocessors.document_text import DocumentText, PageSpan, clean
from etl.postprocessors.splitting import Piece, split
from tests.integration.llm_factories import ocr_of


def text_of(*pages: str) -> DocumentText:
    return clean(ocr_of(*pages))


def pieces_of(*pages: str, size: int = 200, most: int = 1_000) -> list[Piece]:
    return split(text_of(*pages), size=size, most=most)


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


@given(PAGES, st.integers(50, 400))
@example([f"{'x' * 250}\n{'x' * 250}"], 50)
def test_every_character_is_in_one_piece(pages: list[str], size: int) -> None:
    text = text_of(*pages)
    pieces = split(text, size=size, most=10_000)

    between = zip([0, *(piece.end for piece in pieces)], [*(piece.start for piece in pieces), None], strict=True)
    assert all(not text.content[end:start].strip() for end, start in between)
    assert all(one.end <= other.start for one, other in pairwise(pieces))
    assert all(0 < len(piece.text) <= size for piece in pieces)
    assert all(piece.text == text.content[piece.start : piece.end] for piece in pieces)
    assert [piece.number for piece in pieces] == list(range(1, len(pieces) + 1))
    assert pieces == split(text, size=size, most=10_000)


@given(PAGES, st.integers(50, 400))
def test_a_piece_records_its_pages(pages: list[str], size: int) -> None:
    text = text_of(*pages)
    for piece in split(text, size=size, most=10_000):
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
    cuts = {piece.start for piece in split(text, size=size, most=10_000)}
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
    going_on = [piece for piece in pieces[1:] if "|" in piece.text or "<td>" in piece.text]
    assert len(going_on) > 3
    for piece in going_on:
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


def test_the_number_of_pieces_is_known_in_advance() -> None:
    assert len(pieces_of("word " * 100, most=3)) == 3
    with pytest.raises(DocumentTooLong, match="2 pieces of 200 characters"):
        pieces_of("word " * 100, most=2)


def test_large_texts_are_split_in_time() -> None:
    """Nothing in it looks at a text again and again: quadratic steps would take minutes here."""
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


def test_pages_are_found_by_number() -> None:
    text = text_of("One", "", "Three")
    assert [text.page(number) for number in (1, 2, 3, 4)] == ["One", "", "Three", ""]
    assert text.pages == (PageSpan(number=1, start=18, end=21), PageSpan(number=3, start=41, end=46))
