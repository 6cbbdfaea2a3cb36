"""A custom post-processor that calls no model. Tests add `PATH` to ETL_POSTPROCESSORS."""

from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors.base import PostProcessor, Processed
from etl.providers.base import OCRResult
from rules.library.content import RuleContent

MODE = "count-words"
PATH = "tests.integration.words.Words"


class Words(PostProcessor):
    """A post-processor that counts the words of each page or, with a prompt, only those that equal the prompt.

    The data is null if all counts are 0.
    """

    mode: ClassVar[str] = MODE

    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        counts: list[Any] = []
        for page in ocr.pages:
            words = ocr.markdown[page.start : page.end].split()
            counts.append(sum(word == (rule.system_prompt or word) for word in words))
            context.progress(page.number, len(ocr.pages))
        return Processed(data={"words": counts} if any(counts) else None)
