"""What the OpenAPI schema says of each operation on documents: what it is for, what it costs, what comes next.

Each name here is the keyword arguments of an `extend_schema`, beside its name, request and problems; those are the
views'. Nothing here runs when a request is answered.
"""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from config.platform.http import sse
from config.platform.http.openapi.responses import (
    IDEMPOTENCY_REPLAYED,
    REQUEST_ID,
    Answer,
    answered,
    asked,
    idempotency_key,
    location,
    retry_after,
    to,
)
from config.platform.http.problems import CONTENT_TYPE
from etl.api import examples, schemas
from etl.core.states import Status

TAGS = ["documents"]
TASK = {"task_id": "$response.body#/task_id"}
SAME_TASK = {"task_id": "$request.path.task_id"}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

TASK_STATUS = OpenApiParameter("status", enum=Status.values, description="Only tasks that have this status now.")
WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": 60, "default": 0},
    description="Seconds to wait for a change, from when the request comes in. The answer comes with the first change, "
    "at once when the task has ended, and earlier than asked for when many wait already.",
)
ETAG = OpenApiParameter("ETag", str, "header", response=[200, 304], required=True, description="Of its content.")
IDEMPOTENCY_KEY = idempotency_key(
    "good for as long as the task is kept. A repeat with the same rule and the same bytes, or the same `file_key`, "
    "gets the first answer."
)


# ---- On the way in --------------------------------------------------------------------------------------------------

ACCEPTED = Answer(
    schemas.AcceptedTask,
    "The document is kept, and its task ends whatever dies meanwhile.",
    task=to("getTask", "Its state, and its result in the end.", **TASK),
    markdown=to("getMarkdown", "What OCR found.", **TASK),
    cancel=to("cancelTask", "Withdraw it before it begins.", **TASK),
    retry=to("retryTask", "Once more, when it has ended.", **TASK),
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
    "description": """Accepts a document, in the request or uploaded before, and answers at once; what becomes of it is
at `Location`. OCR makes Markdown of it, a rule makes JSON of that; without `rule_id` the default rule is taken, which
wraps the Markdown and asks no model.

**Costs** nothing but the rate and a place in the queue: 503 `queue_full` when there is none, then wait for
`Retry-After`. What is refused here, as empty, too large or of another kind, was not stored: send another file.
What only parsing shows ends the task with an `error` instead.

**Send an `Idempotency-Key`**, and repeat the request after any error of the network or 5xx: there is one task, and one
answer.""",
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The task."),
        retry_after(202, "task", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        asked("Uploaded before", {"file_key": examples.FILE_KEY, "rule_id": 3}, media_type="application/json"),
        answered("Accepted", examples.ACCEPTED, status=202),
        OpenApiExample("Unsupported", UNSUPPORTED, response_only=True, status_codes=["415"], media_type=CONTENT_TYPE),
    ],
}
UPLOADS: dict[str, Any] = {
    "summary": "Get a place to upload a document to",
    "description": """For what is large or far away: send the bytes to `upload_url` by PUT, exactly `size` of them, with
these `headers`, within fifteen minutes; then submit `file_key`. What is not submitted within a day is deleted. Size and
type are looked at here already, and again by the bytes when it is submitted.""",
    "examples": [asked("A PDF", examples.UPLOAD), answered("A place for it", examples.PLACE, status=201)],
}


# ---- Looking --------------------------------------------------------------------------------------------------------

