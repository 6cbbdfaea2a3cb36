"""What the OpenAPI schema says of each operation of exports: what it is for, what it costs, what comes next.

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
from exports.api import examples
from exports.core.states import ChunkStatus, JobStatus
from exports.jobs import schemas
from exports.webhooks.schemas import NewWebhook, WebhookDelivery

DOWNLOADS, WEBHOOKS = ["downloads"], ["webhooks"]
JOB = {"jobId": "$response.body#/jobId"}
SAME_JOB = {"jobId": "$request.path.jobId"}
HOOK = {"webhookId": "$response.body#/id"}


# ---- Parameters and headers -----------------------------------------------------------------------------------------

JOB_STATUS = OpenApiParameter("status", enum=JobStatus.values, description="Only exports that have this status now.")
CHUNK_STATUS = OpenApiParameter("status", enum=ChunkStatus.values, description="Only chunks that have this status now.")
DATASET = OpenApiParameter("dataset", description="Its name; an unknown one gives an empty list.")
TOKEN = OpenApiParameter("token", required=True, description="Comes with the link.")
IDEMPOTENCY_KEY = idempotency_key(
    "good for as long as the job is kept. A repeat with the same body gets the first answer."
)
NO_STORE = OpenApiParameter("Cache-Control", str, "header", required=True, response=[302], enum=["no-store"])


# ---- Exports --------------------------------------------------------------------------------------------------------

REFUSED = {
    "type": "urn:problem:sluice:invalid",
    "title": "Bad Request",
    "status": 400,
    "detail": "The input is not valid.",
    "code": "invalid",
    "errors": [
        {"pointer": "/items/17/effectiveDate", "code": "invalid", "detail": "Must be a date written YYYY-MM-DD."},
        {"pointer": "/formt", "code": "unknown_field", "detail": "Unknown field."},
    ],
    "requestId": REQUEST_ID,
}
REQUESTS = [
    asked("Items", examples.ITEMS),
    asked("Filters", examples.FILTERS, "Every key on every day of the range. What is left out has its default."),
]
LIST: dict[str, Any] = {
    "summary": "List my exports",
    "description": "Newest first, each as `GET /exports/{jobId}` shows it. For one export ask for that one.",
    "parameters": [JOB_STATUS, DATASET],
    "examples": [answered("Running", examples.RUNNING)],
}
ACCEPTED = Answer(
    schemas.Accepted,
    "The job is kept, and ends whatever dies meanwhile.",
    job=to("getExport", "Its state, and its receipt in the end.", **JOB),
    chunks=to("listChunks", "Its slices.", **JOB),
    cancel=to("cancelExport", "End it.", **JOB),
    link=to("createLink", "A one-time link, once it has succeeded.", **JOB),
    replay=to("replayExport", "The same request again.", **JOB),
)
CREATE: dict[str, Any] = {
    "summary": "Export slices of a dataset",
    "description": """Accepts a job and answers at once; its state is at `Location`. One (key, date) is one chunk, one
call of the dataset's function and one file.

**Costs** one job and one chunk for each (key, date) of the day's quota (`GET /exports/limits`; `POST /exports/preview`
says it before). Chunks that end reused, failed or cancelled are given back. What is refused costs nothing.

**Send an `Idempotency-Key`**, and repeat the request after any error of the network or 5xx: there is one job, and one
answer. After 400 mend what `errors` points at. After 429 wait for `Retry-After`; with `quota_exceeded` that is until
midnight UTC, or ask for less.""",
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The job."),
        retry_after(202, "job", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        *REQUESTS,
        answered("Accepted", examples.ACCEPTED, status=202),
        OpenApiExample("Two mistakes", REFUSED, response_only=True, status_codes=["400"], media_type=CONTENT_TYPE),
    ],
}
PREVIEW: dict[str, Any] = {
    "summary": "See what an export would do",
    "description": "Takes what `POST /exports` takes, checks it in the same way, and counts: how many chunks, how many "
    "of them have a file that can be reused, what it costs. Changes nothing and costs nothing but the rate.",
    "examples": [*REQUESTS, answered("Preview", examples.PREVIEW)],
}
LIMITS: dict[str, Any] = {
    "summary": "Look at my limits",
    "description": "The day's quota, what is left of it, and when it begins anew; the largest job; the rate of "
    "requests that write. Costs nothing.",
    "examples": [answered("Limits", examples.LIMITS)],
}
DATASETS: dict[str, Any] = {
    "summary": "List what can be exported",
    "description": "All datasets with the formats they come in and the pattern of their keys, on one page.",
    "examples": [answered("Datasets", examples.DATASETS)],
}
ONE = Answer(
    schemas.Job,
    "The job as it is now, ended or not.",
    chunks=to("listChunks", "Its slices.", **SAME_JOB),
    cancel=to("cancelExport", "End it, while it runs.", **SAME_JOB),
    retry=to("retryExport", "The failed slices again, when it failed.", **SAME_JOB),
    link=to("createLink", "A one-time link, when it succeeded.", **SAME_JOB),
)
GET: dict[str, Any] = {
    "summary": "Look at an export",
    "description": """Always 200 for an export that is there: `status` says how it is. While it runs ask again after
