"""An added processor: a class, and `PATH` in ETL_POSTPROCESSORS. It calls no model."""

from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors.base import PostProcessor, Processed
from etl.providers.base import OCRResult
from rules.library.content import RuleContent

MODE = "count-words"
PATH = "tests.integration.words.Words"


class Words(PostProcessor):
    """Counts the words of each page, or the occurrences of one word if the prompt is one; null for none."""

    mode: ClassVar[str] = MODE

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        counts: list[Any] = []
        for page in ocr.pages:
            words = ocr.markdown[page.start : page.end].split()
            counts.append(sum(word == (rule.system_prompt or word) for word in words))
            context.progress(page.number, len(ocr.pages))
        return Processed(data={"words": counts} if any(counts) else None)
