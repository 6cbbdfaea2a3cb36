"""Recurring exports, at the times of a cron expression."""

from collections.abc import AsyncIterator
from typing import Any, Literal
from uuid import UUID

from sluice.api import Api, given, json_body
from sluice.blocking import Methods, iterator, method
from sluice.models import AcceptedExport, Schedule

PATH = "/exports/schedules"
Which = Schedule | UUID | str


def path_of(schedule: Which) -> str:
    return f"{PATH}/{schedule.id if isinstance(schedule, Schedule) else schedule}"


class AsyncSchedules:
    """The schedules of a user. Methods take a schedule as an object or its id."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def create(
        self,
        name: str,
        cron: str,
        request: dict[str, Any],
        *,
        timezone: str | None = None,
        first_day: int = -1,
        last_day: int = -1,
        since_last_success: bool = False,
        misfire: Literal["skip", "catch_up"] | None = None,
        enabled: bool = True,
        idempotency_key: str | None = None,
    ) -> Schedule:
        """Create a schedule. Each run exports days relative to its own day, by default the day before.

        `since_last_success`: also the days since the last successful export.
        `request`: as in the API, such as `{"dataset": "flights", "keys": ["JFK"], "format": "parquet"}`.
        """
        body = given(
            name=name, cron=cron, request=request, timezone=timezone, misfire=misfire, enabled=enabled,
            window={"unit": "day", "from": first_day, "to": last_day}, sinceLastSuccess=since_last_success or None,
        )  # fmt: skip
        return Schedule.of(await self.api.create(PATH, json_body(body), key=idempotency_key))

    async def get(self, schedule: Which) -> Schedule:
        return Schedule.of(await self.api.get(path_of(schedule)))

    async def list(self, *, limit: int | None = None) -> AsyncIterator[Schedule]:
        """Yield schedules, newest first."""
        async for each in self.api.pages(PATH, limit=limit):
            yield Schedule.of(each)

    async def update(self, schedule: Which, /, **changes: Any) -> Schedule:
        """Change fields of a schedule, such as `enabled`."""
        return Schedule.of(await self.api.patch(path_of(schedule), changes))

    async def run(self, schedule: Which) -> AcceptedExport:
        """Create an export now, for today. The next planned time does not change."""
        return AcceptedExport.of(await self.api.create(f"{path_of(schedule)}/run", dict))

    async def delete(self, schedule: Which) -> None:
        """Delete a schedule and its history. Its exports are kept."""
        await self.api.request("DELETE", path_of(schedule), repeatable=True)


class Schedules(Methods):
    """The schedules of a user. Methods take a schedule as an object or its id."""

    create = method(AsyncSchedules.create)
    get = method(AsyncSchedules.get)
    list = iterator(AsyncSchedules.list)
    update = method(AsyncSchedules.update)
    run = method(AsyncSchedules.run)
    delete = method(AsyncSchedules.delete)
