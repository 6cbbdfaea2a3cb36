"""Post-processor that extracts JSON from Markdown with a language model."""

from dataclasses import replace
from typing import Any, ClassVar

import structlog
from django.conf import settings
from django.utils.module_loading import import_string

from etl.core.errors import DocumentTooLong, EmptyDocument, LlmForbidden, SchemaInvalid
from etl.core.stage_context import StageContext
from etl.postprocessors import document_text, repeats, sums
from etl.postprocessors.base import PostProcessor, Processed
from etl.postprocessors.citations.citing import cite
from etl.postprocessors.conversation import Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.repair import MAX_ERRORS
from etl.postprocessors.responses import scalars
from etl.postprocessors.schemas import Schema, without_anchors
from etl.postprocessors.strategies.base import Strategy, StrategyResult
from etl.postprocessors.validation import schema_error, with_answer
from etl.providers.base import OCRResult
from rules.library.content import RuleContent
from rules.schema import json_schema
from rules.schema.json_schema import SchemaRefused

log = structlog.get_logger(__name__)

DIRECT = "direct-json"


class Llm(PostProcessor):
    """Extraction with the configured model. The rule or the document's size determines the strategy.

    With every strategy, the result is checked against the rule's schema. The object has no state, so it can process
    several documents concurrently.
    """

    mode: ClassVar[str] = "llm"
    asks_model: ClassVar[bool] = True

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        try:
            if rule.json_schema:
                rule = replace(rule, json_schema=without_anchors(rule.json_schema))
            return self.extract(ocr, rule, context=context)
        except SchemaRefused:
            raise SchemaInvalid("The rule's schema cannot be used. Save the rule again.") from None

    def extract(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        text = document_text.clean(ocr)
        name = reader = rule.strategy or strategy_name_by_size(len(ocr.markdown))
        if reads_images(name) and context.page_images is None:
            context.warn("no_page_images", "The document has no page images, so its text was read instead.")
            reader = strategy_name_by_size(len(ocr.markdown))
        if not (text.pages or reads_images(reader)):
            raise EmptyDocument
        document_text.warn_of_removed_text(ocr, context=context)
        document_text.warn_of_prompt_injection(ocr, context=context)
        model = Model(rule, context=context)
        used, found = run(reader, text, rule, model=model, context=context)
        name = context.strategy = used if reader == name else name
        data, schema = found.answer.data, rule.json_schema or {}
        check(data, schema, context=context)
        sums.check(data, schema, context=context)
        if not found.seen:
            repeats.warn_of_shared_rows(data, schema, text.content, context=context)
        cited = cite(found, schema=schema, text=text, lines=ocr.lines, context=context)
        return Processed(data=data, citations=cited, strategy=name, model=model.endpoint.model)


def strategy_name_by_size(size: int) -> str:
    env = settings.SLUICE
    return env.etl_postprocess_long_strategy if size > env.etl_postprocess_chunk_threshold_chars else DIRECT


def reads_images(name: str) -> bool:
    return name in settings.ETL_STRATEGIES and strategy(name).reads_images


def run(
    name: str, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext
) -> tuple[str, StrategyResult]:
    """Run a strategy, and return its name and its result. If the document is too long for the model and the rule names
    no strategy, run the strategy for long documents instead."""
    context.strategy, context.model = name, model.endpoint.model
    try:
        return name, strategy(name).run(text, rule, model=model, context=context)
    except DocumentTooLong:
        other = settings.SLUICE.etl_postprocess_long_strategy
        if rule.strategy or name == other:
            raise
    log.info("strategy_changed", strategy=other)
    context.strategy = other
    return other, strategy(other).run(text, rule, model=model, context=context)


def strategy(name: str) -> Strategy:
    try:
        instance: Strategy = import_string(settings.ETL_STRATEGIES[name])()
    except KeyError:
        raise LlmForbidden(f"The strategy {name[:40]} does not exist: see ETL_STRATEGIES.") from None
    return instance


def check(data: Any, schema: Schema, *, context: StageContext) -> None:
    """Raise SchemaInvalid if the data violates the rule's schema. Warn if it has no values."""
    if errors := json_schema.errors(schema, data, MAX_ERRORS):
        raise with_answer(schema_error(errors), data)
    if all(value is None or value == "" for _, value in scalars(data)):
        context.warn("no_values", "No value was found in the document.")
