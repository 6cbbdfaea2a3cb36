"""The content of one version of a rule, passed from the catalog to the stages."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContent:
    """One version of a rule. `json_schema` is None only without `llm`. An empty `strategy` depends on the size.
    `require_complete`: a task fails if pages were lost or are unsure, or if items would be left out."""

    rule_id: int
    version: int
    name: str
    mode: str  # one of ETL_POSTPROCESSORS
    strategy: str = ""
    json_schema: dict[str, Any] | None = None
    system_prompt: str = ""
    require_complete: bool = False
