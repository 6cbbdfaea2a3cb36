from rules.models.rule import LLM, WITH_SCHEMA, Rule, RuleVersion
from rules.models.usage import RuleUsage

__all__ = ["LLM", "WITH_SCHEMA", "Rule", "RuleUsage", "RuleVersion"]
