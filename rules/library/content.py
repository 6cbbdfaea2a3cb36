"""What a rule says, in one version: the shape that crosses from the catalogue to the stages."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContent:
    """One version of a rule. `json_schema` may be None, but not with `llm`; `strategy` is "" for: by size."""

    rule_id: int
    version: int
    name: str
    mode: str  # one of ETL_POSTPROCESSORS
    strategy: str = ""
    json_schema: dict[str, Any] | None = None
    system_prompt: str = ""
