"""Types of response and webhook bodies. `representation` builds them, and the OpenAPI document is derived from them."""

from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from config.platform.http.openapi.response_schemas import Path, Url, choices, serializer_of
from config.platform.webhooks.models import EventType
from etl.core import errors
from etl.core.states import BatchStatus, Stage, Status
from etl.models.review import ReviewEvent as ReviewEventRow
from etl.postprocessors.citations.levels import CORRECTED, LEVELS
from etl.providers.base import BLOCK_KINDS

EVENTS = [EventType.DOCUMENT_COMPLETED.value, EventType.DOCUMENT_FAILED.value]
ERROR_CODES = sorted(errors.codes())
OBJECT = {"type": "object", "additionalProperties": True}
TOKENS = {**OBJECT, "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}}}
CITATIONS = {
    "type": "array",
    "description": "The place of each value of `data` in the document: one citation per value, except null, empty "
    "strings, and booleans and enum values without a valid quote. Empty for the data of an e-invoice. Absent with "
    "`skip`.",
    "items": {
        "type": "object",
        "required": ["pointer", "page", "bbox", "quote", "match"],
        "properties": {
            "pointer": {"type": "string", "description": "RFC 6901 JSON Pointer into `data`."},
            "page": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": "The page of the row that the value is in. Null if it is not known.",
            },
            "bbox": {
                "type": ["array", "null"],
                "items": {"type": "number"},
                "minItems": 4,
                "maxItems": 4,
                "description": "The place of this row on the page: x0, y0, x1, y1 in points from its top left, as in "
                "`GET …/layout`. Null if it is not known, as for documents that are not printed.",
            },
            "quote": {"type": ["string", "null"], "description": "Text of the page. Null if no place is known."},
            "match": {
                "type": "string",
                "enum": [*LEVELS, CORRECTED],
                "description": "How certain the citation is. `exact`: the quote contains the value as it is written. "
                "`normalized`: in another notation that has one meaning. `ambiguous`: in a notation with several "
                "meanings, or at several places. `quote`: the quote is in the document, the value was not checked. "
                "`image`: the model read it in the page image, and the text does not contain it. "
                "`computed`: not in the document, but the sum or count of cited values. `not_found`: not in the "
                "document. `corrected`: a person entered the value.",
            },
        },
    },
}


def result_shape(kind: str | list[str]) -> dict[str, Any]:
    """Return the schema of a result. `kind`: the type of file keys and provider IDs, which are null in rule tests."""
    return {
        **OBJECT,
        "required": ["markdown_s3_key", "provider_task_id", "metadata"],
        "properties": {
            "markdown_s3_key": {"type": kind},
            "provider_task_id": {"type": kind},
            "metadata": OBJECT,
            "data": {"description": "Extracted data, which conforms to the rule's schema. Absent with `skip`."},
            "output_s3_key": {"type": kind},
            "citations": CITATIONS,
        },
    }


RESULT = result_shape("string")
CORRECTION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["data"],
    "properties": {
        "data": {"description": "JSON Merge Patch (RFC 7396): null removes a member, unless the schema requires it."}
    },
}


@extend_schema_field(RESULT)
class ResultField(serializers.JSONField):
    """The result of post-processing."""


@extend_schema_field(
    {
        **OBJECT,
        "description": "`pages`, `duration_ms`, `version`, and provider-specific fields. Empty until OCR is done.",
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
        "description": "`strategy`, `model`, the `source` (of the mode `einvoice`), the `usage` of all "
        "attempts of this run, and `earlier_usage`, of the runs before a retry. Empty until post-processing starts.",
        "properties": {
            "strategy": {"type": ["string", "null"]},
            "model": {"type": ["string", "null"]},
            "source": {"type": "string", "enum": ["einvoice", "model"]},
            "usage": TOKENS,
            "earlier_usage": TOKENS,
        },
    }
)
class PostprocessField(serializers.JSONField):
    pass


class AcceptedTask(TypedDict):
    task_id: int
    status: Annotated[str, choices([Status.PENDING.value])]
    status_url: Annotated[Path, "Path of the task."]
    duplicate_of: Annotated[
        int | None,
        "Your newest earlier task with the same bytes. Null for a `file_key`: its bytes are read later.",
    ]


class UploadPlace(TypedDict):
    file_key: Annotated[str, "Key to submit after the upload."]
    upload_url: Annotated[Url, "Presigned URL, valid for 15 minutes."]
    method: Annotated[str, choices(["PUT"])]
    headers: Annotated[dict[str, str], "Headers to send with the upload."]
    expires_at: Annotated[datetime, "Expiry of the URL. The uploaded file itself is kept for a day."]


class StageRuns(TypedDict):
    """Number of runs of each stage, including the first."""

    ocr: int
    postprocess: int


