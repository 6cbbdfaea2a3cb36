"""How answers look, for the OpenAPI schema alone: nothing here runs when a request is answered.

`exports.representation` makes the answers; `tests/integration/test_schema.py` holds them against these shapes.
"""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import camelize_operation
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    Direction,
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    OpenApiWebhook,
    extend_schema,
    extend_schema_field,
)
from rest_framework import serializers

from config.api.problems import CONTENT_TYPE
from config.api.schema import StrictSchema
from exports.errors import EXPLANATIONS
from exports.models.dataset import FORMATS
from exports.models.job import Compression, Delivery
from exports.models.webhook import Delivery as DeliveryRow
from exports.models.webhook import Hook
from exports.states import ChunkStatus, JobStatus, Source


@extend_schema_field({"type": "string", "format": "uri-reference"})
class PathField(serializers.CharField):
    """A path on this server."""


@extend_schema_field({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})
class ChecksumField(serializers.CharField):
    """Of the bytes as they are stored, compressed ones if they are."""


class Accepted(serializers.Serializer):
    jobId = serializers.UUIDField()
    status = serializers.ChoiceField(choices=JobStatus.choices)
    receiptUrl = PathField(help_text="The job, and its receipt once there is one.")
    totalChunks = serializers.IntegerField(help_text="Each (key, date) once.")
    duplicates = serializers.IntegerField(help_text="How many pairs were named before in the request.")
    eventsUrl = PathField()
    chunksUrl = PathField()


class Preview(serializers.Serializer):
    totalChunks = serializers.IntegerField(help_text="Each (key, date) once.")
    duplicates = serializers.IntegerField()
    reusable = serializers.IntegerField(help_text="A file is known that needs no call, if it is still there.")
    quotaCost = serializers.IntegerField(help_text="Of the day's chunks, in the end: reused ones are refunded.")


class DayLimit(serializers.Serializer):
    limit = serializers.IntegerField()
    used = serializers.IntegerField()
    remaining = serializers.IntegerField()
    resetsAt = serializers.DateTimeField()


class Limits(serializers.Serializer):
    jobsPerDay = DayLimit()
    chunksPerDay = DayLimit(help_text="Chunks that end reused, failed or cancelled are given back.")
    maxChunksPerJob = serializers.IntegerField()
    rate = serializers.CharField(help_text="Requests that write, such as 60/min.")


class Progress(serializers.Serializer):
    """Chunks by status, which add up to `total`; `reused` and `degraded` are among `done`."""

    total = serializers.IntegerField()
    pending = serializers.IntegerField()
    running = serializers.IntegerField()
    retrying = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    reused = serializers.IntegerField(help_text="Taken from an earlier export.")
    degraded = serializers.IntegerField(help_text="Taken from an earlier export because the source failed.")
    rows = serializers.IntegerField()
    bytes = serializers.IntegerField()
    percent = serializers.FloatField(min_value=0, max_value=100)
    etaSeconds = serializers.IntegerField(allow_null=True, help_text="Null before the first chunk and at the end.")


class Failure(serializers.Serializer):
    code = serializers.ChoiceField(choices=list(EXPLANATIONS))
    title = serializers.CharField()
    detail = serializers.CharField(help_text="What it means, what to do, and the SQLSTATE where there is one.")
    retryable = serializers.BooleanField()


class Receipt(serializers.Serializer):
    signedUrl = serializers.URLField(
        allow_null=True, help_text="Works once; null when it is used or over, and for staff who are not the owner."
    )
    expiresAt = serializers.DateTimeField()
    checksum = ChecksumField()
    sizeBytes = serializers.IntegerField()
    rows = serializers.IntegerField()
    files = serializers.IntegerField(help_text="How many.")
    degraded = serializers.BooleanField(help_text="Whether a file is older than asked for: the source failed.")
    contentType = serializers.CharField()
    fileName = serializers.CharField()
    state = serializers.ChoiceField(choices=["active", "redeemed", "expired"])


