from typing import ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors import corrections
from etl.postprocessors.conversation import Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.splitting import page_range_text
from etl.postprocessors.strategies.base import Strategy, StrategyResult
from etl.postprocessors.validation import Question
from rules.library.content import RuleContent

TASK = "Find the values that the JSON Schema above asks for in a document."


class DirectJson(Strategy):
    """Strategy that sends the whole document in one call."""

    name: ClassVar[str] = "direct-json"

    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        schema = rule.json_schema or {}
        context.progress(0, 1)
        draft = model.draft(
            Question(
                label="direct",
                task=TASK,
                about=f"the text of a document, {page_range_text(text.pages[0].number, text.pages[-1].number)}",
                data=text.content,
                schema=schema,
                checked=schema,
                wants_evidence=True,
                pages=(text.pages[0].number, text.pages[-1].number),
            )
        )
        [answer] = corrections.correct_drafts(model, [draft], context=context)
        context.progress(1, 1)
        return StrategyResult(answer=answer)
