"""Base class of strategies, which present a document to a model. Register a new one in ETL_STRATEGIES."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from config.platform import exact_json
from etl.core.stage_context import StageContext
from etl.postprocessors.conversation import Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.responses import ParsedResponse
from rules.library.content import RuleContent


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """The result of a strategy. `places`: the first and last page of a value's piece, by JSON Pointer, if known.
    `seen`: the pages that the model has read as images. Values from these pages may be missing in the text."""

    answer: ParsedResponse
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: frozenset[int] = frozenset()


class Strategy(ABC):
    """A strategy. It has no state, so one object can process several documents concurrently."""

    name: ClassVar[str]
    # Whether the model is shown page images. For documents without page images, another strategy reads the text.
    reads_images: ClassVar[bool] = False

    @abstractmethod
    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        """Return data that matches the rule's schema. Raises an EtlError, also if only one piece fails, and the errors
        of `context.check()`."""


def as_json(data: Any) -> str:
    """Return data as text for a prompt."""
    return exact_json.dumps(data, indent=True).decode()