class Job(serializers.Serializer):
    jobId = serializers.UUIDField()
    dataset = serializers.CharField()
    status = serializers.ChoiceField(choices=JobStatus.choices)
    format = serializers.ChoiceField(choices=FORMATS)
    compression = serializers.ChoiceField(choices=Compression.choices)
    delivery = serializers.ChoiceField(choices=Delivery.choices)
    createdAt = serializers.DateTimeField()
    startedAt = serializers.DateTimeField(allow_null=True)
    finishedAt = serializers.DateTimeField(allow_null=True)
    purgeAt = serializers.DateTimeField(help_text="When the job may be forgotten: some days after its end.")
    queuePosition = serializers.IntegerField(help_text="Jobs that wait before this one; 0 once it runs.")
    progress = Progress()
    error = Failure(allow_null=True, help_text="When the job failed.")
    receipt = Receipt(allow_null=True, help_text="When the job is a success.")


class Chunk(serializers.Serializer):
    key = serializers.CharField()
    effectiveDate = serializers.DateField()
    status = serializers.ChoiceField(choices=ChunkStatus.choices)
    attempts = serializers.IntegerField()
    source = serializers.ChoiceField(choices=Source.choices, allow_null=True)  # type: ignore[assignment]
    rows = serializers.IntegerField(allow_null=True)
    bytes = serializers.IntegerField(allow_null=True)
    checksum = ChecksumField(allow_null=True)
    dataAsOf = serializers.DateTimeField(allow_null=True, help_text="When the source was read.")
    path = serializers.CharField(help_text="Object key in the bucket.")
    error = Failure(allow_null=True, help_text="What stopped the last attempt.")


class Dataset(serializers.Serializer):
    name = serializers.CharField()
    schemaVersion = serializers.IntegerField()
    formats = serializers.ListField(child=serializers.ChoiceField(choices=FORMATS))
    keyPattern = serializers.CharField(help_text="Regular expression, in Python's dialect, of a whole key.")


class Datasets(serializers.Serializer):
    """All on one page."""

    results = Dataset(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class OneTimeLink(serializers.Serializer):
    signedUrl = serializers.URLField()
    expiresAt = serializers.DateTimeField()


class Webhook(serializers.Serializer):
    id = serializers.UUIDField()
    url = serializers.CharField()
    events = serializers.ListField(child=serializers.ChoiceField(choices=Hook.choices))
    enabled = serializers.BooleanField()
    disabledReason = serializers.CharField(allow_null=True, help_text="Why it is disabled.")
    createdAt = serializers.DateTimeField()


class NewWebhook(Webhook):
    secret = serializers.CharField(help_text="`whsec_…`; shown in this answer alone.")


class Secret(serializers.Serializer):
    secret = serializers.CharField(help_text="`whsec_…`; shown in this answer alone.")


class WebhookAttempt(serializers.Serializer):
    at = serializers.DateTimeField(help_text="When it began.")
    statusCode = serializers.IntegerField(allow_null=True, help_text="Of the answer.")
    error = serializers.CharField(allow_null=True, help_text="Why there is no answer.")
    durationMs = serializers.IntegerField()


class WebhookDelivery(serializers.Serializer):
    id = serializers.UUIDField(help_text="What the receiver knows as `webhook-id`.")
    type = serializers.ChoiceField(choices=[*Hook.values, "webhook.test"])
    jobId = serializers.UUIDField(allow_null=True, help_text="Null for a test, and once the job is forgotten.")
    status = serializers.ChoiceField(choices=DeliveryRow.Status.choices)
    attempts = serializers.IntegerField(help_text="Since it was made, or last redelivered.")
    createdAt = serializers.DateTimeField()
    nextAttemptAt = serializers.DateTimeField(allow_null=True, help_text="While it waits and the webhook is enabled.")
    finishedAt = serializers.DateTimeField(allow_null=True)
    log = WebhookAttempt(many=True, help_text="The newest 20 attempts, the first of them first.")


class ToldReceipt(Receipt):
    signedUrl = None  # type: ignore[assignment]


class ToldJob(Job):
    receipt = ToldReceipt(allow_null=True, help_text="When the job is a success. Without its link.")


class ExportEnd(serializers.Serializer):
    """How a job ended, as webhooks are told."""

    type = serializers.ChoiceField(choices=Hook.choices)
    timestamp = serializers.DateTimeField(help_text="When it ended.")
    data = ToldJob()  # type: ignore[assignment]


# ---- The request ----------------------------------------------------------------------------------------------------


class ExportRequest(StrictSchema):  # type: ignore[no-untyped-call]
    """`items` or `filters`, exactly one: serializers cannot say that of themselves."""

    target_class = "exports.serializers.ExportRequestSerializer"
    match_subclasses = False
    priority = 1

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        either = [{"required": ["items"]}, {"required": ["filters"]}]
        return {**super().map_serializer(auto_schema, direction), "oneOf": either}


HOOKS = extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=Hook.choices), min_length=1))
RECEIVER = extend_schema_field(
    {
        "type": "string",
        "format": "uri",
        "maxLength": 2000,
        "description": "https, without credentials or fragment, at public addresses; looked at again at each delivery.",
    }
)


