from etl.models.batch import DocumentBatch
from etl.models.deletion import Deletion
from etl.models.evaluation import Evaluation, Sample, SampleRun
from etl.models.quota import Allowance, RuleAllowance, RuleTokens, Upload, Usage
from etl.models.review import ReviewEvent
from etl.models.task import Task
from etl.models.usage import ModelUsage

__all__ = [
    "Allowance",
    "Deletion",
    "DocumentBatch",
    "Evaluation",
    "ModelUsage",
    "ReviewEvent",
    "RuleAllowance",
    "RuleTokens",
    "Sample",
    "SampleRun",
    "Task",
    "Upload",
    "Usage",
]
