"""Post-processors: from Markdown and a rule to JSON. A new one is a class and an entry in ETL_POSTPROCESSORS."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.providers.base import OCRResult
from rules.library.content import RuleContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The output of post-processing. `data` fits the rule's schema; None where the processor gives none. Numbers whose
    digits matter are of type `exact_json.Number`.

    A citation: `{"pointer": "/total", "page": 1, "quote": "Total 12.00", "match": "exact"}`; the quote was found on
    that page. Warnings and usage are in the StageContext. `source`: `einvoice` or `model`, if it can be
    both.
    """

    data: Any = None
    citations: list[dict[str, Any]] = field(default_factory=list)
    strategy: str | None = None
    model: str | None = None
    source: str | None = None


class PostProcessor(ABC):
    """Made once in each worker process."""

    mode: ClassVar[str]  # the rule's postprocess_mode that it serves: its name in ETL_POSTPROCESSORS
    # Whether results have `data` and `citations`, also when they are null and empty.
    gives_data: ClassVar[bool] = True
    # Whether it calls a language model. Then the tests for such processors apply: test_processors.py.
    asks_model: ClassVar[bool] = False

    @abstractmethod
    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        """Return the result. Raises EtlError, and the errors of `context.check()`."""
