"""OpenAPI texts, parameters, and examples of the operations on exports.

Most constants are keyword arguments of `extend_schema`. The views add the operation ID, the request, and the problems.
Requests do not use this module.
"""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from config.platform.http import sse
from config.platform.http.openapi.responses import (
    IDEMPOTENCY_REPLAYED,
    REQUEST_ID,
    LinkedResponse,
    file_response,
    idempotency_key,
    link_to,
    location,
    request_example,
    response_example,
    retry_after,
)
from config.platform.http.problems import CONTENT_TYPE, BadInput, InputError
from config.platform.http.serializers import INVALID_DATE
from config.platform.webhooks.schemas import WebhookDelivery, WebhookWithSecret
from exports.api import examples
from exports.core.states import ChunkStatus, JobStatus
from exports.jobs import schemas

DOWNLOADS, WEBHOOKS = ["downloads"], ["webhooks"]
JOB = {"jobId": "$response.body#/jobId"}
SAME_JOB = {"jobId": "$request.path.jobId"}
HOOK = {"webhookId": "$response.body#/id"}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

JOB_STATUS = OpenApiParameter("status", enum=JobStatus.values, description="Return only exports with this status.")
CHUNK_STATUS = OpenApiParameter("status", enum=ChunkStatus.values, description="Return only chunks with this status.")
NAME_OR_ID = OpenApiParameter(
    "q",
    {"type": "string", "maxLength": 255},
    description="Part of the name, ignoring case (if it has fewer than three characters, the beginning of the "
    "name); or the ID, or at least its first eight digits.",
)
DATASET = OpenApiParameter("dataset", description="Name of the dataset. An unknown name returns an empty list.")
FIRST_DAY = OpenApiParameter(
    "from", OpenApiTypes.DATE, description="Return only exports that were created on this day or later, in UTC."
)
LAST_DAY = OpenApiParameter(
    "to", OpenApiTypes.DATE, description="Return only exports that were created on this day or earlier, in UTC."
)
SCHEDULE_ID = OpenApiParameter(
    "scheduleId", OpenApiTypes.UUID, description="Return only exports that this schedule created."
)
TOKEN = OpenApiParameter("token", required=True, description="Signed token of the link, from `signedUrl`.")
IDEMPOTENCY_KEY = idempotency_key(
    "valid for as long as the job exists. A repeated request with the same body returns the first response."
)
THE_FILE = file_response("application/octet-stream", "The file, for clients that follow the redirect.")
NO_STORE = OpenApiParameter("Cache-Control", str, "header", required=True, response=[302], enum=["no-store"])


# ---- Exports --------------------------------------------------------------------------------------------------------

