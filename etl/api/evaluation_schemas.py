"""Types of response bodies about samples and evaluations of rules."""

from datetime import datetime
from typing import Annotated, Any, TypedDict

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.response_schemas import choices
from etl.models.evaluation import EvaluationStatus
from etl.pipeline.schemas import TrialUsage

ACCURACY = "Share of correct values, from 0 to 1."
CHANGE = "b minus a."


@extend_schema_field({"description": "The data that the rule should extract."})
class ExpectedField(serializers.JSONField):
    pass


class Sample(TypedDict):
    """A document with the data that a rule should extract from it."""

    sample_id: int
    task_id: int
    filename: str
    expected: Annotated[Any, ExpectedField]
    created_at: datetime


class EvaluationFailure(TypedDict):
    code: str
    detail: str


class Evaluation(TypedDict):
    """A run of a version of a rule on the rule's samples."""

    number: Annotated[int, "Number of the evaluation, from 1 for each rule."]
    status: Annotated[str, choices(EvaluationStatus)]
    version: Annotated[int, "Version of the rule."]
    samples: Annotated[int, "Number of samples at the start."]
    ended: Annotated[int, "Number of samples that were evaluated and still exist."]
    failed: Annotated[int, "Number of ended samples that failed. All of their values count as wrong."]
    accuracy: Annotated[float | None, f"{ACCURACY} Null unless `status` is `completed`."]
    fields: Annotated[dict[str, float], "Accuracy by field: JSON Pointers with `*` for the positions of lists."]
    usage: Annotated[TrialUsage, "Usage of the model calls of all samples."]
    duration_ms: Annotated[int, "Sum of the processing times of the samples."]
    error: Annotated[EvaluationFailure | None, "Set if `status` is `failed`."]
    created_at: datetime
    ended_at: datetime | None


class FieldComparison(TypedDict):
    pointer: str
    a: float | None
    b: float | None
    change: Annotated[float | None, CHANGE]


class SampleComparison(TypedDict):
    sample_id: int
    task_id: int
    a: float | None
    b: float | None
    change: Annotated[float | None, CHANGE]


class EvaluationComparison(TypedDict):
    """Two evaluations of a rule."""

    a: Evaluation
    b: Evaluation
    change: Annotated[float | None, "Accuracy of b minus accuracy of a."]
    same_samples: Annotated[
        bool, "False if an evaluation has samples that the other one does not have, or that were deleted since."
    ]
    fields: list[FieldComparison]
    samples: list[SampleComparison]
