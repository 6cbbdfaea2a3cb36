"""Types of response bodies. `representation` builds the bodies, and the OpenAPI document is derived from the types."""

from datetime import datetime
from typing import Annotated, Any, TypedDict

from config.platform.http.openapi.response_schemas import Uuid, choices
from exports.core.states import JobStatus
from exports.models.schedule import Misfire, ScheduleRun

PURGED = "purged"
RUN_STATUSES = [
    *JobStatus.values,
    *(each for each in ScheduleRun.Outcome.values if each != ScheduleRun.Outcome.STARTED),
    PURGED,
]

ScheduleWindow = TypedDict(
    "ScheduleWindow",
    {
        "unit": Annotated[str, choices(["day"])],
        "from": Annotated[int, "First day, relative to the local date of the planned time. -1 is the day before."],
        "to": Annotated[int, "Last day, inclusive."],
    },
)


class LastRun(TypedDict):
    jobId: Annotated[Uuid | None, "Export of this run. Null if none was created."]
    status: Annotated[
        str,
        choices(RUN_STATUSES),
        "Status of the export. Without one: `skipped`, `refused` (quota exceeded) or `invalid` (the schedule was "
        "disabled). `purged`: the export was deleted after its retention.",
    ]
    startedAt: Annotated[datetime, "When the run was started, skipped or refused."]
    plannedAt: Annotated[datetime | None, "Null for a run that a user started."]
    detail: Annotated[str | None, "Why no export was created."]


class Schedule(TypedDict):
    id: Uuid
    name: str
    cron: str
    timezone: str
    request: Annotated[dict[str, Any], "Request of the exports, as in `POST /exports`, with `keys`."]
    window: ScheduleWindow
    sinceLastSuccess: Annotated[
        bool, "Each run begins with the day after the last exported one, if that is before the window."
    ]
    misfire: Annotated[str, choices(Misfire)]
    enabled: bool
    disabledReason: Annotated[str | None, "Why the schedule is disabled."]
    nextRunAt: Annotated[datetime | None, "The next planned time. Null while the schedule is disabled."]
    lastRun: LastRun | None
    createdAt: datetime
