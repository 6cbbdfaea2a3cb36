"""Types of response and webhook bodies, for the OpenAPI document. `representation` builds the bodies."""

from datetime import date, datetime
from functools import partial
from typing import Annotated, TypedDict

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.response_schemas import Path, Url, Uuid, choices
from config.platform.webhooks.models import EventType
from exports.core.errors import EXPLANATIONS
from exports.core.states import ChunkStatus, JobStatus, Source
from exports.jobs.columns import DatasetColumn
from exports.models.dataset import FORMATS, Kind
from exports.models.job import Compression, DeliveryKind

EVENTS = [EventType.SUCCEEDED.value, EventType.FAILED.value, EventType.CANCELLED.value]
RECEIPT_STATES = ["active", "redeemed", "link_expired", "expired"]


@extend_schema_field({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})
class ChecksumField(serializers.CharField):
    """SHA-256 of an object's bytes as stored, which may be compressed."""


Checksum = Annotated[str, ChecksumField]


# ---- Exports --------------------------------------------------------------------------------------------------------


class Accepted(TypedDict):
    jobId: Uuid
    status: Annotated[str, choices(JobStatus)]
    receiptUrl: Annotated[Path, "Path of the job. The job includes its receipt when it has succeeded."]
    totalChunks: Annotated[int, "Number of distinct (key, date) pairs."]
    duplicates: Annotated[int, "Number of repeated pairs in the request. They were ignored."]
    eventsUrl: Annotated[Path, "Path of the job's event stream."]
    chunksUrl: Annotated[Path, "Path of the job's chunks."]


class Preview(TypedDict):
    totalChunks: Annotated[int, "Number of distinct (key, date) pairs."]
    duplicates: Annotated[int, "Number of repeated pairs in the request. They would be ignored."]
    reusable: Annotated[int, "Chunks that have a file to reuse, provided that it still exists."]
    quotaCost: Annotated[int, "Chunks charged to the daily quota, after the refund for reused ones."]


class DayLimit(TypedDict):
    limit: int
    used: int
    remaining: int
    resetsAt: datetime


class Limits(TypedDict):
    jobsPerDay: DayLimit
    chunksPerDay: Annotated[DayLimit, "Chunks that end reused, failed or cancelled are refunded."]
    maxChunksPerJob: int
    rate: Annotated[str, "Rate limit for POST requests, such as `60/min`."]


class Progress(TypedDict):
    """Chunks by status, which add up to `total`. `reused` and `degraded` chunks are included in `done`."""

    total: int
    pending: int
    running: int
    retrying: int
    done: int
    failed: int
    cancelled: int
    reused: Annotated[int, "Chunks that reuse a file of an earlier export."]
    degraded: Annotated[int, "Chunks that use an older file because the source database failed."]
    rows: int
    bytes: int
    percent: Annotated[float, partial(serializers.FloatField, min_value=0, max_value=100)]
    etaSeconds: Annotated[
        int | None,
        "Estimated seconds to completion. Null until a chunk ends after the start or a retry, and after the job ends.",
    ]


class Failure(TypedDict):
    code: Annotated[str, choices(list(EXPLANATIONS))]
    title: str
    detail: Annotated[str, "Cause and remedy, with the SQLSTATE if there is one."]
    retryable: Annotated[bool, "Whether a retry may succeed."]


class ReceiptLink(TypedDict):
    signedUrl: Annotated[
        Url | None,
        "One-time download link. Null after use or expiry, and for staff who do not own the export.",
    ]


class WebhookReceipt(TypedDict):
    expiresAt: Annotated[datetime, "Expiry of the latest one-time link."]
    deliveryExpiresAt: Annotated[datetime, "Expiry of the delivery. Until then, new links can be created."]
    checksum: Checksum
    sizeBytes: int
    rows: int
    files: Annotated[int, "Number of files in the delivery."]
    degraded: Annotated[bool, "Whether an older file was used for some chunk because the source database failed."]
    contentType: str
    fileName: str
    state: Annotated[
        str,
        choices(RECEIPT_STATES),
        "`redeemed`: the latest link was used or revoked. `link_expired`: it expired. In both cases, a new link makes "
        "the receipt `active` again. `expired`: the delivery expired.",
    ]


class Receipt(ReceiptLink, WebhookReceipt):
    pass


class JobSummary(TypedDict):
    jobId: Uuid
    name: Annotated[str | None, "Name of the request, or of the schedule that created the job."]
    dataset: str
    status: Annotated[str, choices(JobStatus)]
    format: Annotated[str, choices(FORMATS)]
    compression: Annotated[str, choices(Compression)]
    delivery: Annotated[str, choices(DeliveryKind)]
    columns: Annotated[list[str] | None, "Selected columns, in their order. Null: all columns of the dataset."]
    scheduleId: Annotated[Uuid | None, "Schedule that created the job."]
    plannedAt: Annotated[datetime | None, "Planned time of the schedule. Null for manual runs, and without a schedule."]
    createdAt: datetime
    startedAt: datetime | None
    finishedAt: datetime | None
    purgeAt: Annotated[datetime, "Earliest deletion of the job. While the job is active, the earliest possible value."]
    queuePosition: Annotated[int, "Number of pending jobs ahead of this one. 0 once it runs."]
    progress: Progress
    error: Annotated[Failure | None, "Set if `status` is `failed`."]


class Job(JobSummary):
    receipt: Annotated[Receipt | None, "Set if `status` is `success`."]


class WebhookJob(JobSummary):
    receipt: Annotated[WebhookReceipt | None, "Set if `status` is `success`. Without the download link."]


class StatusEvent(TypedDict):
    status: str
    error: Failure | None
    at: datetime | None


class Chunk(TypedDict):
    key: str
    effectiveDate: date
    status: Annotated[str, choices(ChunkStatus)]
    attempts: int
    source: Annotated[str | None, choices(Source)]
    rows: int | None
    bytes: int | None
    checksum: Checksum | None
    dataAsOf: Annotated[datetime | None, "When the source database was read."]
    path: Annotated[str, "Object key in the bucket."]
    error: Annotated[Failure | None, "Error of the latest attempt."]
    sourceMessage: Annotated[
        str | None,
        "Message of the source database for this error, at most 1,000 characters. Only for the owner, if the dataset "
        "has `showErrors`; not in event streams.",
    ]


class Dataset(TypedDict):
    name: str
    kind: Annotated[
        str, choices(Kind), "`documents`: the results of your documents, which `filters` without keys select."
    ]
    schemaVersion: int
    formats: list[Annotated[str, choices(FORMATS)]]
    showErrors: Annotated[bool, "Whether chunks of your exports have the `sourceMessage` of their error."]
    keyPattern: Annotated[str, "Regular expression in Python syntax that the whole key must match."]
    grantedKeyPatterns: Annotated[
        list[str] | None, "If your access is limited to some keys: the whole key must also match one of these patterns."
    ]


class DatasetDetail(Dataset):
    columns: Annotated[
        list[DatasetColumn],
        "In the order of the function. `type` is the name of the type in Postgres. Files of the kind `documents` also "
        "have a column for each field of the results.",
    ]


class Datasets(TypedDict):
    """All datasets that the user may export, on a single page."""

    results: list[Dataset]
    next: Url | None
    previous: Url | None


class OneTimeLink(TypedDict):
    signedUrl: Url
    expiresAt: datetime


class ExportEnd(TypedDict):
    """Body of a webhook that reports the end of an export."""

    type: Annotated[str, choices(EVENTS)]
    timestamp: Annotated[datetime, "When the export ended."]
    data: WebhookJob
