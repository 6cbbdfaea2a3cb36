"""Base class of strategies: how a document is presented to a model. Register a new one in ETL_STRATEGIES."""

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
    `seen`: the pages that the model has read as images, so that values may be on them and not in the text."""

    answer: ParsedResponse
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: frozenset[int] = frozenset()


class Strategy(ABC):
    """A strategy has no state: one object may process several documents concurrently."""

    name: ClassVar[str]
    # Whether the model is shown the images of pages. Without them, another strategy reads the text.
    reads_images: ClassVar[bool] = False

    @abstractmethod
    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        """Return data that matches the rule's schema. Raises an EtlError, and the exceptions of `context.check()`. If a
        piece fails, the document fails."""


def as_json(data: Any) -> str:
    """Return data as text for a prompt."""
    return exact_json.dumps(data, indent=True).decode()
