"""Required values that no piece of a document gave: up to two questions, with the beginning and the end of the
document."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from config.platform.http.pointers import join
from etl.postprocessors.conversation import Model
from etl.postprocessors.merge import Leaf, Merged, is_blank
from etl.postprocessors.repair import plain_evidence, replaced, value_at
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema, as_map, checked_for_pieces, for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.validation import InvalidReply, Question, named, readings_of
from etl.providers.base import page_marker
from rules.schema import json_schema

FINDING = """\
The values of these members of the JSON Schema above are required, and were not found so far: {members}. Look for them \
in the beginning and the end of the document. Give only these members, and leave everything else out. Leave out also \
what is not there."""
EDGES = (1_500, 6_000)  # characters of the beginning, and of the end, in the first and the second question


def find(merged: Merged, cut: list[Piece], schema: Schema, *, model: Model) -> None:
    """Add the missing values that the model finds. The second question shows more text. Raises the errors of
    `Model.ask_once`, except InvalidReply."""
    guide, before, is_usable = Guide.of(schema), "", True
    for number, size in enumerate(EDGES, 1):
        wanted, shown = list(missing(guide, merged.data)), edges(cut, size)
        if not wanted or (shown == before and is_usable):
            return
        question = Question(
            label=f"missing-{number}",
            task=FINDING.format(members=named(wanted)),
            about="the beginning and the end of the text of a document",
            data=shown,
            schema=for_pieces(schema),
            checked=checked_for_pieces(schema),
            wants_evidence=True,
            is_lasting=True,
        )
        before, is_usable = shown, True
        try:
            answer = model.ask_once(question, partial(read, wanted))
        except InvalidReply:
            is_usable = False
        else:
            add(answer, wanted, merged, cut)


def read(wanted: list[str], text: str, question: Question) -> ParsedResponse:
    """Return the wanted members of a reply that fit. Raises InvalidReply if it is not JSON, or if one does not fit.
    What else the reply has does not matter, and is not requested again."""
    answer = plain_evidence(readings_of(text, question, None)[0])
    data: Any = {}
    for pointer in wanted:
        if (value := value_at(answer.data, pointer)) is not None:
            data = replaced(data, pointer, value, creates=True)
    if errors := json_schema.errors(question.checked, data, len(wanted)):
        raise InvalidReply([words for _, words in errors], errors)
    return ParsedResponse(data=data, evidence=answer.evidence)


def add(answer: ParsedResponse, wanted: list[str], merged: Merged, cut: list[Piece]) -> None:
    for pointer in wanted:
        for inside, scalar in scalars(value_at(answer.data, pointer), pointer):
            evidence = answer.evidence_for(inside)
            page = evidence.page if evidence else cut[-1].last_page
            leaf = Leaf(value=scalar, origin=origin_of(page, cut), evidence=evidence)
            if not is_blank(leaf):
                merged.data = replaced(merged.data, inside, scalar, creates=True)
                merged.leaves[inside] = leaf


def missing(guide: Guide, data: Any, pointer: str = "") -> Iterator[str]:
    """Yield the required members that objects lack, outside of lists."""
    if not isinstance(data, dict):
        return
    for name in guide.required():
        if name not in data and not guide.member(name).is_of("array"):
            yield join(pointer, name)
    for name, inside in as_map(data).items():
        yield from missing(guide.member(name), inside, join(pointer, name))


def edges(cut: list[Piece], size: int) -> str:
    """Return the beginning of the first piece and the end of the last one, each with its page."""
    first, last = cut[0], cut[-1]
    if first is last and len(first.shown) <= 2 * size:
        return first.shown
    end = last.shown if len(last.shown) <= size else f"{page_marker(last.last_page)}\n\n{tail(last.text, size)}"
    beginning = first.shown[:size].rpartition("\n")[0] or first.shown[:size]
    return f"{beginning}\n\n{end}"


def tail(text: str, size: int) -> str:
    """Return the last lines of a text that are on its last page, as far as they fit."""
    text = text[text.rfind("<!-- page: ") :] if "<!-- page: " in text else text
    text = text.partition("-->\n")[2] or text
    kept = text[-size:]
    return kept if len(kept) == len(text) else kept.partition("\n")[2] or kept


def origin_of(page: int, cut: list[Piece]) -> int:
    """Return the index of the first or the last piece, whichever has a page."""
    return 0 if cut[0].first_page <= page <= cut[0].last_page else len(cut) - 1