`Retry-After`, or watch `GET /exports/{jobId}/events` instead. `success` brings the `receipt` with its link, `failed`
the `error`; its `retryable` says whether `POST …/retry` may well help. Staff see every export, without its link.""",
    "parameters": [retry_after(200, "job")],
    "examples": [
        answered("Running", examples.RUNNING),
        answered("Success", examples.SUCCESS),
        answered("Failed", examples.FAILED),
    ],
}
CHUNKS: dict[str, Any] = {
    "summary": "List an export's chunks",
    "description": "In the order of the request. `?status=failed` shows which slices failed, and why.",
    "parameters": [CHUNK_STATUS],
    "examples": [answered("Done", examples.CHUNK), answered("Failed", examples.FAILED_CHUNK)],
}
RETRY: dict[str, Any] = {
    "summary": "Run the failed chunks again",
    "description": """Only the failed ones, with all their attempts; what is done stays. Costs their number of chunks of
today's quota, given back when they fail again. 409 `not_failed` means that there is nothing to retry: look at the job.
For a job that succeeded or was cancelled use `POST …/replay`.""",
    "examples": [answered("Running again", examples.RETRIED, status=202)],
}
CANCEL: dict[str, Any] = {
    "summary": "Cancel an export",
    "description": "Ends it at once; running queries are ended soon after. Files that are done stay and can be reused. "
    "Chunks that were not done are given back to the quota. 409 `already_ended`: it was faster.",
    "examples": [answered("Cancelled", examples.CANCELLED)],
}
REPLAY: dict[str, Any] = {
    "summary": "Export the same again",
    "description": "The same request as a new job of whoever asks. Costs what a new export costs; with `reuse` files "
    "that are there need no call, and are given back. 409 `not_replayable`: make a new request instead.",
    "parameters": [location(202, "The new job."), retry_after(202, "job", required=True)],
    "examples": [answered("Accepted", examples.REPLAYED, status=202)],
}
WATCH: dict[str, Any] = {
    "summary": "Watch an export",
    "description": """Server-sent events: a snapshot, then what changes, until the export has ended. Instead of asking
again and again; in a browser `new EventSource("/exports/…/events")`.

Streams end after half an hour too. `EventSource` comes back by itself, and so should other clients: with the last id as
`Last-Event-ID` they miss nothing and hear nothing twice. 204 means that all was heard: stop. A user may have 50 streams
open at a time.""",
    "parameters": [sse.LAST_EVENT_ID],
    "examples": [
        OpenApiExample(
            "To the end",
            examples.STREAM,
            response_only=True,
            status_codes=["200"],
            media_type="text/event-stream",
        )
    ],
}
EVENTS = OpenApiResponse(
    OpenApiTypes.STR,
    """Each event has an `id` that grows, and one line of JSON as `data`:

* `snapshot`: the job as `GET /exports/{jobId}` shows it (`Job`); only where `Last-Event-ID` did not lead on
* `chunk`: a chunk that changed, as `GET /exports/{jobId}/chunks` shows it (`Chunk`)
* `progress`: the job's `progress` (`Progress`), once after any number of chunks
* `status`: `{"status", "error", "at"}`; the stream ends after `success`, `failed` or `cancelled`

A comment comes every ten seconds while nothing happens.""",
)
HEARD_ALL = OpenApiResponse(description="The client has heard all, the end included. `EventSource` stops at this.")


# ---- Downloads ------------------------------------------------------------------------------------------------------

LINK: dict[str, Any] = {
    "summary": "Get a new one-time link",
    "description": """For when the receipt's link was used, or is for another client. It is bound to the client that
asks for it, its network and its User-Agent, and lives as long as the receipt; the link before is revoked. Only the
owner may ask. 409 `not_ready`: wait for the end. 410 `receipt_expired`: `POST …/replay` makes a new one.""",
    "tags": DOWNLOADS,
    "examples": [answered("Link", examples.LINK)],
}
DOWNLOAD: dict[str, Any] = {
    "summary": "Use a link up",
    "description": """Where `signedUrl` leads: a redirect to the object storage, once. Needs no sign-in; send none, and
