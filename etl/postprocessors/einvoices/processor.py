"""Post-processor that returns e-invoices exactly as the sender wrote them.

The language model extracts the data of documents without an e-invoice.
"""

from dataclasses import replace
from typing import Any, ClassVar

from etl.core.errors import NoEInvoice, SchemaInvalid
from etl.core.stage_context import StageContext
from etl.postprocessors.base import PostProcessor, Processed
from etl.postprocessors.llm import Llm
from etl.providers.base import OCRResult
from rules.library import requirements
from rules.library.content import RuleContent
from rules.schema import json_schema

EINVOICE, MODEL = "einvoice", "model"


class EInvoices(PostProcessor):
    """Post-processor for e-invoices. For other documents, the model's result has the same schema."""

    mode: ClassVar[str] = "einvoice"
    asks_model: ClassVar[bool] = True

    def __init__(self) -> None:
        self.llm = Llm()

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        context.check()
        if ocr.einvoice is None:
            return self.by_model(ocr, rule, context=context)
        if json_schema.errors(rule.json_schema or {}, ocr.einvoice):
            raise SchemaInvalid("The e-invoice does not match the rule's schema. Use the schema of the system rule.")
        context.progress(1, 1)
        return Processed(data=ocr.einvoice, source=EINVOICE)

    def by_model(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        if not requirements.has_model():
            raise NoEInvoice
        done = self.llm.process(ocr, rule, context=context)
        return replace(done, data=without_absent(done.data), source=MODEL)


def without_absent(value: Any) -> Any:
    """Return a model's data without nulls, which mean that the invoice does not have a term."""
    if isinstance(value, dict):
        kept = {name: without_absent(each) for name, each in value.items() if each is not None}
        return {name: each for name, each in kept.items() if each != {}}
    if isinstance(value, list):
        return [without_absent(each) for each in value if each is not None]
    return value
