from rules.models.rule import LLM, Rule, RuleVersion

__all__ = ["LLM", "Rule", "RuleVersion"]