class Warning(TypedDict):  # noqa: A001 - the API's name
    code: str
    detail: str
    page: NotRequired[Annotated[int, "Page number, from 1."]]
    reason: NotRequired[Annotated[str, "The class of the exception, such as `ValueError`."]]


class FailedAttempt(TypedDict):
    stage: Annotated[str, choices(Stage)]
    attempt: int
    code: Annotated[str, choices(ERROR_CODES)]
    detail: str
    at: datetime


class TaskMetadata(TypedDict):
    attempts: StageRuns
    artifact_mineru_markdown_key: Annotated[str | None, "Object key of the Markdown in the bucket, from any provider."]
    provider: str | None
    provider_task_id: str | None
    ocr: Annotated[dict[str, Any], OcrField]
    postprocess: Annotated[dict[str, Any], PostprocessField]
    warnings: list[Warning]
    failed_attempts: Annotated[list[FailedAttempt], "Of this run, at most the last ten, without the one in `error`."]


class TaskFailure(TypedDict):
    code: Annotated[str, choices(ERROR_CODES)]
    stage: Annotated[str, choices(Stage)]
    detail: str
    retryable: Annotated[bool, "Whether a retry may succeed."]


class TaskProgress(TypedDict):
    status: Annotated[str, choices(Status)]
    phase: Annotated[str, choices(Stage)]
    progress: Annotated[int, partial(serializers.IntegerField, min_value=0, max_value=100), "Percent."]
    waiting: Annotated[bool, "Whether the task waits for a worker, or for its next attempt."]


class TaskStatus(TaskProgress):
    error: TaskFailure | None
    at: datetime


class TaskId(TypedDict):
    task_id: int
    batch_id: Annotated[int | None, "The batch that the document was submitted with."]


class EInvoiceError(TypedDict):
    code: Annotated[
        str, "`schema`, `profile` (the profile is unknown), or the id of a rule of EN 16931, such as `BR-CO-10`."
    ]
    detail: str


class EInvoice(TypedDict):
    syntax: Annotated[str, choices(["cii", "ubl"])]
    profile: Annotated[str, "Such as `EN 16931`, `XRECHNUNG 3.0`, or `MINIMUM`; if unknown, its identifier."]
    valid: Annotated[bool, "Whether `errors` is empty."]
    errors: Annotated[list[EInvoiceError], "Violations of the schema, and broken rules."]


class TaskDetails(TypedDict):
    filename: str
    rule_id: int
    rule_version: Annotated[int, "Version of the rule that the task is pinned to."]
    approved_at: Annotated[datetime | None, "When a person approved the result. A correction removes the approval."]
    approved_by: Annotated[str | None, "Username of that person."]
    corrected: Annotated[bool, "Whether a person has corrected the result."]
    duplicate_of: Annotated[
        int | None, "The owner's newest earlier task with the same bytes. It may have been deleted since."
    ]
    error: Annotated[TaskFailure | None, "Set if `status` is `failed`."]
    einvoice: Annotated[EInvoice | None, "The e-invoice in the document. Null if there is none, and until it is read."]
    metadata: TaskMetadata
    created_at: datetime
    updated_at: datetime


class TaskSummary(TaskId, TaskProgress, TaskDetails):
    pass


class Task(TaskSummary):
    result: Annotated[dict[str, Any] | None, ResultField, "Set if `status` is `completed`."]
    previous_result: Annotated[
        dict[str, Any] | None,
        ResultField,
        "The result of an earlier run, after a retry, until the task is `completed` again.",
    ]


@extend_schema_field(
    {
        "type": "object",
        "description": "The value `before` and `after` a correction. A member is absent if the value did not exist.",
        "properties": {"before": {}, "after": {}},
    }
)
class ChangeField(serializers.JSONField):
    """A changed value."""


class ReviewEvent(TypedDict):
    kind: Annotated[str, choices(ReviewEventRow.Kind)]
    at: datetime
    by: Annotated[str, "Username."]
    run: Annotated[int, "The run of the task that had the result."]
    correction: Annotated[int, "Number of the correction. Values that are changed at once have the same number."]
    pointer: Annotated[
        str | None,
        "Of a correction: RFC 6901 JSON Pointer into `data` after it, or before it if the value was removed.",
    ]
    change: Annotated[dict[str, Any] | None, ChangeField]


class DocumentEnd(TypedDict):
    """Body of a webhook that reports the end of a task."""

    type: Annotated[str, choices(EVENTS)]
    timestamp: Annotated[datetime, "When the task ended."]
    data: Annotated[TaskSummary, "The task without `result` and `previous_result`. `GET` it for its result."]


class LayoutBlock(TypedDict):
    id: Annotated[str, "Page and number, such as `1-3`. In reading order."]
    kind: Annotated[str, choices(BLOCK_KINDS)]
    bbox: Annotated[
        list[float],
        partial(serializers.ListField, child=serializers.FloatField(), min_length=4, max_length=4),
        "x0, y0, x1, y1 in points, from the top left of the page.",
    ]
    text: Annotated[str, "Markdown. Headers and footers are not in the Markdown of the document."]


