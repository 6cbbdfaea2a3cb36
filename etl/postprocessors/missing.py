"""Search for required values that are missing from all pieces of a document.

The model is asked up to two questions about the beginning and the end of the document.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from config.platform.http.pointers import join
from etl.postprocessors.conversation import Model
from etl.postprocessors.merge import Leaf, Merged, is_blank
from etl.postprocessors.repair import plain_evidence, replaced, value_at
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema, checked_for_pieces, for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.validation import InvalidReply, Question, joined_pointers, readings_of
from etl.providers.base import PAGE_MARKER, page_marker
from rules.schema import json_schema

TASK = """\
The values of these members of the JSON Schema above are required, and were not found so far: {members}. Look for them \
in the beginning and the end of the document. Give only these members, and leave everything else out. Leave out also \
what is not there."""
MARKER = re.compile(rf"{PAGE_MARKER}\n")
EDGES = (1_500, 6_000)  # characters of the beginning and of the end in the first and the second question


def add_missing_values(merged: Merged, pieces: list[Piece], schema: Schema, *, model: Model) -> None:
    """Ask the model for the missing values, and add those that it finds. The second question includes more text.
    Raises the errors of `Model.ask_once`, except InvalidReply."""
    guide = Guide.of(schema)
    previous = ""
    was_valid = True
    for number, size in enumerate(EDGES, 1):
        wanted, shown = list(missing_members(guide, merged.data)), beginning_and_end(pieces, size)
        if not wanted or (shown == previous and was_valid):
            return
        question = Question(
            label=f"missing-{number}",
            task=TASK.format(members=joined_pointers(wanted)),
            about="the beginning and the end of the text of a document",
            data=shown,
            schema=for_pieces(schema),
            checked=checked_for_pieces(schema),
            wants_evidence=True,
            is_lasting=True,
        )
        previous, was_valid = shown, True
        try:
            answer = model.ask_once(question, partial(read_reply, wanted))
        except InvalidReply:
            was_valid = False
        else:
            add_values(answer, wanted, merged, pieces)


def read_reply(wanted: list[str], text: str, question: Question) -> ParsedResponse:
    """Return the wanted members of a reply. Other members are ignored. Raises InvalidReply if the reply is not JSON, or
    if one of the wanted members is invalid."""
    answer = plain_evidence(readings_of(text, question, None)[0])
    data: Any = {}
    for pointer in wanted:
        if (value := value_at(answer.data, pointer)) is not None:
            data = replaced(data, pointer, value, creates=True)
    if errors := json_schema.errors(question.checked, data, len(wanted)):
        raise InvalidReply([message for _, message in errors], errors)
    return ParsedResponse(data=data, evidence=answer.evidence)


def add_values(answer: ParsedResponse, wanted: list[str], merged: Merged, pieces: list[Piece]) -> None:
    for pointer in wanted:
        for inside, scalar in scalars(value_at(answer.data, pointer), pointer):
            evidence = answer.evidence_for(inside)
            page = evidence.page if evidence else pieces[-1].last_page
            leaf = Leaf(value=scalar, origin=origin_of(page, pieces), evidence=evidence)
            if not is_blank(leaf):
                merged.data = replaced(merged.data, inside, scalar, creates=True)
                merged.leaves[inside] = leaf


def missing_members(guide: Guide, data: Any, pointer: str = "") -> Iterator[str]:
    """Yield the pointers of required members that are missing, except in lists."""
    if not isinstance(data, dict):
        return
    for name in guide.required():
        if name not in data and not guide.member(name).is_of("array"):
            yield join(pointer, name)
    for name, inside in data.items():
        yield from missing_members(guide.member(name), inside, join(pointer, name))


def beginning_and_end(pieces: list[Piece], size: int) -> str:
    """Return the beginning of the first piece and the end of the last piece, each with its page marker."""
    first, last = pieces[0], pieces[-1]
    if first is last and len(first.shown) <= 2 * size:
        return first.shown
    end = last.shown if len(last.shown) <= size else f"{page_marker(last.last_page)}\n\n{tail(last.text, size)}"
    beginning = first.shown[:size].rpartition("\n")[0] or first.shown[:size]
    return f"{beginning}\n\n{end}"


def tail(text: str, size: int) -> str:
    """Return the last lines of a text, up to `size` characters, and only from its last page."""
    text = MARKER.split(text)[-1] or text
    kept = text[-size:]
    return kept if len(kept) == len(text) else kept.partition("\n")[2] or kept


def origin_of(page: int, pieces: list[Piece]) -> int:
    """Return the index of the piece with this page: the first piece if it contains the page, else the last."""
    return 0 if pieces[0].first_page <= page <= pieces[0].last_page else len(pieces) - 1
