from etl.models.deletion import Deletion
from etl.models.evaluation import Evaluation, Sample, SampleRun
from etl.models.quota import Allowance, Upload, Usage
from etl.models.task import Task
from etl.models.usage import ModelUsage

__all__ = ["Allowance", "Deletion", "Evaluation", "ModelUsage", "Sample", "SampleRun", "Task", "Upload", "Usage"]
