"""OpenAPI texts, parameters, and examples of the operations on documents.

Most constants are keyword arguments of `operation`. The views add the operation ID, the request, and the problems.
"""

from functools import partial
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from config.platform.http import sse
from config.platform.http.openapi.responses import (
    IDEMPOTENCY_REPLAYED,
    REQUEST_ID,
    LinkedResponse,
    idempotency_key,
    link_to,
    location,
    request_example,
    response_example,
    retry_after,
)
from config.platform.http.problems import CONTENT_TYPE
from etl.api import examples
from etl.core.states import Status
from etl.pipeline import schemas

operation = partial(extend_schema, tags=["documents"])
TASK = {"task_id": "$response.body#/task_id"}
SAME_TASK = {"task_id": "$request.path.task_id"}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

TASK_STATUS = OpenApiParameter("status", enum=Status.values, description="Return only tasks with this status.")
APPROVED = OpenApiParameter(
    "approved",
    bool,
    description="`true`: only tasks whose result is approved. `false`: only tasks whose result is not approved.",
)
CORRECTED = OpenApiParameter(
    "corrected",
    bool,
    description="`true`: only tasks whose result was corrected. `false`: only tasks whose result was not corrected.",
)
TASK_NAME = OpenApiParameter(
    "q",
    {"type": "string", "maxLength": 255},
    description="Part of the file name, regardless of case. Fewer than three characters match only its beginning.",
)
TASK_RULE = OpenApiParameter(
    "rule_id",
    {"type": "integer", "minimum": 1},
    description="Return only tasks with this rule. An unknown ID returns an empty list.",
)
TASK_FROM = OpenApiParameter("from", OpenApiTypes.DATE, description="First day of submission, in UTC.")
TASK_TO = OpenApiParameter("to", OpenApiTypes.DATE, description="Last day of submission, in UTC, inclusive.")
WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60, "default": 0},
    description="Maximum number of seconds to wait for a change. The response is sent on the first change, immediately "
    "if the task has ended, and possibly earlier if many requests are waiting.",
)
DAYS = OpenApiParameter(
    "days",
    {"type": "integer", "minimum": 1, "maximum": 366, "default": 30},
    description="Number of days up to and including today.",
)
FORCE = OpenApiParameter("force", bool, description="Also delete a task that is being processed.")
WIDTH = OpenApiParameter(
    "width",
    {"type": "integer", "minimum": 200, "maximum": 2000, "default": 1240},
    description="Minimum width of the image, in pixels; images are stored in three widths. An original image that is "
    "smaller is not enlarged.",
)
ETAG = OpenApiParameter(
    "ETag", str, "header", response=[200, 304], required=True, description="Identifies the content."
)
CHANGED_ETAG = OpenApiParameter(
    "ETag", str, "header", response=[200], required=True, description="Identifies the corrected result."
)
ORIGINAL = OpenApiParameter("original", bool, description="Return the result without the corrections of people.")
IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "maxLength": 200},
    "header",
    required=True,
    description="The `ETag` of the result that you have read, or `*` for any result.",
)
IF_STILL_THE_SAME = OpenApiParameter(
    "If-Match", {"type": "string", "maxLength": 200}, "header", description="The `ETag` of the result to approve."
)
IDEMPOTENCY_KEY = idempotency_key(
    "valid for as long as the task exists. A repeated request with the same rule and the same file, or the same "
    "`file_key`, returns the first response."
)


# ---- Submission -----------------------------------------------------------------------------------------------------

