from rules.models.rule import LLM, Rule, RuleVersion
from rules.models.usage import RuleUsage

__all__ = ["LLM", "Rule", "RuleUsage", "RuleVersion"]
