"""How answers look, for the OpenAPI schema alone: nothing here runs when a request is answered.

`etl.representation` makes the answers; `tests/integration/test_etl_schema.py` holds them against these shapes.
"""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema_field
from rest_framework import serializers

from config.api.problems import CONTENT_TYPE, Problem
from etl import errors
from etl.states import Phase, Status

TAGS = ["documents"]
ERROR_CODES = sorted(errors.codes())
OBJECT = {"type": "object", "additionalProperties": True}


class UnsupportedMediaType(Problem):
    """The body is neither JSON nor a form with a file."""

    status = 415
    code = "unsupported_media_type"


@extend_schema_field({"type": "string", "format": "uri-reference"})
class PathField(serializers.CharField):
    """A path on this server."""


@extend_schema_field(
    {
        **OBJECT,
        "required": ["markdown_s3_key", "provider_task_id", "metadata"],
        "properties": {
            "markdown_s3_key": {"type": "string"},
            "provider_task_id": {"type": "string"},
            "metadata": OBJECT,
            "data": {"description": "What was found; fits the rule's schema. Not with `skip`."},
            "output_s3_key": {"type": "string"},
            "citations": {"description": "Where in the document each part of `data` stands."},
        },
    }
)
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


# ---- Parameters and headers -----------------------------------------------------------------------------------------

TASK_STATUS = OpenApiParameter("status", enum=Status.values)
WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60, "default": 0},
    description="Seconds to wait for a change, from when the request comes in. The answer comes with the first change, "
    "at once when the task has ended, and earlier than asked for when many wait already.",
)
ETAG = OpenApiParameter("ETag", str, "header", response=[200, 304], required=True, description="Of its content.")
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    "header",
    description="1 to 255 visible ASCII characters, good for as long as the task is kept. A repeat with the same rule "
    "and the same bytes, or the same `file_key`, gets the first answer.",
)
IDEMPOTENCY_REPLAYED = OpenApiParameter(
    "Idempotency-Replayed", str, "header", response=[202], enum=["true"], description="This is an earlier answer."
)


def location(status: int) -> OpenApiParameter:
    return OpenApiParameter(
        "Location", OpenApiTypes.URI_REF, "header", required=True, response=[status], description="The task."
    )


def retry_after(status: int, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(
        "Retry-After",
        int,
        "header",
        required=required,
        response=[status],
        description="Seconds until it is worth asking for the task again; not there once it has ended.",
    )


EVENTS = """Each event has an `id` that grows, and one line of JSON as `data`:

* `snapshot`: the task as `GET /tasks/{task_id}` shows it
* `progress`: `{"status", "phase", "progress"}`
* `status`: the same, with `error` and `at`, when the status has changed; the stream ends after `completed`, `failed` or
  `cancelled`

What changed several times in half a second is told once. A comment comes every ten seconds while nothing happens."""
STREAM = OpenApiExample(
    "The end",
    'id: 1999999\nevent: status\ndata: {"status":"completed","phase":"postprocess","progress":100,"error":null,'
    '"at":"2025-03-01T09:00:04.000000Z"}\n\n',
    response_only=True,
    status_codes=["200"],
    media_type="text/event-stream",
)

# ---- Examples -------------------------------------------------------------------------------------------------------

MARKDOWN_KEY = "etl/tasks/17/ocr-1/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.md"
RUNNING: dict[str, Any] = {
    "task_id": 17,
    "status": "llm_processing",
    "phase": "postprocess",
    "progress": 60,
    "filename": "invoice.pdf",
    "rule_id": 3,
    "rule_version": 2,
    "result": None,
    "error": None,
    "metadata": {
        "attempts": {"ocr": 1, "postprocess": 1},
        "artifact_mineru_markdown_key": MARKDOWN_KEY,
        "provider": "local",
        "provider_task_id": "local-17",
        "ocr": {"pages": 2, "duration_ms": 840, "version": "1.0"},
        "postprocess": {},
        "warnings": [],
    },
    "created_at": "2025-03-01T09:00:00.000000Z",
    "updated_at": "2025-03-01T09:00:02.250000Z",
}
COMPLETED = {
    **RUNNING,
    "status": "completed",
    "progress": 100,
    "result": {
        "markdown_s3_key": MARKDOWN_KEY,
        "provider_task_id": "local-17",
        "metadata": {},
        "data": {"number": "2025-0042", "total": 118.5},
        "output_s3_key": "etl/tasks/17/result-1/output.json",
        "citations": [{"pointer": "/total", "page": 1, "quote": "Total: 118.50", "match": "exact"}],
    },
    "metadata": {
        **RUNNING["metadata"],
        "postprocess": {
            "strategy": "direct-json",
            "model": "a-model",
            "usage": {"prompt_tokens": 812, "completion_tokens": 34, "calls": 1},
        },
    },
    "updated_at": "2025-03-01T09:00:04.000000Z",
}
FAILED = {
    **RUNNING,
    "status": "failed",
    "phase": "ocr",
    "progress": 0,
    "error": {
        "code": "file_encrypted",
        "stage": "ocr",
        "detail": "The file is encrypted. Remove its password and submit it again.",
        "retryable": False,
    },
    "metadata": {
        **RUNNING["metadata"],
        "attempts": {"ocr": 1, "postprocess": 0},
        "artifact_mineru_markdown_key": None,
        "provider": None,
        "provider_task_id": None,
        "ocr": {},
    },
}
TASKS = [
    OpenApiExample("Running", RUNNING, response_only=True),
    OpenApiExample("Completed", COMPLETED, response_only=True),
    OpenApiExample("Failed", FAILED, response_only=True),
]
FILE_KEY = "etl/uploads/4/0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"
SUBMISSIONS = [
    OpenApiExample(
        "Uploaded before", {"file_key": FILE_KEY, "rule_id": 3}, request_only=True, media_type="application/json"
    ),
    OpenApiExample(
        "Accepted",
        {"task_id": 17, "status": "pending", "status_url": "/api/v1/etl/tasks/17"},
        response_only=True,
        status_codes=["202"],
    ),
    OpenApiExample(
        "Unsupported",
        {
            "type": "urn:problem:sluice:unsupported_format",
            "title": "Unsupported Media Type",
            "status": 415,
            "detail": "This is a file of kind DOCX. The configured OCR provider takes PDF, PNG, JPEG, TIFF, WebP, "
            "plain text, Markdown. The provider mineru takes such files; the operator can set ETL_OCR_PROVIDER=mineru.",
            "code": "unsupported_format",
            "requestId": "5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10",
        },
        response_only=True,
        status_codes=["415"],
        media_type=CONTENT_TYPE,
    ),
]
UPLOADS = [
    OpenApiExample(
        "A PDF",
        {"filename": "invoice.pdf", "content_type": "application/pdf", "size": 48213},
        request_only=True,
    ),
    OpenApiExample(
        "A place for it",
        {
            "file_key": FILE_KEY,
            "upload_url": f"https://storage.example/bucket/{FILE_KEY}?X-Amz-Signature=…",
            "method": "PUT",
            "headers": {
                "Content-Type": "application/pdf",
                "x-amz-server-side-encryption": "AES256",
                "x-amz-meta-filename": "aW52b2ljZS5wZGY=",
            },
            "expires_at": "2025-03-01T09:15:00.000000Z",
        },
        response_only=True,
    ),
]
