"""How answers look, for the OpenAPI schema alone: nothing here runs when a request is answered.

`etl.api.representation` makes the answers; `tests/integration/test_etl_schema.py` holds them against these shapes.
"""

from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from etl.core import errors
from etl.core.states import Phase, Status

ERROR_CODES = sorted(errors.codes())
OBJECT = {"type": "object", "additionalProperties": True}
CITATIONS = {
    "type": "array",
    "description": "Where in the document the values of `data` stand. Not with `skip`.",
    "items": {
        "type": "object",
        "required": ["pointer", "page", "quote", "match"],
        "properties": {
            "pointer": {"type": "string", "description": "RFC 6901 JSON Pointer into `data`."},
            "page": {"type": "integer", "minimum": 1},
            "quote": {"type": "string"},
            "match": {
                "type": "string",
                "enum": ["exact", "normalized", "numeric", "value"],
                "description": "How sure it is, the surest first; `value` was found without a quote of the model's.",
            },
        },
    },
}


@extend_schema_field({"type": "string", "format": "uri-reference"})
class PathField(serializers.CharField):
    """A path on this server."""


def result_shape(kind: str) -> dict[str, Any]:
    """Return the shape of a result. `kind`: the type of what tells of files and of OCR; a trial has neither."""
    return {
        **OBJECT,
        "required": ["markdown_s3_key", "provider_task_id", "metadata"],
        "properties": {
            "markdown_s3_key": {"type": kind},
            "provider_task_id": {"type": kind},
            "metadata": OBJECT,
            "data": {"description": "What was found; fits the rule's schema. Not with `skip`."},
            "output_s3_key": {"type": kind},
            "citations": CITATIONS,
        },
    }


@extend_schema_field(result_shape("string"))
class ResultField(serializers.JSONField):
    """What post-processing made."""


@extend_schema_field(
    {
        **OBJECT,
        "description": "`pages`, `duration_ms`, `version`, and what else the provider tells. Empty before OCR is done.",
        "properties": {
            "pages": {"type": "integer"},
            "duration_ms": {"type": "integer"},
            "version": {"type": "string"},
        },
    }
)
class OcrField(serializers.JSONField):
    pass


@extend_schema_field(
    {
        **OBJECT,
        "description": "`strategy`, `model`, and `usage` of all attempts together. Empty before it has begun.",
        "properties": {
            "strategy": {"type": ["string", "null"]},
            "model": {"type": ["string", "null"]},
            "usage": {
                **OBJECT,
                "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}},
            },
        },
    }
)
class PostprocessField(serializers.JSONField):
    pass


class AcceptedTask(serializers.Serializer):
    task_id = serializers.IntegerField()
    status = serializers.ChoiceField(choices=[Status.PENDING.value])
    status_url = PathField(help_text="The task.")


class UploadPlace(serializers.Serializer):
    file_key = serializers.CharField(help_text="What to submit afterwards.")
    upload_url = serializers.URLField(help_text="Good for fifteen minutes.")
    method = serializers.ChoiceField(choices=["PUT"])
    headers = serializers.DictField(child=serializers.CharField(), help_text="To be sent with the bytes.")
    expires_at = serializers.DateTimeField(help_text="Of the URL; what was put there waits for a day.")


class StageRuns(serializers.Serializer):
    """Runs of each stage, the first included."""

    ocr = serializers.IntegerField()
    postprocess = serializers.IntegerField()


class Warning(serializers.Serializer):  # noqa: A001 - the contract's word
    code = serializers.CharField()
    detail = serializers.CharField()
    page = serializers.IntegerField(required=False, help_text="From 1.")


class TaskMetadata(serializers.Serializer):
    attempts = StageRuns()
    artifact_mineru_markdown_key = serializers.CharField(
        allow_null=True, help_text="Of the Markdown in the bucket, whichever provider made it."
    )
    provider = serializers.CharField(allow_null=True)
    provider_task_id = serializers.CharField(allow_null=True)
    ocr = OcrField()
    postprocess = PostprocessField()
    warnings = Warning(many=True)


class TaskFailure(serializers.Serializer):
    code = serializers.ChoiceField(choices=ERROR_CODES)
    stage = serializers.ChoiceField(choices=Phase.choices)
    detail = serializers.CharField()
    retryable = serializers.BooleanField(help_text="Whether the same may well succeed when it is retried.")


class TaskSummary(serializers.Serializer):
    task_id = serializers.IntegerField()
    status = serializers.ChoiceField(choices=Status.choices)
    phase = serializers.ChoiceField(choices=Phase.choices)
    progress = serializers.IntegerField(min_value=0, max_value=100, help_text="Percent.")
    filename = serializers.CharField()
    rule_id = serializers.IntegerField()
    rule_version = serializers.IntegerField(help_text="The one that the task is pinned to.")
    error = TaskFailure(allow_null=True, help_text="When it failed.")
    metadata = TaskMetadata()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class Task(TaskSummary):
    result = ResultField(allow_null=True, help_text="When it is completed.")


class CancelledTask(serializers.Serializer):
    task_id = serializers.IntegerField()
    status = serializers.ChoiceField(choices=[Status.CANCELLED.value])


# ---- A rule that is tried -------------------------------------------------------------------------------------------


@extend_schema_field(result_shape("null"))
class TrialResultField(serializers.JSONField):
    """What a task's `result` would hold; null where that is about files."""


class TrialUsage(serializers.Serializer):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    calls = serializers.IntegerField()


class TrialPassed(serializers.Serializer):
    ok = serializers.BooleanField(help_text="true")
    result = TrialResultField()
    usage = TrialUsage()
    warnings = Warning(many=True)


class TrialFailed(serializers.Serializer):
    ok = serializers.BooleanField(help_text="false")
    error = TaskFailure(help_text="What a task would end with.")
    usage = TrialUsage()
    warnings = Warning(many=True)


RULE_TRIAL = PolymorphicProxySerializer(
    component_name="RuleTrial", serializers=[TrialPassed, TrialFailed], resource_type_field_name=None
)
