"""What a rule says, in one version: the shape that crosses from the catalogue to the stages."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContent:
    """One version of a rule. `json_schema` is None only where the mode is `skip`; `strategy` is "" for: by size."""

    rule_id: int
    version: int
    name: str
    mode: str  # llm | skip
    strategy: str = ""
    json_schema: dict[str, Any] | None = None
    system_prompt: str = ""
