from etl.models.deletion import Deletion
from etl.models.quota import Allowance, RuleAllowance, RuleTokens, Upload, Usage
from etl.models.task import Task
from etl.models.usage import ModelUsage

__all__ = ["Allowance", "Deletion", "ModelUsage", "RuleAllowance", "RuleTokens", "Task", "Upload", "Usage"]
