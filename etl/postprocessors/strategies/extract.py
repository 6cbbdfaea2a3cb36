from typing import Any, ClassVar

from django.conf import settings

from etl.core.stage_context import StageContext
from etl.postprocessors import splitting
from etl.postprocessors.conversation import Model, Question, named
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.merge import Merged, merge
from etl.postprocessors.responses import ParsedResponse, scalars
from etl.postprocessors.schemas import Schema, relax, strip_annotations
from etl.postprocessors.splitting import Piece
from etl.postprocessors.strategies.base import Strategy, StrategyResult, as_json
from rules.library.content import RuleContent
from rules.schema import json_schema

EXTRACTING = """\
Find the values that the JSON Schema below asks for in one piece of a long document. Most of them will be in other \
pieces: what is not in this one is null, or left out, and lists are empty. An answer without any value is a good one."""
CORRECTING = """\
These values were taken from the pieces of a document and put together, and do not fit the JSON Schema below. Bring \
them into its form. Every value that you give must be one of these, in the form that the schema wants. If what the \
schema requires is not among them, leave it out."""
MAX_CONFLICTS = 20
MAX_COMPLAINTS = 20


class ChunkedExtract(Strategy):
    """The data of each piece, merged by the schema. If the result violates the schema, one more call corrects it."""

    name: ClassVar[str] = "chunked-extract"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        env = settings.SLUICE
        schema = rule.json_schema or {}
        cut = splitting.split(text, size=env.etl_postprocess_chunk_size_chars, most=env.etl_postprocess_max_chunks)
        loose, checked = relax(schema), relaxed_for_pieces(schema)
        total = len(cut) + 1
        answers = []
        for done, piece in enumerate(cut):
            context.progress(done, total)
            answers.append(extract(piece, len(cut), loose, checked, model=model))
        context.progress(len(cut), total)
        merged = merge(schema, answers)
        report(merged, cut, context=context)
        data = corrected(merged, schema, model=model)
        context.progress(total, total)
        return with_evidence(data, merged, cut)


def extract(piece: Piece, total: int, schema: Schema, checked: Schema, *, model: Model) -> ParsedResponse:
    return model.ask(
        Question(
            label=f"piece-{piece.number}",
            task=EXTRACTING,
            about=piece.about(total),
            data=piece.shown,
            schema=schema,
            checked=checked,
            wants_evidence=True,
            is_lasting=True,
        )
    )


def relaxed_for_pieces(schema: Schema) -> Schema:
    """Return the schema for the data of a piece. A schema near the size limit may exceed it once null is allowed
    everywhere; then only the merged data is checked."""
    made = strip_annotations(relax(schema))
    return {} if json_schema.check(made) else made


def report(merged: Merged, cut: list[Piece], *, context: StageContext) -> None:
    """Warn about the merge's decisions, without values, because warnings are shown where results are not."""
    for pointer, origins in merged.conflicts[:MAX_CONFLICTS]:
        places = ", ".join(cut[origin].pages for origin in origins if origin >= 0)
        detail = f"The pieces of the document disagree about {named([pointer])}: {places}. The first value is used."
        context.warn("merge_conflict", detail, page=cut[origins[0]].first_page)
    if (more := len(merged.conflicts) - MAX_CONFLICTS) > 0:
        context.warn("merge_conflict", f"The pieces of the document disagree about {more} more values.")
    if merged.repeats:
        detail = f"{merged.repeats.total()} repeated items of several pieces are kept once: {named([*merged.repeats])}."
        context.warn("merge_repeats", detail)


def corrected(merged: Merged, schema: Schema, *, model: Model) -> Any:
    """Return the merged data, corrected by a model if it violates the schema. Raises SchemaInvalid."""
    errors = json_schema.errors(schema, merged.data, MAX_COMPLAINTS)
    if not errors:
        return merged.data
    listed = "\n".join(f"- {pointer or 'the whole'}: {words}" for pointer, words in errors)
    question = Question(
        label="mend",
        task=CORRECTING,
        about="values that were taken from a document, and what is wrong with them",
        data=f"The values:\n{as_json(merged.data)}\n\nWhat is wrong:\n{listed}",
        schema=schema,
        checked=schema,
        reasks=1,  # two calls in all
    )
    return model.ask(question).data


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
