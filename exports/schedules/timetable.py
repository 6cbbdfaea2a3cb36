"""Planned times of a cron expression in a time zone.

The CronSim library interprets the expression as Debian's cron does. When clocks go forward, a run whose time does not
exist starts right after the gap. When clocks go back, a run whose time occurs twice starts only the first time. If the
minute or hour of the expression begins with `*`, runs start in both of the repeated hours.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

FIELDS = re.compile(r"[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4}", re.ASCII)
FIRST_SPAN = timedelta(hours=1)  # of the search for the newest planned times


class InvalidTimetable(Exception):
    """An invalid timetable. `pointer` refers to the invalid field, `/cron` or `/timezone`."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer, self.detail = pointer, detail


@cache
def timezones() -> frozenset[str]:
    return frozenset(available_timezones()) - {"localtime"}  # depends on the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """A valid expression and time zone. Times are in UTC and strictly increase."""

    cron: str
    zone: ZoneInfo

    @classmethod
    def read(cls, cron: str, timezone: str) -> "Timetable":
        """Return a valid timetable.

        Raises InvalidTimetable for an unknown time zone, or an expression that is invalid or matches no date.
        """
        if timezone not in timezones():
            raise InvalidTimetable("/timezone", "Unknown time zone. Use an IANA name such as Europe/Berlin.")
        if not FIELDS.fullmatch(cron):
            raise InvalidTimetable(
                "/cron", "Must have five fields: minute, hour, day of month, month and day of week, such as 0 6 * * *."
            )
        timetable = cls(cron=cron, zone=ZoneInfo(timezone))
        try:
            if next(timetable.after(datetime.now(UTC)), None) is None:
                raise InvalidTimetable("/cron", "This expression matches no date.")
        except CronSimError as error:
            raise InvalidTimetable("/cron", f"Not a cron expression: {str(error).lower()}.") from None
        return timetable

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the planned times after a moment."""
        last = moment
        for local in CronSim(self.cron, moment.astimezone(self.zone)):
            # In the second of two repeated hours, the library may return a time in the first one.
            if (planned := local.astimezone(UTC)) > last:
                yield (last := planned)

    def next(self, moment: datetime) -> datetime | None:
        """Return the first planned time after a moment, or None if there is none within 50 years."""
        return next(self.after(moment), None)

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        return list(islice(self.after(moment), count))

    def newest(self, count: int, *, since: datetime, until: datetime) -> list[datetime]:
        """Return the last `count` planned times from `since` to `until`, both included.

        Searches backward in spans of growing length, so that the search is fast for a run every minute and for a run
        every month.
        """
        span = FIRST_SPAN
        while True:
            start = max(since - timedelta(microseconds=1), until - span)
            found = list(takewhile(lambda planned: planned <= until, self.after(start)))
            if len(found) >= count or start < since:
                return found[-count:]
            span *= 2

    def local_date(self, moment: datetime) -> date:
        return moment.astimezone(self.zone).date()

    def planned_date(self, planned: datetime) -> date:
        """Return the local date of a planned time.

        In Greenland, clocks go forward at the end of a day: a run that starts right after the gap, at midnight, keeps
        the date of its time in the expression.
        """
        local = planned.astimezone(self.zone).replace(tzinfo=None)
        is_moved = next(CronSim(self.cron, local - timedelta(minutes=1)), None) != local
        return self.local_date(planned - timedelta(seconds=is_moved))


def window_bounds(day: date, first: int, last: int, *, after: date | None = None) -> tuple[date, date]:
    """Return the first and last date of a window relative to a day.

    `first` and `last` are offsets in days. The window begins on the day after `after`, if that is earlier.
    """
    begin, end = day + timedelta(days=first), day + timedelta(days=last)
    return (min(begin, after + timedelta(days=1)) if after else begin), end