REFUSED = BadInput(
    InputError(pointer="/items/17/effectiveDate", code="invalid", detail=INVALID_DATE),
    InputError(pointer="/formt", code="unknown_field", detail="Unknown field."),
).body() | {"requestId": REQUEST_ID}
REQUESTS = [
    request_example("Items", examples.ITEMS),
    request_example(
        "Filters", examples.FILTERS, "Every key on every day of the range. Omitted fields have default values."
    ),
    request_example("Documents", examples.DOCUMENTS, "Results of your documents, one row each, in one file."),
]
LIST: dict[str, Any] = {
    "summary": "List exports",
    "description": "Returns your exports, newest first, in the format of `GET /exports/{jobId}`.",
    "parameters": [NAME_OR_ID, JOB_STATUS, DATASET, FIRST_DAY, LAST_DAY, SCHEDULE_ID],
    "examples": [response_example("Running", examples.RUNNING)],
}
ACCEPTED = LinkedResponse(
    schemas.Accepted,
    "The job is stored, and survives process crashes.",
    job=link_to("getExport", "Its status and, after success, its receipt.", **JOB),
    chunks=link_to("listChunks", "Its chunks.", **JOB),
    cancel=link_to("cancelExport", "Cancel it.", **JOB),
    link=link_to("createLink", "A one-time download link, after success.", **JOB),
    replay=link_to("replayExport", "Submit the same request again.", **JOB),
)
CREATE: dict[str, Any] = {
    "summary": "Create an export",
    "description": """Creates an export job and returns immediately. Poll the URL in `Location` for its status. Each
(key, date) pair is one chunk: one call of the dataset's function, and one file.

**Quota:** one job, and one chunk per (key, date) pair. `POST /exports/preview` returns the cost in advance, and
`GET /exports/limits` returns what is left. Chunks that end reused, failed or cancelled are refunded. Refused requests
cost nothing.

**Send an `Idempotency-Key`** so that you can safely repeat the request after a network error or 5xx: it creates one job
and returns the same response. After 400, fix the fields listed in `errors`. After 429, wait for `Retry-After`; for
`quota_exceeded` that is midnight UTC, unless you request fewer chunks.""",
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The job."),
        retry_after(202, "job", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        *REQUESTS,
        response_example("Accepted", examples.ACCEPTED, status=202),
        response_example("Two errors", REFUSED, status=400, media_type=CONTENT_TYPE),
    ],
}
PREVIEW: dict[str, Any] = {
    "summary": "Preview an export",
    "description": "Takes the same body as `POST /exports`, validates it in the same way, and returns the number of "
    "chunks, how many of them can reuse a file, and the cost. Changes nothing and uses no quota, but counts toward "
    "the rate limit.",
    "examples": [*REQUESTS, response_example("Preview", examples.PREVIEW)],
}
LIMITS: dict[str, Any] = {
    "summary": "Get your limits",
    "description": "Returns the daily quota, its usage and its reset time, the maximum size of a job, and the rate "
    "limit for POST requests.",
    "examples": [response_example("Limits", examples.LIMITS)],
}
DATASETS: dict[str, Any] = {
    "summary": "List datasets",
    "description": "Returns all datasets that you can export, on a single page, with their formats and key patterns. "
    "Access to a dataset can be limited to groups of users, and to some of its keys; other users get 404. The last "
    "dataset, `documents`, contains the results of your documents.",
    "examples": [response_example("Datasets", examples.DATASETS)],
}
ONE_DATASET: dict[str, Any] = {
    "summary": "Get a dataset",
    "description": "Returns the dataset with its columns, as of its latest registration. To export only some columns, "
    "list them in `columns` of the request.",
    "examples": [response_example("Dataset", examples.DATASET)],
}
ONE = LinkedResponse(
    schemas.Job,
    "The current state of the job.",
    chunks=link_to("listChunks", "Its chunks.", **SAME_JOB),
    cancel=link_to("cancelExport", "Cancel it, while it is active.", **SAME_JOB),
    retry=link_to("retryExport", "Retry its failed chunks, if it failed.", **SAME_JOB),
    link=link_to("createLink", "A one-time download link, if it succeeded.", **SAME_JOB),
)
GET: dict[str, Any] = {
    "summary": "Get an export",
    "description": """Returns 200 for every export that exists, whatever its `status`. While the export is active, poll
again after `Retry-After` seconds, or subscribe to `GET /exports/{jobId}/events` instead. After `success`, `receipt`
contains the download link. After `failed`, `error` contains the cause. If its
`retryable` is true, `POST …/retry` may succeed. Staff with the permission can read every export, but not its link.""",
    "parameters": [retry_after(200, "job")],
    "examples": [
        response_example("Running", examples.RUNNING),
        response_example("Success", examples.SUCCESS),
        response_example("Failed", examples.FAILED),
    ],
}
CHUNKS: dict[str, Any] = {
    "summary": "List the chunks of an export",
    "description": "Returns the chunks in the order of the request. Use `?status=failed` for the failed chunks and "
    "their errors.",
    "parameters": [CHUNK_STATUS],
    "examples": [response_example("Done", examples.CHUNK), response_example("Failed", examples.FAILED_CHUNK)],
}
RETRY: dict[str, Any] = {
    "summary": "Retry failed chunks",
    "description": """Runs the failed chunks again, each with the full number of attempts. Finished chunks keep their
files. The retried chunks are charged to today's quota and refunded if they fail again. 409 `not_failed`: the export has
not failed; check its status. For an export that succeeded or was cancelled, use `POST …/replay`.""",
    "examples": [response_example("Running again", examples.RETRIED, status=202)],
}
CANCEL: dict[str, Any] = {
    "summary": "Cancel an export",
    "description": "Cancels the export immediately; running queries stop shortly after. Finished files are kept and "
    "can be reused. Unfinished chunks are refunded. 409 `already_ended`: the export ended first.",
    "examples": [response_example("Cancelled", examples.CANCELLED)],
}
REPLAY: dict[str, Any] = {
    "summary": "Replay an export",
    "description": "Submits the same request as a new job, which you own. It costs as much as a new export; chunks "
    "that reuse a file are refunded. 409 `not_replayable`: the limits, the dataset, or your access to it have changed; "
    "create a new export instead.",
    "parameters": [location(202, "The new job."), retry_after(202, "job", required=True)],
    "examples": [response_example("Accepted", examples.REPLAYED, status=202)],
}
WATCH: dict[str, Any] = {
    "summary": "Stream the events of an export",
    "description": """Server-sent events: a snapshot, then every change until the export ends. Use this instead of
polling. In a browser: `new EventSource("/exports/…/events")`.

A stream also ends after 30 minutes. `EventSource` reconnects automatically, and other clients should do the same: with
`Last-Event-ID` set to the last id they received, they get every event exactly once. 204 means that there are no more
events: stop. A user can have up to 50 open streams per server process.""",
    "parameters": [sse.LAST_EVENT_ID],
    "examples": [response_example("Until the end", examples.STREAM, media_type=sse.MEDIA_TYPE)],
}
EVENTS = OpenApiResponse(
    OpenApiTypes.STR,
    """Each event has an increasing `id`, and a single line of JSON as `data`:

* `snapshot`: the job in the format of `GET /exports/{jobId}` (`Job`); only if the stream could not resume at
  `Last-Event-ID`
* `chunk`: a changed chunk in the format of `GET /exports/{jobId}/chunks` (`Chunk`)
* `progress`: the job's `progress` (`Progress`), once after a group of chunks
* `status`: `{"status", "error", "at"}`; the stream ends after `success`, `failed` or `cancelled`

While there are no events, the server sends a comment every ten seconds.""",
)
NO_MORE_EVENTS = OpenApiResponse(
    description="The export has ended, and the client has received every event. `EventSource` does not reconnect."
)


