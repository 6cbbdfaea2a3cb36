"""What holds for every call: the first thing that readers of the OpenAPI schema see. Markdown."""

OVERVIEW = """Sluice exports many (key, date) slices of a dataset to object storage, and turns documents into JSON.
Both are jobs: a request is answered at once with 202 and a place to look at; workers do the rest, and what was accepted
ends whatever dies meanwhile.

### Signing in

Programs send `Authorization: Bearer slc_…`. Browsers that are signed in send their session, and with everything but
GET the value of the `csrftoken` cookie as `X-CSRFToken`. Downloads by a one-time link need neither. What belongs to
somebody else looks like something that is not there: 404.

### Errors

All are `application/problem+json` (RFC 9457). Programs switch on `code`; each response below lists the codes that it
can have. For bad input `errors` says what is wrong and where, by JSON Pointer. Fields that are not known are errors,
and what is refused has changed nothing. `requestId`, also the header `X-Request-ID`, helps to find the request in the
logs; send one of your own if you like.

Beyond what each operation lists, a path that there is not is 404, and a method that a path does not take is 405 with
`Allow`.

* **400**, **422**: mend the request
* **401**: get a new token
* **409**, **410**: look at what it is about, then decide
* **429**, **503**: the same request again, after `Retry-After` seconds
* **500**: the same request again; if it stays, tell the operator the `requestId`

### Doing it once

`POST /exports` and `POST /api/v1/etl/submit` take an `Idempotency-Key`. A repeat gets the first answer, byte for byte,
with `Idempotency-Replayed: true`; the same key with another body is 422.

### Lists

`{"results", "next", "previous"}`, newest first unless it says otherwise, 50 a page, up to 200 with `?limit=`. Follow
`next`, a full URL, until it is null. Rows that come or go meanwhile move nothing.

### Limits

Requests are counted by user: POSTs under `/exports` (`EXPORT_RATE`, 60 a minute), all else there
(`EXPORT_POLL_RATE`, 1,200), those about documents and rules (`ETL_RATE`, `ETL_POLL_RATE`); downloads by address
(`EXPORT_DOWNLOAD_RATE`, 600). One too many is 429 `rate_limited`. Exports have a quota of jobs and chunks a day
besides, `GET /exports/limits`: 429 `quota_exceeded`. A JSON body has 5 MiB at most.

### Waiting

Poll as `Retry-After` says; watch by server-sent events (`…/events`), which begin with a snapshot and go on after a
break by `Last-Event-ID`; or have webhooks tell you. Webhooks are at the end of this page and follow Standard Webhooks.

### Names and times

Fields are camelCase under `/exports` and snake_case under `/api/v1/etl`. Times are RFC 3339 in UTC with `Z`, dates
`YYYY-MM-DD`. Answers may get new fields, lists of codes new codes: ignore what you do not know.
"""