ACCEPTED = LinkedResponse(
    schemas.AcceptedTask,
    "The document is stored durably, and its task survives process crashes.",
    task=link_to("getTask", "The status of the task and, at the end, its result.", **TASK),
    markdown=link_to("getMarkdown", "The Markdown that OCR produced.", **TASK),
    cancel=link_to("cancelTask", "Cancel the task before it starts.", **TASK),
    retry=link_to("retryTask", "Run the task again after it has ended.", **TASK),
)
UNSUPPORTED = {
    "type": "urn:problem:sluice:unsupported_format",
    "title": "Unsupported Media Type",
    "status": 415,
    "detail": "The file type is DOCX. The configured OCR provider supports PDF, PNG, JPEG, TIFF, WebP, plain text, "
    "Markdown. MinerU supports such files; the operator can set ETL_OCR_PROVIDER=mineru.",
    "code": "unsupported_format",
    "requestId": REQUEST_ID,
}
SUBMIT: dict[str, Any] = {
    "summary": "Submit a document",
    "description": """Creates a task for the document in the request, and returns immediately. Poll the URL in
`Location` for the status. OCR converts the document to Markdown, and a rule converts the Markdown to JSON. Without
`rule_id`, the default rule applies, which returns the Markdown and calls no model.

The request counts toward the rate limit and your quota, and takes a place in the queue. Users take turns in the queue.
After 429 `quota_exceeded`, see `GET /api/v1/etl/limits`. After 503 `queue_full`, wait for `Retry-After`. A refused file
is not stored and not counted. Problems that are found only during processing end the task with an `error`.

If you submitted the same bytes before, `duplicate_of` is the newest of these tasks. The document is processed anyway.

**Send an `Idempotency-Key`** so that you can safely repeat the request after a network error or 5xx: it creates one
task and returns the same response.""",
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The task."),
        retry_after(202, "task", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        response_example("Accepted", examples.ACCEPTED, status=202),
        response_example("Unsupported", UNSUPPORTED, status=415, media_type=CONTENT_TYPE),
    ],
}
SUBMIT_UPLOADED: dict[str, Any] = {
    **SUBMIT,
    "summary": "Submit an uploaded document",
    "description": "Creates a task for a document that you uploaded to the URL of `POST /api/v1/etl/uploads`. "
    "Everything else is as for `POST /api/v1/etl/submit`, which takes the same JSON too.",
    "examples": [
        request_example("Uploaded before", {"file_key": examples.FILE_KEY, "rule_id": 3}),
        *SUBMIT["examples"],
    ],
}
UPLOADS: dict[str, Any] = {
    "summary": "Create an upload URL",
    "description": """For large documents or slow connections. Send exactly `size` bytes to `upload_url` by PUT with
these `headers` within 15 minutes, then submit `file_key`. Uploads that are not submitted within a day are deleted. Size
and type are checked now, and compared with the content when you submit the document. The URL counts toward your quota
like a submission until you submit the document, or until the upload is deleted after a day. If you upload nothing, it
stops counting within two hours after the URL expires.""",
    "examples": [
        request_example("A PDF", examples.UPLOAD),
        response_example("Upload URL", examples.UPLOAD_URL, status=201),
    ],
}


# ---- Batches --------------------------------------------------------------------------------------------------------