# ---- Downloads ------------------------------------------------------------------------------------------------------

LINK: dict[str, Any] = {
    "summary": "Create a one-time link",
    "description": """Creates a new link and revokes the previous one. Use it if the previous link was used or has
expired, or if another client needs one, any number of times until `deliveryExpiresAt`. A link works once, for some
minutes, from the network and with the User-Agent of the client that creates it. Only the owner can create links. 409
`not_ready`: wait until the export ends. 410 `receipt_expired`: use `POST …/replay`.""",
    "tags": DOWNLOADS,
    "examples": [response_example("Link", examples.LINK)],
}
DOWNLOAD: dict[str, Any] = {
    "summary": "Download by a one-time link",
    "description": """The target of `signedUrl`: redirects to object storage, once. Send no credentials, and follow
redirects (`curl -L`). HEAD returns the type, the length and the file name, or 403, without using up the link, and a
prefetch does not use it up either. For 403, `code` contains the reason. The owner can create a new link by
`POST …/link` until the delivery expires. To prevent guessing, requests are rate-limited per IP address.""",
    "tags": DOWNLOADS,
    "parameters": [TOKEN, location(302, "Presigned URL, valid for one minute at most."), NO_STORE],
}
FILE: dict[str, Any] = {
    "summary": "Download a file of a manifest",
    "description": "The target of each `url` in a manifest (`delivery: manifest`): redirects to object storage. The "
    "owner can use it any number of times until the delivery expires, and always gets the bytes that the manifest "
    "describes. For other deliveries, 410 `file_superseded` is possible: a later export replaced the file before it "
    "was first requested, and the delivery has no copy.",
    "tags": DOWNLOADS,
    "parameters": [location(302, "Presigned URL, valid for one minute at most."), NO_STORE],
}


# ---- Webhooks -------------------------------------------------------------------------------------------------------

