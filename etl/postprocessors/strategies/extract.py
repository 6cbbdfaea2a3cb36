from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors import conflicts, corrections, missing, repeats
from etl.postprocessors.conversation import Draft, Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.merge import Merged, merge
from etl.postprocessors.repair import Mismatches, complaints, mismatches, reduced, rejected
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema, checked_for_pieces, for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.strategies.base import Strategy, StrategyResult, as_json
from etl.postprocessors.strategies.pieces import call_for_each, split
from etl.postprocessors.validation import (
    InvalidReply,
    Question,
    Standing,
    invalid,
    is_missing,
    named,
    rejection,
    with_answer,
)
from rules.library.content import RuleContent

EXTRACTING = """\
Find the values that the JSON Schema above asks for in one piece of a long document. Most of them are in other pieces: \
an answer without any value is a good one.

Lines marked as for reading only belong to other pieces. Use them only for the names of columns and groups, and to \
complete an item that begins in this piece. Leave out items that begin in them."""
CORRECTING = """\
These values were taken from the pieces of a document and put together, and do not fit the JSON Schema above. Bring \
them into its form. Every value that you give must be one of these, in the form that the schema wants. If what the \
schema requires is not among them, leave it out."""
MAX_CONFLICTS = 20


class ChunkedExtract(Strategy):
    """The data of each piece, merged by the schema. The model is asked once more about values that differ, once
    about required values that no piece gave, and once about values outside of lists that do not fit the schema."""

    name: ClassVar[str] = "chunked-extract"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        schema = rule.json_schema or {}
        cut = split(text)
        shown, checked = for_pieces(schema), checked_for_pieces(schema)
        total = len(cut) + 1

        def extract(piece: Piece, part: StageContext) -> Draft:
            return model.within(part).draft(question_about(piece, len(cut), shown, checked))

        drafts = call_for_each(cut, extract, steps=total, context=context)
        answers = corrections.corrected(model, drafts, context=context)
        answers = repeats.without_foreign(answers, cut, schema, context=context)
        merged = merge(schema, answers)
        choices = conflicts.resolve(merged, cut, schema, model=model)
        report(merged, choices, cut, context=context)
        merged = merge(schema, answers, choices=choices) if choices else merged
        missing.find(merged, cut, schema, model=model)
        data = fitted(merged, cut, rule, model=model, context=context)
        context.progress(total, total)
        return with_evidence(data, merged, cut)


def question_about(piece: Piece, total: int, schema: Schema, checked: Schema) -> Question:
    return Question(
        label=f"piece-{piece.number}",
        task=EXTRACTING,
        about=piece.about(total),
        data=piece.shown,
        schema=schema,
        checked=checked,
        wants_evidence=True,
        is_lasting=True,
        pages=(piece.first_page, piece.last_page),
    )


def report(merged: Merged, choices: dict[str, int], cut: list[Piece], *, context: StageContext) -> None:
    """Warn about the merge's decisions, without values, because warnings are shown where results are not."""
    for conflict in merged.conflicts[:MAX_CONFLICTS]:
        choice = (
            "The model chose one." if conflict.pointer in choices else "The model chose none, so the first is used."
        )
        if (count := len(conflict.candidates)) > (used := len(conflicts.shown(conflict))):
            choice += f" It was shown the first and the last ones, {used} of {count}."
        places = conflicts.pages_of(conflict, cut)
        detail = f"The pieces of the document disagree about {named([conflict.pointer])}: {places}. {choice}"
        context.warn("merge_conflict", detail, page=cut[max(conflict.origins[0], 0)].first_page)
    if (more := len(merged.conflicts) - MAX_CONFLICTS) > 0:
        detail = f"The pieces of the document disagree about {more} more values. The first ones are used."
        context.warn("merge_conflict", detail)
    if repeats := +merged.repeats:
        detail = f"{repeats.total()} items that equal another one were left out: {named([*repeats])}."
        context.warn("merge_repeats", detail)


def fitted(merged: Merged, cut: list[Piece], rule: RuleContent, *, model: Model, context: StageContext) -> Any:
    """Return the merged data without items that do not fit the schema, corrected by the model if the rest does not.

    Raises SchemaInvalid. If only required values are missing, the model is not asked: it could only invent them.
    """
    schema = rule.json_schema or {}
    guide = Guide.of(schema)
    found = mismatches(schema, merged.data)
    if found.items:
        if rule.require_complete:
            raise with_answer(invalid(InvalidReply([], found.listed)), merged.data)
        origins = {leaf.origin for pointer, leaf in merged.leaves.items() if found.has_item(pointer)}
        warn_of_rejected(found, [cut[origin] for origin in sorted(origins) if origin >= 0], context=context)
        merged.data, merged.leaves = rejected(guide, merged.data, merged.leaves, found)
        found = mismatches(schema, merged.data)
    if not found:
        return merged.data
    if all(map(is_missing, found.listed)):
        raise with_answer(invalid(InvalidReply([], found.listed)), merged.data)
    lines = ["The values:", as_json(reduced(guide, merged.data, found)), "", "What is wrong:"]
    question = Question(
        label="repair",
        task=CORRECTING,
        about="values that were taken from a document, and what is wrong with them",
        data="\n".join([*lines, *(f"- {each}" for each in complaints(found))]),
        schema=schema,
        checked=schema,
        reasks=1,  # two calls in all
    )
    standing = Standing(response=ParsedResponse(data=merged.data), mismatches=found)
    return model.ask(question, standing=standing).data


def warn_of_rejected(found: Mismatches, pieces: list[Piece], *, context: StageContext) -> None:
    pages = f" ({', '.join(piece.pages for piece in pieces)})" if pieces else ""
    context.warn("items_rejected", rejection(found, pages), page=pieces[0].first_page if pieces else None)


def with_evidence(data: Any, merged: Merged, cut: list[Piece]) -> StrategyResult:
    """Return the data with evidence and pages for values that are unchanged since the merge."""
    kept = {
        pointer: merged.leaves[pointer]
        for pointer, value in scalars(data)
        if pointer in merged.leaves and merged.leaves[pointer].value == value
    }
    places = {
        pointer: (cut[leaf.origin].first_page, cut[leaf.origin].last_page)
        for pointer, leaf in kept.items()
        if leaf.origin >= 0
    }
    evidence = {pointer: leaf.evidence for pointer, leaf in kept.items() if leaf.evidence}
    return StrategyResult(answer=ParsedResponse(data=data, evidence=evidence), places=places)