BATCH = {"batch_id": "$response.body#/batch_id"}
ACCEPTED_BATCH = LinkedResponse(
    schemas.AcceptedBatch,
    "The documents are stored durably, and their tasks survive process crashes.",
    batch=link_to("getBatch", "The status of the batch and the numbers of its documents.", **BATCH),
    results=link_to("getBatchResults", "The results of the documents in one file.", **BATCH),
    cancel=link_to("cancelBatch", "Cancel the open documents.", **BATCH),
    retry=link_to("retryBatch", "Run the failed documents again.", **BATCH),
)
BATCH_KEY = idempotency_key("valid for as long as the batch exists. A repeated request returns the first response.")
BATCH_ID = OpenApiParameter(
    "batch_id", {"type": "integer", "minimum": 1}, description="Return only the documents of this batch."
)
SUBMIT_BATCH: dict[str, Any] = {
    "summary": "Submit a batch of documents",
    "description": """Creates a task for each of up to `max_batch` documents (`GET /api/v1/etl/limits`), all under one
rule. Send a form with several `file` parts, or with one ZIP file.

A file that cannot be accepted is left out and listed in `refused`, with the same code that submitting only this file
would return. If no file can be accepted, the response is 400. The batch as a whole counts toward your quota and takes
places in the queue. If there are not enough places, nothing is created, and the response states the numbers.

A ZIP file can have folders. Hidden files that macOS and Windows add are ignored. Encrypted files, paths that point
outside of the archive, and files of more than 1 MiB that have more than 200 times their compressed size are
refused.""",
    "parameters": [
        BATCH_KEY,
        location(202, "The batch."),
        retry_after(202, "batch", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        response_example("Accepted", examples.ACCEPTED_BATCH, status=202),
    ],
}
SUBMIT_UPLOADED_BATCH: dict[str, Any] = {
    **SUBMIT_BATCH,
    "summary": "Submit a batch of uploaded documents",
    "description": "Creates a task for each of the documents that you uploaded to URLs of `POST /api/v1/etl/uploads`, "
    "or, with `prefix`, of those that another system stored in your `inbox`. They stay there. "
    "Everything else is as for `POST /api/v1/etl/batches`, which takes the same JSON too.",
    "examples": [
        request_example(
            "Uploaded before", {"name": "Invoices of March", "rule_id": 3, "file_keys": [examples.FILE_KEY]}
        ),
        request_example("In the inbox", {"name": "Invoices of March", "rule_id": 3, "prefix": "invoices/2026-03/"}),
        *SUBMIT_BATCH["examples"],
    ],
}
LIST_BATCHES: dict[str, Any] = {
    "summary": "List batches",
    "description": "Returns your batches, newest first, with the numbers of their documents.",
    "examples": [response_example("Running", examples.BATCH)],
}
GET_BATCH: dict[str, Any] = {
    "summary": "Get a batch",
    "description": """Returns the status of a batch and the numbers of its documents, all as of the same time. The
remaining documents are open. `GET /api/v1/etl/tasks?batch_id=5` returns the documents.

After the end of the batch, `updated_at` is the time of its end. A retry of a document makes the batch `running` again.
A batch is deleted with its last document.""",
    "parameters": [retry_after(200, "batch")],
    "examples": [response_example("Running", {**examples.BATCH, "refused": examples.REFUSED})],
}
CANCEL_BATCH: dict[str, Any] = {
    "summary": "Cancel a batch",
    "description": "Cancels the documents that have not started or that wait for post-processing, and with `force` "
    "also the running ones. Completed documents keep their results. Returns 409 if no document can be cancelled.",
    "examples": [
        request_example("Also running documents", {"force": True}),
        response_example("Cancelled", {**examples.BATCH, "status": "cancelled", "cancelled": 58}),
    ],
}
RETRY_BATCH: dict[str, Any] = {
    "summary": "Retry the failed documents of a batch",
    "description": "Runs each failed document again from the stage at which it failed, with the same version of its "
    "rule. Each counts toward your quota as a document without bytes. If the quota is not sufficient for all, none is "
    "retried. Returns 409 if no document has failed.",
    "parameters": [location(202, "The batch."), retry_after(202, "batch", required=True)],
    "examples": [response_example("Running", {**examples.BATCH, "failed": 0}, status=202)],
}
RESULTS_FORMAT = OpenApiParameter(
    "format", enum=["jsonl", "csv", "parquet"], default="jsonl", description="Format of the file."
)
RESULTS_ROWS = OpenApiParameter(
    "rows",
    str,
    description="JSON Pointer to an array in `data`, such as `/items`. The file has one row for each item, with the "
    "number of the item in `row`, from 1. By default, it has one row for each document.",
)
RESULTS_FORMULAS = OpenApiParameter(
    "formula_policy",
    enum=["none", "escape"],
    default="none",
    description="For `csv`. `escape`: text that a spreadsheet would run as a formula starts with an apostrophe. "
    "Numbers stay as they are.",
)
RESULTS_BOM = OpenApiParameter("bom", bool, description="For `csv`: start with a byte order mark, as Excel expects.")
BATCH_RESULTS: dict[str, Any] = {
    "summary": "Download the results of a batch",
    "description": """Returns the documents of the batch in one file, in the order of their submission, also while the
batch is running. `status` is the status of a document, and `error` is the error code of a failed document.

`jsonl` contains the data unchanged. `csv` and `parquet` have a column for each top-level field of the data, with
objects and arrays as JSON. A field with the same name as one of our columns gets the prefix `data.`. Numbers keep all
their digits: in `parquet`, whole numbers are `int64`, other numbers are `decimal128` with the scale of the longest
fraction, and numbers that need more than 38 digits are text.""",
    "parameters": [RESULTS_FORMAT, RESULTS_ROWS, RESULTS_FORMULAS, RESULTS_BOM],
    "examples": [
        response_example("Lines", examples.RESULT_LINES, media_type="application/x-ndjson"),
        response_example("Table", examples.RESULT_CSV, media_type="text/csv"),
        response_example("Columns", "PAR1…PAR1", media_type="application/vnd.apache.parquet"),
    ],
}


# ---- Reading --------------------------------------------------------------------------------------------------------

SINGLE_TASK = LinkedResponse(
    schemas.Task,
    "The current state of the task.",
    markdown=link_to("getMarkdown", "The Markdown that OCR produced.", **SAME_TASK),
    cancel=link_to("cancelTask", "Cancel the task before it starts.", **SAME_TASK),
    retry=link_to("retryTask", "Run the task again after it has ended.", **SAME_TASK),
)
GET: dict[str, Any] = {
    "summary": "Get a task",
    "description": """Returns 200 for every existing task, regardless of its `status`. While the task is active, poll
with `?wait=20`, which responds on the first change, or subscribe to `GET …/events`. After `completed`, `result`
contains the data. After `failed`, `error` contains the cause, and `error.retryable` states whether `POST …/retry` may
succeed. Staff with the permission can read every task.""",
    "parameters": [WAIT, retry_after(200, "task")],
    "examples": [
        response_example("Running", examples.RUNNING),
        response_example("Completed", examples.COMPLETED),
        response_example("Failed", examples.FAILED),
    ],
}
LIST: dict[str, Any] = {
    "summary": "List tasks",
    "description": "Returns your tasks without their results, newest first. Tasks must match all of the given filters. "
    "With `status`, a page can have fewer than `limit` tasks, because some changed while the page was read: follow "
    "`next`.",
    "parameters": [TASK_NAME, TASK_RULE, TASK_STATUS, TASK_FROM, TASK_TO, BATCH_ID, APPROVED, CORRECTED],
    "examples": [response_example("Running", examples.SUMMARY)],
}
MARKDOWN: dict[str, Any] = {
    "summary": "Get the Markdown of a task",
    "description": "Returns headings, tables, and text, with a line `<!-- page: 2 -->` before each page. The Markdown "
    "is available when OCR has completed, even while post-processing is running or after it has failed. Before that, "
    "the response is 409: check the task's status.",
    "parameters": [ETAG],
    "examples": [response_example("Two pages", examples.MARKDOWN, media_type="text/markdown")],
}
ANSWER: dict[str, Any] = {
    "summary": "Get the model's response of a failed task",
    "description": "Returns the last response of the language model unchanged, if the task failed because the response "
    "was unusable: `schema_validation`, `number_unrepresentable`, `llm_truncated`, or `llm_refused`. Otherwise, the "
    "response is 404 `no_answer`. The model's response is deleted with the task.",
    "examples": [response_example("Wrong type of a value", '{"data": {"total": "12.00"}}', media_type="text/plain")],
}
LAYOUT: dict[str, Any] = {
    "summary": "Get the layout of a task's document",
    "description": "Returns the pages with their blocks: kind, bounding box, and text. Use the bounding boxes to mark "
    "blocks on the image of the page. Documents without printed pages, such as spreadsheets, have no bounding boxes.",
    "parameters": [ETAG],
    "examples": [response_example("One page", examples.LAYOUT)],
}
PAGE_IMAGE: dict[str, Any] = {
    "summary": "Get the image of a page",
    "description": """Redirects to an image (WebP) of a page of a PDF or image. The URL is valid for a minute.

The image is created when it is first requested, together with the images of the next pages. If that takes longer than a
few seconds, the response is 409 with the code `image_not_ready` and `Retry-After`.""",
    "parameters": [
        WIDTH,
        location(302, "Presigned URL, valid for one minute. Request it without credentials."),
    ],
}
WATCH: dict[str, Any] = {
    "summary": "Stream the events of a task",
    "description": """Server-sent events: a snapshot, then every change until the task ends. In a browser:
`new EventSource("/api/v1/etl/tasks/17/events")`.

A stream also ends after 30 minutes. `EventSource` reconnects automatically, and other clients should do the same, with
`Last-Event-ID` set to the last ID they received. 204 means that there are no more events: stop. A user can have up to
50 open streams.""",
    "parameters": [sse.LAST_EVENT_ID],
    "examples": [response_example("Until the end", examples.STREAM, media_type=sse.MEDIA_TYPE)],
}
EVENTS = OpenApiResponse(
    OpenApiTypes.STR,
    """Each event has an increasing `id`, and a single line of JSON as `data`:

* `snapshot`: the task in the format of `GET /api/v1/etl/tasks/{task_id}` (`Task`)
* `progress`: `{"status", "phase", "progress", "waiting"}`
* `status`: when the status changes, the same with `error` and `at`. The stream ends after `completed`, `failed`, or
  `cancelled`.

Changes within half a second are combined into one event. While there are no events, the server sends a comment every
ten seconds.""",
)
NO_MORE_EVENTS = OpenApiResponse(
    description="The task has ended, and the client has received every event. `EventSource` does not reconnect."
)


# ---- Changing -------------------------------------------------------------------------------------------------------

CANCEL: dict[str, Any] = {
    "summary": "Cancel a task",
    "description": "Cancels a task that has not started or that waits for post-processing, and with `force` also a "
    "running task, whose worker stops within five seconds. After 200, nothing more is processed or written. After 409, "
    "the task continues.",
    "examples": [
        request_example("Also a running task", {"force": True}),
        response_example("Cancelled", {"task_id": 17, "status": "cancelled"}),
    ],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a task",
    "description": """Deletes the task with its document, Markdown, images, and result. Quotas stay charged.

A waiting task is cancelled first. For a running task, the response is 409, unless `force=true` cancels and deletes
it.""",
    "parameters": [FORCE],
}
RETRY: dict[str, Any] = {
    "summary": "Retry a task",
    "description": """Runs an ended task again, from `ocr` or from `postprocess`, which uses the stored Markdown.
You can also set another rule, to apply it to the same document without another OCR run. The task keeps its `task_id`.
Its `error` and `result` are cleared, and `previous_result` has the former result until the task is completed again. The
task takes a place in the queue, like a submission. After 409 `artifact_missing`, start from `ocr`.""",
    "parameters": [location(202, "The task."), retry_after(202, "task", required=True)],
    "examples": [
        request_example("Another rule", {"from_stage": "postprocess", "rule_id": 5}),
        response_example("Accepted", examples.ACCEPTED, status=202),
    ],
}
RESULT: dict[str, Any] = {
    "summary": "Get the result of a task",
    "description": "Returns the `result` of a completed task with the corrections of people, or with `original=true` "
    "without them. Its `ETag` is required to correct it.",
    "parameters": [ORIGINAL, ETAG],
    "examples": [response_example("An invoice", examples.COMPLETED["result"])],
}
CORRECT: dict[str, Any] = {
    "summary": "Correct the result of a task",
    "description": """Applies a JSON Merge Patch (RFC 7396) to the `data` of a completed task's result: members are set,
null removes a member, and a list is replaced as a whole. If the schema requires a member and allows null, null becomes
its value. Numbers keep all their digits. The corrected data must match the schema of the task's version of the rule.

The original result is kept. A correction removes an approval. Citations of corrected values have the match `corrected`.
A retry creates a new result without the corrections, which stay in the history.""",
    "parameters": [IF_MATCH, CHANGED_ETAG],
    "examples": [
        request_example("A total", {"data": {"total": 118.50}}),
        response_example("Corrected", examples.CORRECTED),
    ],
}
APPROVE: dict[str, Any] = {
    "summary": "Approve the result of a task",
    "description": "Marks the result of a completed task as approved. If it is already approved, nothing changes. A "
    "correction, a retry, or `DELETE` removes the approval.",
    "parameters": [IF_STILL_THE_SAME],
    "examples": [response_example("Approved", examples.APPROVED)],
}
DISAPPROVE: dict[str, Any] = {
    "summary": "Remove the approval of a result",
    "description": "Also succeeds if the result is not approved.",
}
HISTORY: dict[str, Any] = {
    "summary": "List the corrections and approvals of a task",
    "description": "Returns the corrections and approvals of all runs, newest first. A correction has one entry for "
    "each changed value, or a single entry with the whole data if it changes more than 1,000 values.",
    "examples": [response_example("A correction", examples.CORRECTION)],
}
LIMITS: dict[str, Any] = {
    "summary": "Get your limits for documents",
    "description": "Returns the quota of documents with its usage and reset time (midnight UTC), and the limits of a "
    "document. A retry counts as a document without bytes. A repeated request with the same idempotency key is not "
    "counted. A cancelled task stays counted.",
    "examples": [response_example("Limits", examples.LIMITS)],
}
USAGE: dict[str, Any] = {
    "summary": "Get your model usage",
    "description": "Returns the language model calls and tokens of your documents, rule tests, and evaluations, by day "
    "(UTC), newest first, and in total. A run is counted when it ends, and stays counted when the task is retried or "
    "deleted. A call without a response has no tokens.",
    "parameters": [DAYS],
    "examples": [response_example("A day", examples.USAGE)],
}
TRIAL: dict[str, Any] = {
    "summary": "Test a rule",
    "description": """Post-processes the given Markdown synchronously, in one attempt of at most two minutes. No task is
created, and nothing is stored. Use it while you write a rule. The response is 200 whether post-processing succeeds or
fails: check `ok`. The model is called as for a document. A server process runs at most eight tests with a language
model at a time (503), and at most two of one user (429 `too_many_trials`).""",
    "examples": [
        request_example("A page", {"markdown": "Plate B-XY 123\n\nPaid: 4.50 EUR"}),
        response_example("Success", examples.TRIAL_PASSED),
        response_example("Failure", examples.TRIAL_FAILED),
    ],
}
