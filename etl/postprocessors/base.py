"""Base class of post-processors, which turn Markdown into JSON by a rule. Register a new one in ETL_POSTPROCESSORS."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.providers.base import OCRResult
from rules.library.content import RuleContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The output of post-processing.

    `data` matches the rule's schema; it is None if the processor produces no data. Numbers that must keep their exact
    digits have the type `exact_json.Number`. `citations`: for example `{"pointer": "/total", "page": 1, "bbox": None,
    "quote": "Total 12.00", "match": "exact"}`, where the quote was found on that page. `source`: `einvoice` or `model`,
    for a processor with both. Warnings and usage are recorded in the StageContext.
    """

    data: Any = None
    citations: list[dict[str, Any]] = field(default_factory=list)
    strategy: str | None = None
    model: str | None = None
    source: str | None = None


class PostProcessor(ABC):
    """A post-processor. Each worker process creates one instance."""

    mode: ClassVar[str]  # the `postprocess_mode` of rules that use it, which is also its name in ETL_POSTPROCESSORS
    # Whether results include `data` and `citations`, even if they are null and empty.
    gives_data: ClassVar[bool] = True
    # Whether it calls a language model. If so, test_processors.py tests it too.
    asks_model: ClassVar[bool] = False

    @abstractmethod
    def process(self, ocr: OCRResult, rule: RuleContent, *, context: StageContext) -> Processed:
        """Return the result. Raises EtlError and the errors of `context.check()`."""
