"""Introduction of the OpenAPI schema, in Markdown: the rules for all operations."""

OVERVIEW = """Sluice exports the chunks (key and date) of a dataset to object storage, and converts documents to JSON.
Both run as background jobs. A request gets an immediate 202 response with the URL of its job, and workers process the
job. An accepted job survives process crashes.

### Authentication

Programs send `Authorization: Bearer slc_…`. Signed-in browsers send their session cookie and, with all methods except
GET, the value of the `csrftoken` cookie as `X-CSRFToken`. One-time download links need neither. Resources of other
users return 404.

### Errors

All errors are `application/problem+json` (RFC 9457). Programs should check `code`; each response below lists its
possible codes. For invalid input, `errors` lists up to 100 errors, each with a JSON Pointer to its location. Unknown
fields are errors. A rejected request changes nothing. `requestId`, also sent as the header `X-Request-ID`, identifies
the request in the logs. You can send your own.

In addition to the listed responses, an unknown path returns 404, and an unsupported method returns 405 with `Allow`.

* **400**, **422**: correct the request
* **401**: get a new token
* **409**, **410**: check the state of the resource, then decide
* **429**, **503**: repeat the request after `Retry-After` seconds
* **500**: repeat the request; if the error persists, send the `requestId` to the operator

### Idempotency

Operations that create something accept an `Idempotency-Key` if their parameters list it. A repeated request creates
nothing and gets the first response, with `Idempotency-Replayed: true`. For a schedule, this is its current state. The
same key with a different body returns 422.

### Lists

Lists have the form `{"results", "next", "previous"}`, newest first unless stated otherwise, with 50 rows per page, or
up to 200 with `?limit=`. Follow `next`, a full URL, until it is null. Rows that are added or deleted in the meantime do
not shift the pages.

### Limits

Requests are counted per user: POST requests under `/exports` and `/webhooks` (`EXPORT_RATE`, 60 per minute), other
requests there (`EXPORT_POLL_RATE`, 1,200), and writes and reads of documents and rules (`ETL_RATE`, `ETL_POLL_RATE`).
Downloads are counted per address (`EXPORT_DOWNLOAD_RATE`, 600). Requests over the limit return 429 `rate_limited`.
Users also have quotas, shown by `GET /exports/limits` and `GET /api/v1/etl/limits`; requests over them return 429
`quota_exceeded`. A JSON body of `POST /exports`, its preview, a test of a rule, or a corrected result can have up to 5
MiB, a sample 1 MiB, a batch of uploads 64 KiB and 256 bytes per document, a rule 256 KiB, and others 64 KiB.

### Waiting for results

Poll at the interval in `Retry-After`, subscribe to server-sent events (`…/events`), or register a webhook. Event
streams start with a snapshot and resume after a disconnect with `Last-Event-ID`. Webhooks follow the Standard Webhooks
specification and are described at the end of this page.

### Names and times

Fields are camelCase under `/exports` and `/webhooks`, and snake_case under `/api/v1/etl`. Times are RFC 3339 in
UTC with `Z`, and dates are `YYYY-MM-DD`. Responses may get new fields and new codes: ignore unknown ones.
"""
