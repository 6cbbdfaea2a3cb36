"""How answers look, for the OpenAPI schema alone: nothing here runs when a request is answered.

`exports.jobs.representation` makes the answers; `tests/integration/test_schema.py` holds them against these shapes.
"""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent, camelize_operation
from drf_spectacular.utils import Direction, extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.autoschema import StrictSchema
from exports.core.errors import EXPLANATIONS
from exports.core.states import ChunkStatus, JobStatus, Source
from exports.models.dataset import FORMATS
from exports.models.job import Compression, DeliveryKind
from exports.webhooks.models import TEST, Delivery, EventType

RECEIPT_STATES = ["active", "redeemed", "expired"]
DELIVERY_TYPES = [*EventType.values, TEST]


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
    state = serializers.ChoiceField(
        choices=RECEIPT_STATES, help_text="`redeemed`: its newest link was used; active again with a new one."
    )


class Job(serializers.Serializer):
    jobId = serializers.UUIDField()
    dataset = serializers.CharField()
    status = serializers.ChoiceField(choices=JobStatus.choices)
    format = serializers.ChoiceField(choices=FORMATS)
    compression = serializers.ChoiceField(choices=Compression.choices)
    delivery = serializers.ChoiceField(choices=DeliveryKind.choices)
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
    events = serializers.ListField(child=serializers.ChoiceField(choices=EventType.choices))
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
    type = serializers.ChoiceField(choices=DELIVERY_TYPES)
    jobId = serializers.UUIDField(allow_null=True, help_text="Null for a test, and once the job is forgotten.")
    status = serializers.ChoiceField(choices=Delivery.Status.choices)
    attempts = serializers.IntegerField(help_text="Since it was made, or last redelivered.")
    createdAt = serializers.DateTimeField()
    nextAttemptAt = serializers.DateTimeField(allow_null=True, help_text="While it waits and the webhook is enabled.")
    finishedAt = serializers.DateTimeField(allow_null=True)
    log = WebhookAttempt(many=True, help_text="The newest 20 attempts, the first of them first.")


class ToldReceipt(Receipt):
    signedUrl = None  # type: ignore[assignment]


class ToldJob(Job):
    receipt = ToldReceipt(allow_null=True, help_text="When the job is a success. Without its link.")


class TestedWebhook(serializers.Serializer):
    webhookId = serializers.UUIDField()


class WebhookTest(serializers.Serializer):
    """That somebody tries the webhook."""

    type = serializers.ChoiceField(choices=[TEST])
    timestamp = serializers.DateTimeField(help_text="When it was asked for.")
    data = TestedWebhook()  # type: ignore[assignment]


class ExportEnd(serializers.Serializer):
    """How a job ended, as webhooks are told."""

    type = serializers.ChoiceField(choices=EventType.choices)
    timestamp = serializers.DateTimeField(help_text="When it ended.")
    data = ToldJob()  # type: ignore[assignment]


# ---- The request ----------------------------------------------------------------------------------------------------


class ExportRequest(StrictSchema):  # type: ignore[no-untyped-call]
    """`items` or `filters`, exactly one: two shapes, as serializers cannot say that of themselves, and generators of
    clients make nothing of conditions."""

    target_class = "exports.api.serializers.ExportRequestSerializer"
    match_subclasses = False
    priority = 1

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        whole = super().map_serializer(auto_schema, direction)
        items = whole["properties"]["items"]
        items["items"] = register(auto_schema, "ExportItem", items["items"])
        either = [
            register(auto_schema, "ExportByItems", only(whole, "items", without="filters")),
            register(auto_schema, "ExportByFilters", only(whole, "filters", without="items")),
        ]
        return {"oneOf": either, "description": whole["description"]}


def only(whole: dict[str, Any], name: str, *, without: str) -> dict[str, Any]:
    properties = {each: shape for each, shape in whole["properties"].items() if each != without}
    return {**whole, "properties": properties, "required": [*whole["required"], name]}


def register(auto_schema: AutoSchema, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Add a component that no serializer stands for, and return the reference to it."""
    component = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, schema=schema, object=name)  # type: ignore[no-untyped-call]
    auto_schema.registry.register_on_missing(component)
    reference: dict[str, Any] = component.ref
    return reference


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