class LayoutPage(TypedDict):
    page: Annotated[int, "Page number, from 1."]
    width: Annotated[float, "Points, as the page is displayed."]
    height: float
    rotation: Annotated[int, "Always 0: coordinates refer to the page as it is displayed."]
    blocks: list[LayoutBlock]


class Layout(TypedDict):
    pages: Annotated[list[LayoutPage], "Empty if the provider does not return positions of text."]


# ---- Batches --------------------------------------------------------------------------------------------------------


class RefusedFile(TypedDict):
    filename: Annotated[
        str, "With its folders, if it is in a ZIP file. For an upload that does not exist, its `file_key`."
    ]
    code: Annotated[str, "The code of the problem that a submission of this file alone would return."]


class AcceptedBatch(TypedDict):
    batch_id: int
    status_url: Annotated[Path, "Path of the batch."]
    total: Annotated[int, "Accepted documents."]
    refused: Annotated[list[RefusedFile], "Files that are not part of the batch."]


class BatchSummary(TypedDict):
    batch_id: int
    name: str
    status: Annotated[
        str,
        choices(BatchStatus),
        "`running` until all documents have ended. `cancelled` if the batch was cancelled before that.",
    ]
    total: Annotated[int, "Accepted documents."]
    completed: int
    failed: int
    cancelled: int
    deleted: Annotated[int, "Documents that have been deleted since."]
    rule_id: int
    rule_version: Annotated[int, "Version of the rule at the time of the submission."]
    created_at: datetime
    updated_at: Annotated[datetime, "When it was created, retried, or ended."]


class Batch(BatchSummary):
    refused: list[RefusedFile]


class BatchEnd(TypedDict):
    """Body of a webhook that reports that all documents of a batch have ended."""

    type: Annotated[str, choices([EventType.BATCH_COMPLETED.value])]
    timestamp: Annotated[datetime, "When the batch ended."]
    data: Annotated[BatchSummary, "The batch without `refused`."]


class CancelledTask(TypedDict):
    task_id: int
    status: Annotated[str, choices([Status.CANCELLED.value])]


# ---- Rule tests -----------------------------------------------------------------------------------------------------


@extend_schema_field(result_shape(["string", "null"]))
class TrialResultField(serializers.JSONField):
    """The `result` that a task would have. File keys and provider IDs are null."""


class TrialUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    calls: int


class OpenLimit(TypedDict):
    limit: int
    used: int
    remaining: int


class DocumentDayLimit(OpenLimit):
    resets_at: datetime


class TokenLimit(TypedDict):
    limit: Annotated[int | None, "Null: no limit."]
    used: int
    remaining: Annotated[int | None, "Null: no limit."]
    resets_at: datetime


class RuleTokenLimit(TokenLimit):
    rule_id: int


class DocumentLimits(TypedDict):
    documents_per_day: Annotated[
        DocumentDayLimit, "Submissions. An upload URL counts as one until its document is submitted or deleted."
    ]
    bytes_per_day: Annotated[DocumentDayLimit, "The sizes of these documents and upload URLs."]
    rule_versions_per_day: Annotated[DocumentDayLimit, "New rules, and changes of rules."]
    rule_tests_per_day: Annotated[DocumentDayLimit, "Tests of rules that call a language model."]
    tokens_per_day: Annotated[TokenLimit, "Tokens of language models, of documents, rule tests, and evaluations."]
    rule_tokens_per_day: Annotated[
        list[RuleTokenLimit], "Your rules and system rules with a budget. The usage is that of all users."
    ]
    open_tasks: Annotated[OpenLimit, "Tasks that have not ended, and upload URLs that can be used."]
    max_file_bytes: int
    max_batch: Annotated[int, "Maximum number of documents in a batch."]
    max_batch_bytes: Annotated[int, "Maximum size of a request with the documents of a batch."]
    inbox: Annotated[str, "Folder of the bucket. Files that other systems store there can be submitted as a batch."]
    max_pages: int
    rate: Annotated[str, "Rate limit for requests other than GET, such as `1200/min`."]


class UsageOfDay(TrialUsage):
    date: date


class UsageReport(TypedDict):
    total: TrialUsage
    days: list[UsageOfDay]


class TrialPassed(TypedDict):
    ok: Annotated[bool, "true"]
    result: Annotated[dict[str, Any], TrialResultField]
    usage: TrialUsage
    warnings: list[Warning]


class TrialFailed(TypedDict):
    ok: Annotated[bool, "false"]
    error: Annotated[TaskFailure, "The error that a task would end with."]
    usage: TrialUsage
    warnings: list[Warning]


RULE_TRIAL = PolymorphicProxySerializer(
    component_name="RuleTrial",
    serializers=[serializer_of(TrialPassed), serializer_of(TrialFailed)],
    resource_type_field_name=None,
)