def camel_case_parameters(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Postprocessing hook: paths of exports name their parameters as bodies do: `{jobId}`."""
    paths = {}
    for path, operations in result["paths"].items():
        named = path
        if path.startswith("/exports/"):
            for operation in operations.values():
                named, _ = camelize_operation(path, operation)  # type: ignore[no-untyped-call]
        paths[named] = operations
    return {**result, "paths": paths}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

JOB_STATUS = OpenApiParameter("status", enum=JobStatus.values)
CHUNK_STATUS = OpenApiParameter("status", enum=ChunkStatus.values)
DATASET = OpenApiParameter("dataset", description="Its name; an unknown one gives an empty list.")
TOKEN = OpenApiParameter("token", required=True, description="Comes with the link.")


def location(status: int, description: str) -> OpenApiParameter:
    return OpenApiParameter(
        "Location", OpenApiTypes.URI_REF, "header", required=True, response=[status], description=description
    )


def retry_after(status: int, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(
        "Retry-After",
        int,
        "header",
        required=required,
        response=[status],
        description="Seconds until it is worth asking for the job again; not there once it has ended.",
    )


IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    "header",
    description="1 to 255 visible ASCII characters, good for as long as the job is kept. A repeat with the same body "
    "gets the first answer.",
)
IDEMPOTENCY_REPLAYED = OpenApiParameter(
    "Idempotency-Replayed", str, "header", response=[202], enum=["true"], description="This is an earlier answer."
)
EVENTS = """Each event has an `id` that grows, and one line of JSON as `data`:

* `snapshot`: the job as `GET /exports/{jobId}` shows it
* `chunk`: a chunk that changed, as `GET /exports/{jobId}/chunks` shows it
* `progress`: the job's `progress`, once after any number of chunks
* `status`: `{"status", "error", "at"}`; the stream ends after `success`, `failed` or `cancelled`

A comment comes every ten seconds while nothing happens."""
STREAM = OpenApiExample(
    "The end",
    'id: 41\nevent: status\ndata: {"status":"success","error":null,"at":"2025-03-01T09:00:51.000000Z"}\n\n',
    response_only=True,
    status_codes=["200"],
    media_type="text/event-stream",
)
NO_STORE = OpenApiParameter("Cache-Control", str, "header", required=True, response=[302], enum=["no-store"])


ENDED = OpenApiWebhook(
    "exportEnded",
    extend_schema(
        summary="An export has ended",
        description="""Posted to the webhooks that asked for it, at least once, with the headers of
[Standard Webhooks](https://www.standardwebhooks.com), whose libraries check signatures:

* `webhook-id`: the delivery's id, the same at every attempt; what was seen before can be ignored
* `webhook-timestamp`: of this attempt, in Unix seconds
* `webhook-signature`: `v1,` and a signature; for a day after a rotation two of them, with a space between

Anything but 2xx within 15 s is tried again, ten times in three days. 410 disables the webhook. Redirects are not
followed.""",
        request=ExportEnd,
        responses={"2XX": OpenApiResponse(description="It was taken.")},
    ),
)


# ---- Examples -------------------------------------------------------------------------------------------------------

JOB_ID = "0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"
RUNNING: dict[str, Any] = {
    "jobId": JOB_ID,
    "dataset": "flights",
    "status": "running",
    "format": "csv",
    "compression": "none",
    "delivery": "zip",
    "createdAt": "2025-03-01T09:00:00.000000Z",
    "startedAt": "2025-03-01T09:00:00.250000Z",
    "finishedAt": None,
    "purgeAt": "2025-03-08T09:00:00.000000Z",
    "queuePosition": 0,
    "progress": {
        "total": 1095,
        "pending": 900,
        "running": 5,
        "retrying": 0,
        "done": 190,
        "failed": 0,
        "cancelled": 0,
        "reused": 3,
        "degraded": 0,
        "rows": 58000,
        "bytes": 5800000,
        "percent": 17.4,
        "etaSeconds": 42,
    },
    "error": None,
    "receipt": None,
}
SUCCESS = {
    **RUNNING,
    "status": "success",
    "finishedAt": "2025-03-01T09:00:51.000000Z",
    "purgeAt": "2025-03-08T09:00:51.000000Z",
    "progress": {
        **RUNNING["progress"],
        "pending": 0,
        "running": 0,
        "done": 1095,
        "rows": 334000,
        "bytes": 33400000,
        "percent": 100.0,
        "etaSeconds": None,
    },
    "receipt": {
        "signedUrl": f"https://sluice.example/exports/{JOB_ID}/download?token=…",
        "expiresAt": "2025-03-01T09:10:51.000000Z",
        "checksum": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "sizeBytes": 4210000,
        "rows": 334000,
        "files": 1095,
        "degraded": False,
        "contentType": "application/zip",
        "fileName": "flights.zip",
        "state": "active",
    },
}
JOBS = [
    OpenApiExample("Running", RUNNING, response_only=True),
    OpenApiExample("Success", SUCCESS, response_only=True),
]
SUBMISSIONS = [
    OpenApiExample(
        "Items", {"dataset": "flights", "items": [{"key": "JFK", "effectiveDate": "2013-02-15"}]}, request_only=True
    ),
    OpenApiExample(
        "Filters",
        {
            "dataset": "flights",
            "filters": {"keys": ["JFK", "EWR"], "dateFrom": "2013-02-01", "dateTo": "2013-02-28"},
            "compression": "gzip",
            "csv": {"delimiter": ";", "formulaPolicy": "escape"},
        },
        description="Every key on every day of the range. What is left out has its default.",
        request_only=True,
    ),
    OpenApiExample(
        "Accepted",
        {
            "jobId": JOB_ID,
            "status": "pending",
            "receiptUrl": f"/exports/{JOB_ID}",
            "totalChunks": 56,
            "duplicates": 0,
            "eventsUrl": f"/exports/{JOB_ID}/events",
            "chunksUrl": f"/exports/{JOB_ID}/chunks",
        },
        response_only=True,
        status_codes=["202"],
    ),
    OpenApiExample(
        "Refused",
        {
            "type": "urn:problem:sluice:invalid",
            "title": "Bad Request",
            "status": 400,
            "detail": "The input is not valid.",
            "code": "invalid",
            "errors": [
                {
                    "pointer": "/items/17/effectiveDate",
                    "code": "invalid",
                    "detail": "Must be a date written YYYY-MM-DD.",
                }
            ],
            "requestId": "5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10",
        },
        response_only=True,
        status_codes=["400"],
        media_type=CONTENT_TYPE,
    ),
]