follow redirects (`curl -L`). HEAD answers 200 with type, length and name, or 403, and uses nothing up, as does a
prefetch. What a 403 means is in its `code`; the owner gets a new link by `POST …/link` while the receipt lives.
Addresses that ask very often are refused for a while, against guessing.""",
    "tags": DOWNLOADS,
    "parameters": [TOKEN, location(302, "A presigned URL, good for a minute at most."), NO_STORE],
}
FILE: dict[str, Any] = {
    "summary": "Fetch one file of a manifest",
    "description": "Where the `url`s of a manifest (`delivery: manifest`) lead: a redirect to the object storage, for "
    "the owner, as often as wanted while the receipt lives. 410 `file_superseded`: a later export has newer data.",
    "tags": DOWNLOADS,
    "parameters": [location(302, "A presigned URL, good for a minute at most."), NO_STORE],
}


# ---- Webhooks -------------------------------------------------------------------------------------------------------

LIST_WEBHOOKS: dict[str, Any] = {
    "summary": "List my webhooks",
    "description": "Newest first, without their secrets: those are shown once, when they are made.",
    "tags": WEBHOOKS,
    "examples": [answered("Webhook", examples.WEBHOOK)],
}
MADE = Answer(
    NewWebhook,
    "It is told of all ends from now on.",
    webhook=to("getWebhook", "Look at it.", **HOOK),
    test=to("testWebhook", "See that it works.", **HOOK),
    deliveries=to("listDeliveries", "What was sent.", **HOOK),
    rotate=to("rotateWebhookSecret", "Another secret.", **HOOK),
    change=to("changeWebhook", "Change or switch it off.", **HOOK),
    delete=to("deleteWebhook", "Delete it.", **HOOK),
)
CREATE_WEBHOOK: dict[str, Any] = {
    "summary": "Be told when exports end",
    "description": """Ends from now on are posted to `url`, signed as
[Standard Webhooks](https://www.standardwebhooks.com) says. The `secret` to check signatures with is in this answer
alone: keep it. A user may have 100 webhooks. The URL must be https and lead to public addresses, or 400 at `/url`.""",
    "tags": WEBHOOKS,
    "parameters": [location(201, "The webhook.")],
    "examples": [
        asked("To a shop", examples.NEW_WEBHOOK),
        answered("Made", {**examples.WEBHOOK, "secret": examples.SECRET}, status=201),
    ],
}
GET_WEBHOOK: dict[str, Any] = {
    "summary": "Look at a webhook",
    "description": "Without its secret. `disabledReason` says why it is off: by a person, by the receiver's "
    "410, or after days of failures.",
    "tags": WEBHOOKS,
    "examples": [answered("Webhook", examples.WEBHOOK)],
}
CHANGE_WEBHOOK: dict[str, Any] = {
    "summary": "Change a webhook",
    "description": "What is left out stays as it is. `enabled: true` begins anew: what waits goes out.",
    "tags": WEBHOOKS,
    "examples": [
        asked("Switch off", {"enabled": False}),
        answered("Off", {**examples.WEBHOOK, "enabled": False, "disabledReason": "Disabled by a user."}),
    ],
}
DELETE_WEBHOOK: dict[str, Any] = {
    "summary": "Delete a webhook",
    "description": "With all its deliveries, also those that wait.",
    "tags": WEBHOOKS,
}
ROTATE: dict[str, Any] = {
    "summary": "Get a new secret",
    "description": "In this answer alone. The old one goes on signing beside it for 24 hours, so that receivers can "
    "change over; one that was replaced before ends at once.",
    "tags": WEBHOOKS,
    "examples": [answered("Secret", {"secret": examples.SECRET})],
}
TEST: dict[str, Any] = {
    "summary": "Send a test",
    "description": "Its type is `webhook.test`. It goes out even while the webhook is disabled, in one attempt; "
    "`GET …/deliveries` shows how it went. There is one test at a time: 409 `delivery_pending` until it has ended.",
    "tags": WEBHOOKS,
    "examples": [answered("On its way", examples.TEST, status=202)],
}
TESTED = Answer(
    WebhookDelivery,
    "It is on its way.",
    deliveries=to("listDeliveries", "How it went.", webhookId="$request.path.webhookId"),
    again=to(
        "redeliver",
        "The same again, when it has ended.",
        webhookId="$request.path.webhookId",
        deliveryId="$response.body#/id",
    ),
)
DELIVERIES: dict[str, Any] = {
    "summary": "List what was sent",
    "description": "Newest first, each with the log of its newest 20 attempts; 30 days back.",
    "tags": WEBHOOKS,
    "examples": [answered("Delivered", examples.DELIVERY)],
}
REDELIVER: dict[str, Any] = {
    "summary": "Send a delivery again",
    "description": "The same `webhook-id` and the same bytes, with all attempts; a test has one. A delivery that waits "
    "for its next attempt is sent now, and keeps the attempts that it had.",
    "tags": WEBHOOKS,
    "examples": [answered("On its way", examples.WAITING, status=202)],
}
