"""Strategy: how a document is put to a model. A new one is a class, and an entry in ETL_STRATEGIES."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from etl.core.stage_context import StageContext
from etl.postprocessors.conversation import Model
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.responses import ParsedResponse
from rules.library.content import RuleContent


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """What a strategy made of a document. `places`: the first and last page that a value came from, by JSON Pointer,
    where the strategy knows."""

    answer: ParsedResponse
    places: dict[str, tuple[int, int]] = field(default_factory=dict)


class Strategy(ABC):
    """Has no state: one object may serve several documents at once."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, text: DocumentText, rule: RuleContent, *, model: Model, context: StageContext) -> StrategyResult:
        """Return data that fits the rule's schema. Raises an EtlError, and what `context.check()` raises; a piece that
        fails fails it all."""


def as_json(data: Any) -> str:
    """Return data as a model is shown it."""
    return json.dumps(data, ensure_ascii=False, indent=1)