ONE = Answer(
    schemas.Task,
    "The task as it is now, ended or not.",
    markdown=to("getMarkdown", "What OCR found.", **SAME_TASK),
    cancel=to("cancelTask", "Withdraw it before it begins.", **SAME_TASK),
    retry=to("retryTask", "Once more, when it has ended.", **SAME_TASK),
)
GET: dict[str, Any] = {
    "summary": "Look at a task",
    "description": """Always 200 for a task that is there: `status` says how it is. While it runs ask with `?wait=20`,
which answers with the first change, or watch `GET …/events`. `completed` brings the `result`, `failed` the `error`; its
`retryable` says whether `POST …/retry` may well help. Staff see every task.""",
    "parameters": [WAIT, retry_after(200, "task")],
    "examples": [
        answered("Running", examples.RUNNING),
        answered("Completed", examples.COMPLETED),
        answered("Failed", examples.FAILED),
    ],
}
LIST: dict[str, Any] = {
    "summary": "List my tasks",
    "description": "Newest first, without their results. With `status` a page may be shorter than `limit`: some moved "
    "on while it was read. Go on by `next`.",
    "parameters": [TASK_STATUS],
    "examples": [answered("Running", examples.SUMMARY)],
}
MARKDOWN: dict[str, Any] = {
    "summary": "Read what OCR found",
    "description": "Headings, tables and text, with a line `<!-- page: 2 -->` before each page. There as soon as OCR "
    "is done, also while post-processing runs or when it failed. 409 until then: ask the task how it is.",
    "parameters": [ETAG],
    "examples": [
        OpenApiExample(
            "Two pages", examples.MARKDOWN, response_only=True, status_codes=["200"], media_type="text/markdown"
        )
    ],
}
WATCH: dict[str, Any] = {
    "summary": "Watch a task",
    "description": """Server-sent events: a snapshot, then what changes, until the task has ended. In a browser
`new EventSource("/api/v1/etl/tasks/17/events")`.

Streams end after half an hour too. `EventSource` comes back by itself, and so should other clients, with the last id as
`Last-Event-ID`. 204 means that all was heard: stop. A user may have 50 streams open at a time.""",
    "parameters": [sse.LAST_EVENT_ID],
    "examples": [
        OpenApiExample(
            "To the end", examples.STREAM, response_only=True, status_codes=["200"], media_type="text/event-stream"
        )
    ],
}
EVENTS = OpenApiResponse(
    OpenApiTypes.STR,
    """Each event has an `id` that grows, and one line of JSON as `data`:

* `snapshot`: the task as `GET /api/v1/etl/tasks/{task_id}` shows it (`Task`)
* `progress`: `{"status", "phase", "progress"}`
* `status`: the same, with `error` and `at`, when the status has changed; the stream ends after `completed`, `failed` or
  `cancelled`

What changed several times in half a second is told once. A comment comes every ten seconds while nothing happens.""",
)
HEARD_ALL = OpenApiResponse(description="The client has heard all, the end included. `EventSource` stops at this.")


# ---- Changing -------------------------------------------------------------------------------------------------------

CANCEL: dict[str, Any] = {
    "summary": "Cancel a task",
    "description": "Only before it has begun. After a 200 the document never reaches an OCR provider; after a 409 the "
    "task goes on to its end.",
    "examples": [answered("Cancelled", {"task_id": 17, "status": "cancelled"})],
}
RETRY: dict[str, Any] = {
    "summary": "Run a task again",
    "description": """`postprocess` takes the stored result of OCR, `ocr` begins at the beginning. Any task that has
ended may be run again, also with another rule: that is how one document is put through a second rule without a second
OCR. `error` and `result` are gone then, the `task_id` stays. It takes a place in the queue as a submission does.
409 `artifact_missing`: begin with `ocr`.""",
    "parameters": [location(202, "The task."), retry_after(202, "task", required=True)],
    "examples": [
        asked("By another rule", {"from_stage": "postprocess", "rule_id": 5}),
        answered("Accepted", examples.ACCEPTED, status=202),
    ],
}
TRIAL: dict[str, Any] = {
    "summary": "Try a rule on Markdown",
    "description": """Post-processing of the given text, here and now: no task, nothing stored, one attempt, two minutes
at most. For writing a rule, before documents are put through it. Whatever post-processing ends with is 200: `ok` says
which. Costs what the model costs. 503 `too_many_trials`: a process tries eight at a time.""",
    "examples": [
        asked("A page", {"markdown": "Plate B-XY 123\n\nPaid: 4.50 EUR"}),
        answered("It works", examples.TRIED),
        answered("It does not", examples.NOT_TRIED),
    ],
}
