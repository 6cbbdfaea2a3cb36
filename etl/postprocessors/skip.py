from typing import ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors.base import PostProcessor, Processed
from etl.providers.base import OCRResult
from rules.library.content import RuleContent


class Skip(PostProcessor):
    """Post-processor for rules whose result is the Markdown, without a model call."""

    mode: ClassVar[str] = "skip"
    gives_data: ClassVar[bool] = False

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        context.check()
        context.progress(1, 1)
        return Processed()
