"""OpenAPI texts, parameters, and examples of the operations on documents.

Each constant holds keyword arguments of `operation`. The views add the operation id, the request, and the problems.
Nothing here runs while a request is processed.
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
from etl.api import examples, schemas
from etl.core.states import Status

operation = partial(extend_schema, tags=["documents"])
TASK = {"task_id": "$response.body#/task_id"}
SAME_TASK = {"task_id": "$request.path.task_id"}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

TASK_STATUS = OpenApiParameter("status", enum=Status.values, description="Return only tasks with this status.")
WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60, "default": 0},
    description="Maximum number of seconds to wait for a change. The response is sent on the first change, or "
    "immediately if the task has ended, and may come early when many requests are waiting.",
)
DAYS = OpenApiParameter(
    "days",
    {"type": "integer", "minimum": 1, "maximum": 366, "default": 30},
    description="Number of days, of which the last is today.",
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
IDEMPOTENCY_KEY = idempotency_key(
    "valid for as long as the task exists. A repeated request with the same rule and the same file, or the same "
    "`file_key`, returns the first response."
)


# ---- Submission -----------------------------------------------------------------------------------------------------

ACCEPTED = LinkedResponse(
    schemas.AcceptedTask,
    "The document is stored durably, and its task survives process crashes.",
    task=link_to("getTask", "Its status and, at the end, its result.", **TASK),
    markdown=link_to("getMarkdown", "The Markdown that OCR produced.", **TASK),
    cancel=link_to("cancelTask", "Cancel it before it starts.", **TASK),
    retry=link_to("retryTask", "Run it again, after it has ended.", **TASK),
)
UNSUPPORTED = {
    "type": "urn:problem:sluice:unsupported_format",
    "title": "Unsupported Media Type",
    "status": 415,
    "detail": "This is a DOCX file. The configured OCR provider supports PDF, PNG, JPEG, TIFF, WebP, plain text, "
    "Markdown. The provider mineru supports such files; the operator can set ETL_OCR_PROVIDER=mineru.",
    "code": "unsupported_format",
    "requestId": REQUEST_ID,
}
SUBMIT: dict[str, Any] = {
    "summary": "Submit a document",
    "description": """Creates a task for a document, which is part of the request or was uploaded before, and returns
immediately. Poll the URL in `Location` for its status. OCR converts the document to Markdown, and a rule converts the
Markdown to JSON. Without `rule_id` the default rule applies, which wraps the Markdown and calls no model.

The request counts towards the rate limit and your quota, and takes a place in the queue. Waiting documents are
processed in turns between users. 429 `quota_exceeded`: see `GET /api/v1/etl/limits`. 503 `queue_full`: wait for
`Retry-After`. A refused file is not stored and not counted. Problems that only parsing finds end the task with an
`error`.

**Send an `Idempotency-Key`** so that you can safely repeat the request after a network error or 5xx: it creates one
task and returns the same response.""",
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The task."),
        retry_after(202, "task", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        request_example(
            "Uploaded before", {"file_key": examples.FILE_KEY, "rule_id": 3}, media_type="application/json"
        ),
        response_example("Accepted", examples.ACCEPTED, status=202),
        response_example("Unsupported", UNSUPPORTED, status=415, media_type=CONTENT_TYPE),
    ],
}
UPLOADS: dict[str, Any] = {
    "summary": "Create an upload URL",
    "description": """For large documents or slow connections. Send exactly `size` bytes to `upload_url` by PUT with
these `headers` within 15 minutes, then submit `file_key`. Uploads that are not submitted within a day are deleted. Size
and type are checked here, and checked again against the content when you submit it. The URL counts towards your quota
like a submission, until you submit the document, or it is deleted after a day. Without an upload, it stops counting
within two hours after the URL expires.""",
    "examples": [
        request_example("A PDF", examples.UPLOAD),
        response_example("Upload URL", examples.UPLOAD_URL, status=201),
    ],
}


# ---- Reading --------------------------------------------------------------------------------------------------------

SINGLE_TASK = LinkedResponse(
    schemas.Task,
    "The current state of the task.",
    markdown=link_to("getMarkdown", "The Markdown that OCR produced.", **SAME_TASK),
    cancel=link_to("cancelTask", "Cancel it before it starts.", **SAME_TASK),
    retry=link_to("retryTask", "Run it again, after it has ended.", **SAME_TASK),
)
GET: dict[str, Any] = {
    "summary": "Get a task",
    "description": """Returns 200 for every task that exists, whatever its `status`. While the task is active, poll with
