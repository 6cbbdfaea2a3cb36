"""Detection of items that occur more often in a result than in the document.

A model may extract a row twice, or extract items from the context of its piece, although the context is marked as for
reading only. Items are compared with rows by their words and digits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from config.platform.plurals import counted
from etl.core.stage_context import StageContext
from etl.postprocessors.excerpts import Item, is_text, units_of, words
from etl.postprocessors.merge import loose_key
from etl.postprocessors.repair import Mismatches, lists, plain_evidence, remove_invalid_items
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema
from etl.postprocessors.splitting import Piece
from etl.postprocessors.validation import joined_pointers

REPEATED = "items_repeated"
MIN_WORDS = 2  # words of an item that must be in a row


def without_context_items(
    answers: list[ParsedResponse], pieces: list[Piece], schema: Schema, *, context: StageContext
) -> list[ParsedResponse]:
    """Return the answers without items from the context that a neighboring piece has too. Warn about items from the
    context that no neighboring piece has."""
    guide = Guide.of(schema)
    from_context = [list(context_items(answer, piece, guide)) for answer, piece in zip(answers, pieces, strict=True)]
    own = [
        Counter(
            (pointer, loose_key(item))
            for pointer, items in lists(guide, answer.data)
            for at, item in enumerate(items)
            if (pointer, at) not in context_only
        )
        for answer, context_only in zip(answers, from_context, strict=True)
    ]
    found: list[ParsedResponse] = []
    for number, answer in enumerate(answers):
        near = Counter[tuple[str, str]]()
        for each in own[max(0, number - 1) : number] + own[number + 1 : number + 2]:
            near += each
        items = dict(lists(guide, answer.data))
        duplicates = {item for item in from_context[number] if near[item[0], loose_key(items[item[0]][item[1]])]}
        if kept := [item for item in from_context[number] if item not in duplicates]:
            items_kept = counted(len(kept), "item")
            detail = f"{items_kept} from the lines of a neighboring piece may be duplicates: {pointers(kept)}."
            context.warn(REPEATED, detail, page=pieces[number].first_page)
        found.append(without(answer, duplicates, guide) if duplicates else answer)
    return found


def context_items(answer: ParsedResponse, piece: Piece, guide: Guide) -> Iterator[Item]:
    """Yield the items that are in the context of a piece, but not in the piece."""
    outside = [*rows_of(piece.before), *rows_of(piece.after)]
    if not outside:
        return
    inside = {*words(piece.text), *words(piece.lead), *words(piece.headings)}
    for pointer, items in lists(guide, answer.data):
        for at, item in enumerate(items):
            wanted = words_of(item)
            if len(wanted) >= MIN_WORDS and not wanted <= inside and any(wanted <= row for row in outside):
                yield pointer, at


def without(answer: ParsedResponse, duplicates: Iterable[Item], guide: Guide) -> ParsedResponse:
    answer = plain_evidence(answer)
    data, evidence = remove_invalid_items(
        guide, answer.data, answer.evidence, Mismatches(items=dict.fromkeys(duplicates, ("", "")))
    )
    return ParsedResponse(data=data, evidence=evidence)


def warn_of_shared_rows(data: Any, schema: Schema, content: str, *, context: StageContext) -> None:
    """Warn about equal items if the document has fewer rows with their values."""
    rows: list[set[str]] = []
    shared = Counter[str]()
    for pointer, items in lists(Guide.of(schema), data):
        groups = Counter(map(loose_key, items))
        examples = {loose_key(item): item for item in items if groups[loose_key(item)] > 1}
        rows = rows or (rows_of(content) if examples else [])
        for key, item in examples.items():
            count = count_matching_rows(words_of(item), rows)
            shared[pointer] += groups[key] if 0 < count < groups[key] else 0
    if shared := +shared:
        places = joined_pointers([*shared])
        detail = f"{shared.total()} items are equal to others, and have fewer rows in the document: {places}."
        context.warn(REPEATED, detail)


def count_matching_rows(wanted: set[str], rows: list[set[str]]) -> int:
    """Return the number of rows that contain the most of these words."""
    counts = Counter(len(wanted & row) for row in rows)
    maximum = max(counts, default=0)
    return counts[maximum] if maximum >= MIN_WORDS else 0


def rows_of(content: str) -> list[set[str]]:
    return [set(words(content[start:end])) for start, end, _ in units_of(content)]


def words_of(item: Any) -> set[str]:
    return {word for _, inside in scalars(item) if is_text(inside) for word in words(str(inside))}


def pointers(items: list[Item]) -> str:
    return joined_pointers([f"{pointer}/{at}" for pointer, at in items])
