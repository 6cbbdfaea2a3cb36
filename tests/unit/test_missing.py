"""Requests for required values that are missing in all pieces."""

import json
from typing import Any

import pytest

from etl.postprocessors import splitting
from etl.postprocessors.document_text import clean
from etl.postprocessors.missing import beginning_and_end, missing_members, read_reply, tail
from etl.postprocessors.schemas import Guide, checked_for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.validation import InvalidReply, Question
from tests.integration.llm_factories import ocr_of

ROWS = {"type": "array", "items": {"type": "object", "required": ["sku"]}}
SELLER = {"type": "object", "properties": {"tax_id": {"type": "string"}}, "required": ["tax_id"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "number"}, "note": {"type": "string"}, "rows": ROWS, "seller": SELLER},
    "required": ["total", "rows", "seller"],
}
QUESTION = Question(
    label="missing", task="", about="", data="", schema=SCHEMA, checked=checked_for_pieces(SCHEMA), wants_evidence=True
)


def pieces_of(*pages: str, size: int = 3_000) -> list[Piece]:
    return splitting.split(clean(ocr_of(*pages)), size=size, max_pieces=100)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"seller": {}}, ["/total", "/seller/tax_id"]),
        ({"total": 0, "seller": {"tax_id": ""}}, []),
        ({"total": 1}, ["/seller"]),
        ({"total": 1, "seller": {"tax_id": "7"}, "rows": [{}]}, []),  # items are corrected in their piece
        ([], []),
    ],
)
def test_it_searches_for_required_members_outside_of_lists(data: Any, wanted: list[str]) -> None:
    assert list(missing_members(Guide.of(SCHEMA), data)) == wanted


def test_it_shows_whole_lines_of_the_beginning_and_the_end() -> None:
    pages = ["\n".join(f"Row {page}-{row:03} of the document" for row in range(100)) for page in (1, 2, 3)]
    shown = beginning_and_end(pieces_of(*pages), 500)
    assert len(shown) < 2 * 500 + 50
    assert shown.startswith("<!-- page: 1 -->\n\nRow 1-000 of the document\n")
    assert "\n\n<!-- page: 3 -->\n\nRow 3-" in shown
    assert shown.strip().endswith("Row 3-099 of the document")
    rows = [line for line in shown.splitlines() if line.startswith("Row")]
    assert all(line.endswith("of the document") for line in rows)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Net 10.00\n<!-- a note -->\nTotal 12.50", "Net 10.00\n<!-- a note -->\nTotal 12.50"),
        ("Net 10.00\n<!-- page: 7 -->\nTotal 12.50", "Total 12.50"),
    ],
)
def test_only_the_marker_of_a_page_ends_the_text_before_it(text: str, shown: str) -> None:
    """Other comments are part of the document."""
    assert tail(text, 100) == shown


def test_it_shows_all_of_a_short_document() -> None:
    [piece] = pieces_of("Total 12.50")
    assert beginning_and_end([piece], 500) == piece.shown


def test_it_uses_only_the_requested_values() -> None:
    """Other values in the reply may be invalid, because they are not used."""
    reply = {"data": {"total": 12.5, "note": 7, "rows": [{}]}, "evidence": {"/total": {"page": 1, "quote": "12.50"}}}
    answer = read_reply(["/total", "/seller/tax_id"], json.dumps(reply), QUESTION)
    assert answer.data == {"total": 12.5}
    assert answer.evidence["/total"].quote == "12.50"


@pytest.mark.parametrize("text", ["Sorry, no.", '{"data": {"total": "12.50 EUR"}}'])
def test_it_refuses_a_reply_without_a_usable_value(text: str) -> None:
    with pytest.raises(InvalidReply):
        read_reply(["/total"], text, QUESTION)


def test_a_value_that_is_not_in_the_document_is_not_an_error() -> None:
    assert read_reply(["/total"], '{"data": {"total": null}}', QUESTION).data == {}
