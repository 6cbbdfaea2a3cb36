"""OpenAPI texts and examples of the operations on schedules. See `exports.api.openapi`."""

from typing import Any

from config.platform.http.openapi.responses import (
    IDEMPOTENCY_REPLAYED,
    LinkedResponse,
    idempotency_key,
    link_to,
    location,
    request_example,
    response_example,
    retry_after,
)
from exports.api import examples
from exports.api.openapi import IDEMPOTENCY_KEY
from exports.schedules import schemas

SCHEDULES = ["schedules"]
MINE = {"scheduleId": "$response.body#/id"}

LIST: dict[str, Any] = {
    "summary": "List schedules",
    "description": "Returns your schedules, newest first, with their next planned time and their last run.",
    "tags": SCHEDULES,
    "examples": [response_example("Schedule", examples.SCHEDULE)],
}
CREATED = LinkedResponse(
    schemas.Schedule,
    "The schedule runs at its planned times from now on.",
    schedule=link_to("getSchedule", "Get it.", **MINE),
    run=link_to("runSchedule", "Run it now.", **MINE),
    change=link_to("changeSchedule", "Change, pause or resume it.", **MINE),
    delete=link_to("deleteSchedule", "Delete it.", **MINE),
)
CREATE: dict[str, Any] = {
    "summary": "Create a schedule",
    "description": """Creates an export at each time of a cron expression in a time zone. `request` is validated like
the body of `POST /exports`, with errors below `/request`. Each run exports every key for every day of `window`, which
is relative to the local date of the planned time. It is charged to your quota.

**Daylight saving time:** a time that does not exist runs right after the gap. A time of day that exists twice runs
once. An expression whose minute or hour begins with `*` follows elapsed time instead.

**One run at a time:** if the export of the earlier run has not ended, `misfire: skip` skips the planned time, and
`catch_up` waits for the end. If the service was down, `skip` skips the missed times, and `catch_up` runs the most
recent ones, up to the limit of the server.

**Refused runs:** a run that exceeds your quota is not retried; `lastRun` contains the reason. If the request is no
longer valid, for example after a change of the dataset, the schedule is disabled; `disabledReason` contains the reason.

A user can have up to 100 schedules.""",
    "tags": SCHEDULES,
    "parameters": [
        idempotency_key(
            "valid for as long as the schedule exists. A repeated request with the same body returns that schedule as "
            "it is now."
        ),
        location(201, "The schedule."),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [
        request_example("Yesterday, each morning", examples.NEW_SCHEDULE),
        response_example("Created", examples.SCHEDULE, status=201),
    ],
}
GET: dict[str, Any] = {
    "summary": "Get a schedule",
    "description": "Returns the schedule. `GET /exports?scheduleId=…` lists its exports.",
    "tags": SCHEDULES,
    "examples": [response_example("Schedule", examples.SCHEDULE)],
}
CHANGE: dict[str, Any] = {
    "summary": "Update a schedule",
    "description": "Omitted fields keep their values. If two clients update a schedule, the last update wins. "
    "`request` and `window` are replaced completely. After a change of the timetable and after `enabled: true`, the "
    "next planned time is the first one in the future.",
    "tags": SCHEDULES,
    "examples": [
        request_example("Pause", {"enabled": False}),
        response_example(
            "Paused",
            {**examples.SCHEDULE, "enabled": False, "disabledReason": "Paused by a user.", "nextRunAt": None},
        ),
    ],
}
DELETE: dict[str, Any] = {
    "summary": "Delete a schedule",
    "description": "Deletes the schedule and its history. Its exports stay, and active ones continue.",
    "tags": SCHEDULES,
}
RUN: dict[str, Any] = {
    "summary": "Run a schedule now",
    "description": "Creates an export for today's date, even if the schedule is disabled. The next planned time "
    "does not change. 409 `run_active`: the export of an earlier run has not ended. 409 `schedule_invalid`: the "
    "request is no longer valid; update the schedule.",
    "tags": SCHEDULES,
    "parameters": [
        IDEMPOTENCY_KEY,
        location(202, "The job."),
        retry_after(202, "job", required=True),
        IDEMPOTENCY_REPLAYED,
    ],
    "examples": [response_example("Accepted", examples.ACCEPTED, status=202)],
}
