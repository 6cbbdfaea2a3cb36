from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors import conflicts, corrections, missing, repeats
from etl.postprocessors.conversation import Draft, Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.merge import Conflict, Merged, merge
from etl.postprocessors.repair import (
    Mismatches,
    complaints,
    invalid_parts,
    is_missing_member,
    mismatches,
    remove_invalid_items,
)
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Guide, Schema, checked_for_pieces, for_pieces
from etl.postprocessors.splitting import Piece
from etl.postprocessors.strategies.base import Strategy, StrategyResult, as_json
from etl.postprocessors.strategies.pieces import call_for_each, split
from etl.postprocessors.validation import (
    CheckedResponse,
    Question,
    joined_pointers,
    rejected_items_text,
    schema_error,
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


class ChunkedExtract(Strategy):
    """Strategy that extracts data from each piece and merges it by the schema.

    Further questions to the model resolve conflicting values, search for missing required values, and correct values
    outside of lists that do not match the schema.
    """

    name: ClassVar[str] = "chunked-extract"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        schema = rule.json_schema or {}
        pieces = split(text)
        shown, checked = for_pieces(schema), checked_for_pieces(schema)
        total = len(pieces) + 1

        def extract(piece: Piece, part: StageContext) -> Draft:
            return model.with_context(part).draft(question_about(piece, len(pieces), shown, checked))

        drafts = call_for_each(pieces, extract, steps=total, context=context)
        answers = corrections.correct_drafts(model, drafts, context=context)
        answers = repeats.without_context_items(answers, pieces, schema, context=context)
        merged = merge(schema, answers)
        choices = conflicts.resolve(merged, pieces, schema, model=model)
        report(merged, choices, pieces, context=context)
        merged = merge(schema, answers, choices=choices) if choices else merged
        missing.add_missing_values(merged, pieces, schema, model=model)
        data = fitted(merged, pieces, rule, model=model, context=context)
        context.progress(total, total)
        return with_evidence(data, merged, pieces)


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


def report(merged: Merged, choices: dict[str, int] | None, pieces: list[Piece], *, context: StageContext) -> None:
    """Warn about the decisions of the merge. `choices`: those of the model, or None if it was not asked.

    Warnings contain no values, because users without access to the result may see them.
    """
    for conflict in merged.conflicts[: conflicts.MAX_CONFLICTS]:
        choice = choice_text(conflict, choices)
        places = conflicts.pages_of(conflict, pieces)
        detail = f"The pieces of the document disagree about {joined_pointers([conflict.pointer])}: {places}. {choice}"
        context.warn("merge_conflict", detail, page=pieces[max(conflict.origins[0], 0)].first_page)
    if (more := len(merged.conflicts) - conflicts.MAX_CONFLICTS) > 0:
        detail = f"The pieces of the document disagree about {more} more values. The first ones are used."
        context.warn("merge_conflict", detail)
    if repeats := +merged.repeats:
        detail = f"{repeats.total()} items that equal another one were left out: {joined_pointers([*repeats])}."
        context.warn("merge_repeats", detail)


def choice_text(conflict: Conflict, choices: dict[str, int] | None) -> str:
    if choices is None:
        return "The first is used."
    text = "The model chose one." if conflict.pointer in choices else "The model chose none, so the first is used."
    if (count := len(conflict.candidates)) > (used := len(conflicts.shown(conflict))):
        text += f" It was shown the first and the last ones, {used} of {count}."
    return text


def fitted(merged: Merged, pieces: list[Piece], rule: RuleContent, *, model: Model, context: StageContext) -> Any:
    """Return the merged data without invalid items, and with other invalid values corrected by the model.

    Raises SchemaInvalid. If required values are missing and everything else is valid, the model is not asked, because
    it could only invent them.
    """
    schema = rule.json_schema or {}
    guide = Guide.of(schema)
    found = mismatches(schema, merged.data)
    if found.items:
        if rule.require_complete:
            raise with_answer(schema_error(found.listed), merged.data)
        origins = {leaf.origin for pointer, leaf in merged.leaves.items() if found.has_item(pointer)}
        warn_of_rejected(found, [pieces[origin] for origin in sorted(origins) if origin >= 0], context=context)
        merged.data, merged.leaves = remove_invalid_items(guide, merged.data, merged.leaves, found)
        found = mismatches(schema, merged.data)
    if not found:
        return merged.data
    if all(map(is_missing_member, found.listed)):
        raise with_answer(schema_error(found.listed), merged.data)
    lines = ["The values:", as_json(invalid_parts(guide, merged.data, found)), "", "What is wrong:"]
    question = Question(
        label="repair",
        task=CORRECTING,
        about="values that were taken from a document, and what is wrong with them",
        data="\n".join([*lines, *(f"- {each}" for each in complaints(found))]),
        schema=schema,
        checked=schema,
        reasks=1,  # two calls in total
    )
    current = CheckedResponse(response=ParsedResponse(data=merged.data), mismatches=found)
    return model.ask(question, current=current).data


def warn_of_rejected(found: Mismatches, pieces: list[Piece], *, context: StageContext) -> None:
    pages = f" ({', '.join(piece.pages for piece in pieces)})" if pieces else ""
    context.warn("items_rejected", rejected_items_text(found, pages), page=pieces[0].first_page if pieces else None)


def with_evidence(data: Any, merged: Merged, pieces: list[Piece]) -> StrategyResult:
    """Return the data with the evidence and pages of the values that have not changed since the merge."""
    kept = {
        pointer: merged.leaves[pointer]
        for pointer, value in scalars(data)
        if pointer in merged.leaves and merged.leaves[pointer].value == value
    }
    places = {
        pointer: (pieces[leaf.origin].first_page, pieces[leaf.origin].last_page)
        for pointer, leaf in kept.items()
        if leaf.origin >= 0
    }
    evidence = {pointer: leaf.evidence for pointer, leaf in kept.items() if leaf.evidence}
    return StrategyResult(answer=ParsedResponse(data=data, evidence=evidence), places=places)
