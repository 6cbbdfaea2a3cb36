from typing import ClassVar

from django.conf import settings

from etl.core.stage_context import StageContext
from etl.postprocessors import splitting
from etl.postprocessors.conversation import Model, Question
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.schemas import relax, strip_annotations
from etl.postprocessors.splitting import Piece
from etl.postprocessors.strategies.base import Strategy, StrategyResult, as_json
from rules.library.content import RuleContent

NOTING = "Take notes of one piece of a long document. Somebody else will put the notes of all pieces into a form."
COMBINING = (
    "Find the values that the JSON Schema below asks for in notes that were taken of a document, piece by piece."
)
HALFWAY = f"{COMBINING} These are the notes of the first pieces; more will follow."
GOING_ON = f"{COMBINING} What the first pieces gave is there in JSON already: keep it, and add what the notes add."


class ChunkedSummarize(Strategy):
    """Notes of each piece, directed by the schema; then one call combines them, or two if they are long."""

    name: ClassVar[str] = "chunked-summarize"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        env = settings.SLUICE
        cut = splitting.split(text, size=env.etl_postprocess_chunk_size_chars, most=env.etl_postprocess_max_chunks)
        total = len(cut) + 1
        notes = []
        for done, piece in enumerate(cut):
            context.progress(done, total)
            notes.append(take_notes(piece, len(cut), rule, model=model))
        context.progress(len(cut), total)
        found = combine(notes, rule, model=model)
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


def combine(notes: list[str], rule: RuleContent, *, model: Model) -> StrategyResult:
    """Request the data in one call, or in two if the notes are too long for one."""
    schema = rule.json_schema or {}
    most = settings.SLUICE.etl_postprocess_chunk_threshold_chars
    if sum(map(len, notes)) <= most or len(notes) == 1:
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
            wants_evidence=False,
        )
        data, task = "\n\n".join([f"So far:\n{as_json(model.ask(begun).data)}", *rest]), GOING_ON
    question = Question(
        label="combine",
        task=task,
        about="notes that were taken of a document",
        data=data,
        schema=schema,
        checked=schema,
        wants_evidence=True,
    )
    return StrategyResult(answer=model.ask(question))


def halves(notes: list[str]) -> tuple[list[str], list[str]]:
    """Split the notes into two parts of similar length, neither of them empty."""
    middle, first = sum(map(len, notes)) / 2, 1
    while first < len(notes) - 1 and sum(map(len, notes[: first + 1])) <= middle:
        first += 1
    return notes[:first], notes[first:]