LIST_WEBHOOKS: dict[str, Any] = {
    "summary": "List webhooks",
    "description": "Returns your webhooks, newest first, without their secrets.",
    "tags": WEBHOOKS,
    "examples": [response_example("Webhook", examples.WEBHOOK)],
}
CREATED = LinkedResponse(
    WebhookWithSecret,
    "The webhook receives every event from now on.",
    webhook=link_to("getWebhook", "Get it.", **HOOK),
    test=link_to("testWebhook", "Send a test delivery.", **HOOK),
    deliveries=link_to("listDeliveries", "Its deliveries.", **HOOK),
    rotate=link_to("rotateWebhookSecret", "Replace its secret.", **HOOK),
    change=link_to("changeWebhook", "Update or disable it.", **HOOK),
    delete=link_to("deleteWebhook", "Delete it.", **HOOK),
)
CREATE_WEBHOOK: dict[str, Any] = {
    "summary": "Create a webhook",
    "description": """Sends a POST request to `url` when an export or a document ends, signed according to
[Standard Webhooks](https://www.standardwebhooks.com). Store the `secret`, which verifies the signatures: it is returned
only in this response. A user can have up to 100 webhooks. The URL must use https and resolve to public IP addresses;
otherwise the response is 400 with an error at `/url`.""",
    "tags": WEBHOOKS,
    "parameters": [location(201, "The webhook.")],
    "examples": [
        request_example("New webhook", examples.NEW_WEBHOOK),
        response_example("Created", {**examples.WEBHOOK, "secret": examples.SECRET}, status=201),
    ],
}
GET_WEBHOOK: dict[str, Any] = {
    "summary": "Get a webhook",
    "description": "Returns the webhook without its secret. `disabledReason` is set if it was disabled: by a user, by "
    "a 410 from the receiver, or after days of failures.",
    "tags": WEBHOOKS,
    "examples": [response_example("Webhook", examples.WEBHOOK)],
}
CHANGE_WEBHOOK: dict[str, Any] = {
    "summary": "Update a webhook",
    "description": "Omitted fields keep their values. `enabled: true` resets the failure count and sends the pending "
    "deliveries.",
    "tags": WEBHOOKS,
    "examples": [
        request_example("Disable", {"enabled": False}),
        response_example("Disabled", {**examples.WEBHOOK, "enabled": False, "disabledReason": "Disabled by a user."}),
    ],
}
DELETE_WEBHOOK: dict[str, Any] = {
    "summary": "Delete a webhook",
    "description": "Deletes the webhook and all its deliveries, including pending ones.",
    "tags": WEBHOOKS,
}
ROTATE: dict[str, Any] = {
    "summary": "Rotate the secret of a webhook",
    "description": "Returns a new secret, only in this response. For 24 hours deliveries are signed with the old "
    "secret as well, so that you can update the receiver. A secret from an earlier rotation stops working immediately.",
    "tags": WEBHOOKS,
    "examples": [response_example("Secret", {"secret": examples.SECRET})],
}
TEST: dict[str, Any] = {
    "summary": "Send a test delivery",
    "description": "Sends a delivery of type `webhook.test`, in a single attempt, even if the webhook is disabled. "
    "`GET …/deliveries` returns the result. 409 `delivery_pending`: the previous test has not ended yet.",
    "tags": WEBHOOKS,
    "examples": [response_example("Queued", examples.TEST, status=202)],
}
TESTED = LinkedResponse(
    WebhookDelivery,
    "The delivery is queued.",
    deliveries=link_to("listDeliveries", "Its result.", webhookId="$request.path.webhookId"),
    again=link_to(
        "redeliver",
        "Send it again, after it has ended.",
        webhookId="$request.path.webhookId",
        deliveryId="$response.body#/id",
    ),
)
DELIVERIES: dict[str, Any] = {
    "summary": "List the deliveries of a webhook",
    "description": "Returns the deliveries of the last 30 days, newest first, each with a log of its latest 20 "
    "attempts.",
    "tags": WEBHOOKS,
    "examples": [response_example("Delivered", examples.DELIVERY)],
}
REDELIVER: dict[str, Any] = {
    "summary": "Redeliver",
    "description": "Sends the delivery again with the same `webhook-id` and the same body, and the full number of "
    "attempts (one for a test). A delivery that waits for its next attempt is sent immediately and keeps its count.",
    "tags": WEBHOOKS,
    "examples": [response_example("Queued", examples.WAITING, status=202)],
}