`?wait=20`, which responds on the first change, or subscribe to `GET …/events`. After `completed`, `result` contains the
data. After `failed`, `error` contains the cause, and its `retryable` states whether `POST …/retry` may succeed. Staff
can read every task.""",
    "parameters": [WAIT, retry_after(200, "task")],
    "examples": [
        response_example("Running", examples.RUNNING),
        response_example("Completed", examples.COMPLETED),
        response_example("Failed", examples.FAILED),
    ],
}
LIST: dict[str, Any] = {
    "summary": "List tasks",
    "description": "Returns your tasks, newest first, without their results. With `status` a page can have fewer than "
    "`limit` tasks, because some changed while the page was read. Follow `next`.",
    "parameters": [TASK_STATUS],
    "examples": [response_example("Running", examples.SUMMARY)],
}
MARKDOWN: dict[str, Any] = {
    "summary": "Get the Markdown of a task",
    "description": "Returns headings, tables and text, with a line `<!-- page: 2 -->` before each page. Available as "
    "soon as OCR is done, also if post-processing is running or has failed. Until then 409: check the task's status.",
    "parameters": [ETAG],
    "examples": [response_example("Two pages", examples.MARKDOWN, media_type="text/markdown")],
}
ANSWER: dict[str, Any] = {
    "summary": "Get the model's response of a failed task",
    "description": "Returns the last response of the language model as it was sent, if the task failed because that "
    "could not be used: `schema_validation`, `number_unrepresentable`, `llm_truncated` or `llm_refused`. Otherwise 404 "
    "`no_answer`. It is deleted with the task.",
    "examples": [
        response_example("Not what the rule asks for", '{"data": {"total": "12.00"}}', media_type="text/plain")
    ],
}
LAYOUT: dict[str, Any] = {
    "summary": "Get the layout of a task's document",
    "description": "Returns the pages with their blocks: kind, place and text. A block's place can be shown on the "
    "image of its page. Documents that are not printed, such as spreadsheets, have no places.",
    "parameters": [ETAG],
    "examples": [response_example("One page", examples.LAYOUT)],
}
PAGE_IMAGE: dict[str, Any] = {
    "summary": "Get the image of a page",
    "description": """Redirects to an image (WebP) of a page of a PDF or image, which is valid for a minute.

The image is made when it is first requested, together with those of the next pages. If that takes longer than a few
seconds, the response is 409 with the code `image_not_ready` and `Retry-After`.""",
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
`Last-Event-ID` set to the last id they received. 204 means that there are no more events: stop. A user can have up to
50 open streams.""",
    "parameters": [sse.LAST_EVENT_ID],
    "examples": [response_example("Until the end", examples.STREAM, media_type=sse.MEDIA_TYPE)],
}
EVENTS = OpenApiResponse(
    OpenApiTypes.STR,
    """Each event has an increasing `id`, and a single line of JSON as `data`:

* `snapshot`: the task in the format of `GET /api/v1/etl/tasks/{task_id}` (`Task`)
* `progress`: `{"status", "phase", "progress", "waiting"}`
* `status`: the same with `error` and `at`, when the status changes; the stream ends after `completed`, `failed` or
  `cancelled`

Changes within half a second are combined into one event. While there are no events, the server sends a comment every
ten seconds.""",
)
NO_MORE_EVENTS = OpenApiResponse(
    description="The task has ended, and the client has received every event. `EventSource` does not reconnect."
)


# ---- Changing -------------------------------------------------------------------------------------------------------

CANCEL: dict[str, Any] = {
    "summary": "Cancel a task",
    "description": "Cancels a task that has not started, or that waits for post-processing; with `force` also one "
    "that is being processed, whose worker stops within five seconds. After 200 nothing is processed or written. "
    "After 409 the task runs to its end.",
    "examples": [
        request_example("Also a running task", {"force": True}),
        response_example("Cancelled", {"task_id": 17, "status": "cancelled"}),
    ],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a task",
    "description": """Deletes the document, its Markdown, images and result, and the task. Quotas stay charged.

A task that waits is cancelled before. One that is being processed is refused with 409, or with `force=true` cancelled
and deleted.""",
    "parameters": [FORCE],
}
RETRY: dict[str, Any] = {
    "summary": "Retry a task",
    "description": """Runs an ended task again, from `ocr` or from `postprocess`, which uses the stored Markdown.
You can also set another rule, to apply it to the same document without a second OCR run. The task keeps its `task_id`;
its `error` and `result` are cleared, and `previous_result` has the former result until the task is completed again. It
takes a place in the queue, like a submission. 409 `artifact_missing`: start
from `ocr`.""",
    "parameters": [location(202, "The task."), retry_after(202, "task", required=True)],
    "examples": [
        request_example("Another rule", {"from_stage": "postprocess", "rule_id": 5}),
        response_example("Accepted", examples.ACCEPTED, status=202),
    ],
}
LIMITS: dict[str, Any] = {
    "summary": "Get your limits for documents",
    "description": "Returns the quota of documents, its usage and its reset time (midnight UTC), and the limits of a "
    "document. A retry counts as a document without bytes. A repeat with the same idempotency key is not counted. A "
    "cancelled task stays counted.",
    "examples": [response_example("Limits", examples.LIMITS)],
}
USAGE: dict[str, Any] = {
    "summary": "Get your model usage",
    "description": "Returns the calls and tokens of language models that your documents and rule tests cost, by day "
    "(UTC), newest first, and in total. A run is counted when it ends, and stays counted when the task is retried or "
    "deleted. A call without a response has no tokens.",
    "parameters": [DAYS],
    "examples": [response_example("A day", examples.USAGE)],
}
TRIAL: dict[str, Any] = {
    "summary": "Test a rule",
    "description": """Post-processes the given Markdown synchronously: no task, nothing stored, one attempt, two minutes
at most. Use it while you write a rule. The response is 200 whether post-processing succeeds or fails: check `ok`. The
model is called as for a document. 503 `too_many_trials`: a server process runs at most eight tests at a time.""",
    "examples": [
        request_example("A page", {"markdown": "Plate B-XY 123\n\nPaid: 4.50 EUR"}),
        response_example("Success", examples.TRIAL_PASSED),
        response_example("Failure", examples.TRIAL_FAILED),
    ],
}
