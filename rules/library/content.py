"""The content of a rule version, which the catalog passes to the stages of a task."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContent:
    """The content of a rule version.

    `json_schema` is always set for the mode `llm`. If `strategy` is empty, the size of the document determines it.
    `require_complete`: a task fails if pages are missing or uncertain, or if items would be left out.
    """

    rule_id: int
    version: int
    name: str
    mode: str  # one of ETL_POSTPROCESSORS
    strategy: str = ""
    json_schema: dict[str, Any] | None = None
    system_prompt: str = ""
    require_complete: bool = False
