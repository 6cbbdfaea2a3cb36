from rules.models.rule import Mode, Rule, RuleVersion

__all__ = ["Mode", "Rule", "RuleVersion"]
