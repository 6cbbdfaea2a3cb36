import re
from typing import ClassVar

from django.conf import settings

from etl.core.stage_context import StageContext
from etl.postprocessors.conversation import Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.repair import count_at
from etl.postprocessors.schemas import Guide, pointers_of_lists, relax, strip_annotations
from etl.postprocessors.splitting import Piece
from etl.postprocessors.strategies.base import Strategy, StrategyResult, as_json
from etl.postprocessors.strategies.pieces import call_for_each, split
from etl.postprocessors.validation import Question, joined_pointers
from rules.library.content import RuleContent

NOTING = """\
Take notes of one piece of a long document. The notes of all pieces will be put into a form. Lines that are marked as \
for reading only belong to other pieces: use them only to complete an item that begins in this piece."""
COMBINING = (
    "Find the values that the JSON Schema above asks for in notes that were taken of a document, piece by piece."
)
HALFWAY = f"{COMBINING} These are the notes of the first pieces; more will follow."
GOING_ON = f"{COMBINING} What the first pieces gave is there in JSON already: keep it, and add what the notes add."
COUNT = re.compile(r"^[ \t>*-]*items of `?(/[^\s:`]*|)`?: *([0-9]{1,6})\b", re.MULTILINE | re.IGNORECASE)


class ChunkedSummarize(Strategy):
    """Strategy that takes notes of each piece, as the schema requires, and combines them in one or two calls."""

    name: ClassVar[str] = "chunked-summarize"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        pieces = split(text)
        total = len(pieces) + 1

        def note(piece: Piece, part: StageContext) -> str:
            return take_notes(piece, len(pieces), rule, model=model.with_context(part))

        notes = call_for_each(pieces, note, steps=total, context=context)
        found = combine(notes, rule, model=model, context=context)
        context.progress(total, total)
        return found


def take_notes(piece: Piece, total: int, rule: RuleContent, *, model: Model) -> str:
    schema = rule.json_schema or {}
    question = Question(
        label=f"notes-{piece.number}",
        task=NOTING,
        about=piece.about(total),
        data=piece.shown,
        schema=schema,
        checked=schema,
        is_notes=True,
        is_lasting=True,
    )
    return f"Notes of {piece.pages}:\n{model.ask(question).data}"


def combine(notes: list[str], rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
    """Request the data in one call, or in two if the notes are too long for one. A response must not have fewer items
    than the notes or the previous response."""
    schema = rule.json_schema or {}
    lists = list(pointers_of_lists(Guide.of(schema)))
    min_items = counted(notes, lists)
    if missing := joined_pointers([pointer for pointer in lists if pointer not in min_items]):
        detail = f"The notes do not count the items of {missing}, so items that were lost would not be noticed."
        context.warn("items_uncounted", detail)
    limit = settings.SLUICE.etl_postprocess_chunk_threshold_chars
    if sum(map(len, notes)) <= limit or len(notes) == 1:
        data, task = "\n\n".join(notes), COMBINING
    else:
        first, rest = halves(notes)
        loose = relax(schema)
        begun = Question(
            label="combine-1",
            task=HALFWAY,
            about="notes of the first pieces of a document",
            data="\n\n".join(first),
            schema=loose,
            checked=strip_annotations(loose),
            min_items=counted(first, lists),
        )
        so_far = model.ask(begun).data
        before = {pointer: count_at(so_far, pointer) for pointer in lists}
        min_items = {pointer: max(count, min_items.get(pointer, 0)) for pointer, count in before.items()}
        data, task = "\n\n".join([f"So far:\n{as_json(so_far)}", *rest]), GOING_ON
    question = Question(
        label="combine",
        task=task,
        about="notes that were taken of a document",
        data=data,
        schema=schema,
        checked=schema,
        wants_evidence=True,
        min_items=min_items,
    )
    return StrategyResult(answer=model.ask(question))


def counted(notes: list[str], lists: list[str]) -> dict[str, int]:
    """Return the number of items of each list that all notes count. `lists`: the pointers of the lists."""
    counts = [dict(COUNT.findall(each)) for each in notes]
    return {
        pointer: sum(int(each[pointer]) for each in counts)
        for pointer in lists
        if all(pointer in each for each in counts)
    }


def halves(notes: list[str]) -> tuple[list[str], list[str]]:
    """Split the notes into two nonempty parts of similar length."""
    middle, first = sum(map(len, notes)) / 2, 1
    while first < len(notes) - 1 and sum(map(len, notes[: first + 1])) <= middle:
        first += 1
    return notes[:first], notes[first:]
