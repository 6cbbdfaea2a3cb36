"""Resolution of conflicts between the pieces of a document, by one question to the model about all of them."""

import re
from collections.abc import Sequence
from typing import Any

from config.platform import exact_json
from config.platform.http.pointers import tokens
from etl.core.errors import SchemaInvalid
from etl.postprocessors.conversation import Model
from etl.postprocessors.merge import Conflict, Leaf, Merged, Tree, leaves, loose_key, plain
from etl.postprocessors.schemas import Guide, Schema, checked_for_pieces, for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.validation import Question, joined_pointers
from etl.providers.base import PAGE_MARKER, page_marker

CHOOSING = """\
The pieces of a long document gave different values for the same members of the JSON Schema above. The values follow \
with their pages, and then the places that they come from, each after its page marker. Decide by the places which \
value is right for the whole document: the final total, for example, and not a sum that is carried forward. Give only \
the members in question, each exactly as one of its values, and leave everything else out."""
MAX_CONFLICTS = 20
MAX_CANDIDATES = 8
MAX_AROUND = 250  # characters on each side of a value; extended to whole lines, up to twice as many
MAX_VALUE = 300


def resolve(found: Merged, pieces: list[Piece], schema: Schema, *, model: Model) -> dict[str, int]:
    """Ask the model to resolve the conflicts. Return the index of the chosen candidate by the conflict's pointer.

    A conflict is left out if the response does not match the schema, or if the response's value for it is not one of
    the candidates. Raises the errors of `require_agreement`, and those of `Model.ask` except SchemaInvalid.
    """
    require_agreement(found, pieces)
    if not found.conflicts:
        return {}
    asked = found.conflicts[:MAX_CONFLICTS]
    question = Question(
        label="conflicts",
        task=CHOOSING,
        about="values that were taken from a document, and the places that they come from",
        data="\n\n".join([*(listed(conflict, pieces) for conflict in asked), *excerpts(asked, pieces)]),
        schema=for_pieces(schema),
        checked=checked_for_pieces(schema),
        is_lasting=True,
    )
    try:
        given = model.ask(question).data
    except SchemaInvalid:
        return {}
    choices = {conflict.pointer: chosen(conflict, found, given, Guide.of(schema)) for conflict in asked}
    return {pointer: choice for pointer, choice in choices.items() if choice is not None}


def require_agreement(found: Merged, pieces: list[Piece]) -> None:
    """Raise SchemaInvalid if there are conflicts with `"x-merge": "error"`."""
    refused = [conflict for conflict in found.conflicts if conflict.policy == "error"]
    if refused:
        places = "; ".join(
            f"{joined_pointers([each.pointer])} ({pages_of(each, pieces)})" for each in refused[:MAX_CONFLICTS]
        )
        raise SchemaInvalid(
            f"The pieces of the document give different values where the rule allows only one: {places}."
        )


def pages_of(conflict: Conflict, pieces: list[Piece]) -> str:
    return ", ".join(pieces[origin].pages for origin in conflict.origins if origin >= 0)


# ---- The question ---------------------------------------------------------------------------------------------------
def shown(conflict: Conflict) -> Sequence[Tree]:
    """Return the candidates to show to the model. If there are many, these are the first and the last ones, because the
    last may be the final total."""
    if len(conflict.candidates) <= MAX_CANDIDATES:
        return conflict.candidates
    return (*conflict.candidates[: MAX_CANDIDATES // 2], *conflict.candidates[-MAX_CANDIDATES // 2 :])


def listed(conflict: Conflict, pieces: list[Piece]) -> str:
    """Return the list of a conflict's values and their pages, for the prompt."""
    lines = []
    for tree in shown(conflict):
        pages = dict.fromkeys(pieces[leaf.origin].pages for _, leaf in leaves(tree) if leaf.origin >= 0)
        value = exact_json.dumps(plain(tree)).decode()
        lines.append(f"- {value[:MAX_VALUE]} ({', '.join(pages)})")
    return "\n".join([f"Values of {conflict.pointer or 'the whole'}:", *lines])


def excerpts(conflicts: list[Conflict], pieces: list[Piece]) -> list[str]:
    """Return the text around each value, in document order and without duplicates."""
    spans = {
        (leaf.origin, *span)
        for conflict in conflicts
        for tree in shown(conflict)
        for _, leaf in leaves(tree)
        if leaf.origin >= 0 and (span := span_of(leaf, pieces[leaf.origin].text))
    }
    return [excerpt(pieces[origin], start, end) for origin, start, end in sorted(spans)]


def span_of(leaf: Leaf, text: str) -> tuple[int, int] | None:
    """Return the span of the lines around a value in its piece."""
    for needle in needles(leaf):
        if (at := text.find(needle)) >= 0:
            start = text.rfind("\n", 0, max(0, at - MAX_AROUND)) + 1
            end = text.find("\n", at + len(needle) + MAX_AROUND)
            return max(start, at - 2 * MAX_AROUND), min(end if end >= 0 else len(text), at + 2 * MAX_AROUND)
    return None


def needles(leaf: Leaf) -> list[str]:
    """Return the texts to search for to find a value."""
    texts = [leaf.evidence.quote] if leaf.evidence else []
    if isinstance(leaf.value, str):
        return [*texts, leaf.value] if leaf.value.strip() else texts
    if isinstance(leaf.value, bool | list) or leaf.value is None:
        return texts
    grouped = [f"{leaf.value:,}", f"{leaf.value:,.2f}"]
    swap = str.maketrans(",.", ".,")
    return [*texts, *grouped, *(each.translate(swap) for each in grouped), str(leaf.value)]


def excerpt(piece: Piece, start: int, end: int) -> str:
    markers = list(re.finditer(PAGE_MARKER, piece.text[:start]))
    page = int(markers[-1]["number"]) if markers else piece.first_page
    return f"{page_marker(page)}\n\n{piece.text[start:end].strip()}"


# ---- The choice -----------------------------------------------------------------------------------------------------
def chosen(conflict: Conflict, found: Merged, given: Any, guide: Guide) -> int | None:
    """Return the index of the candidate that the model chose, or None."""
    value = counterpart(conflict.pointer, found.data, given, guide)
    if isinstance(value, dict):  # members with their own `x-merge` are not part of the conflict
        names = {name for tree in conflict.candidates if isinstance(tree, dict) for name in tree}
        value = {name: inside for name, inside in value.items() if name in names}
    key = loose_key(value)
    return next((at for at, tree in enumerate(conflict.candidates) if loose_key(plain(tree)) == key), None)


def counterpart(pointer: str, data: Any, given: Any, guide: Guide) -> Any:
    """Return the value in the response `given` that corresponds to a pointer into `data`. Items are matched by their
    merge key."""
    for token in tokens(pointer):
        if isinstance(data, list):
            names = guide.item_key
            data, guide = data[int(token)], guide.item()
            items = given if isinstance(given, list) else []
            given = next((item for item in items if has_same_key(item, data, names)), None)
        else:
            data, guide = data.get(token), guide.member(token)
            given = given.get(token) if isinstance(given, dict) else None
    return given


def has_same_key(item: Any, other: Any, names: tuple[str, ...]) -> bool:
    return (
        isinstance(item, dict) and isinstance(other, dict) and all(item.get(name) == other.get(name) for name in names)
    )
