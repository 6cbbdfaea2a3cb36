"""Planned times of cron expressions: clock changes and refused expressions. A33."""

from datetime import UTC, date, datetime, timedelta
from itertools import takewhile

import pytest

from exports.schedules.timetable import InvalidTimetable, Timetable

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = date(2027, 3, 28), date(2027, 10, 31)  # the clocks change at 02:00 and at 03:00


def times(cron: str, day: date, *, zone: str = BERLIN) -> list[str]:
    """Return the planned times of a local day, in UTC."""
    timetable = Timetable.read(cron, zone)
    start = datetime(day.year, day.month, day.day, tzinfo=timetable.zone).astimezone(UTC)
    found = takewhile(lambda at: timetable.local_date(at) == day, timetable.after(start - timedelta(seconds=1)))
    return [f"{at:%H:%M}" for at in found]


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        ("30 2 * * *", date(2027, 3, 27), ["01:30"]),
        ("30 2 * * *", SPRING, ["01:00"]),  # 02:30 does not exist; 03:00 is the first time after the gap
        ("30 2 * * *", AUTUMN, ["00:30"]),  # 02:30 exists twice; the first one counts
        ("0,30 2 * * *", SPRING, ["01:00"]),
        ("30 2,3 * * *", SPRING, ["01:00", "01:30"]),
        ("*/30 2 * * *", AUTUMN, ["00:00", "00:30", "01:00", "01:30"]),
        ("0 6 * * *", SPRING, ["04:00"]),
        ("0 6 * * *", AUTUMN, ["05:00"]),
    ],
)
def test_it_follows_the_clock_of_the_zone(cron: str, day: date, expected: list[str]) -> None:
    """A33."""
    assert times(cron, day) == expected


@pytest.mark.parametrize("day", [SPRING, AUTUMN])
def test_it_runs_each_hour_of_a_day_with_a_change(day: date) -> None:
    """A33: 23 hours in spring, 25 in autumn."""
    assert len(times("0 * * * *", day)) == (23 if day == SPRING else 25)


@pytest.mark.parametrize("zone", [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "15 1,2 * * 0", "0 0 L * *"])
def test_times_grow_strictly_from_any_start(zone: str, cron: str) -> None:
    """A33: asking after each time gives the same times as asking once, so none is lost or planned twice."""
    timetable = Timetable.read(cron, zone)
    start, end = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    at_once = list(takewhile(lambda at: at < end, timetable.after(start)))
    one_by_one, last = [], start
    while (following := timetable.next(last)) and following < end:
        one_by_one.append(last := following)
    assert at_once == one_by_one
    assert at_once == sorted(set(at_once))


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("cron", ["* * * * *", "30 2 * * *", "0 0 1 * *", "0 0 29 2 *"])
def test_it_finds_the_newest_times_after_a_pause_of_any_length(cron: str, count: int) -> None:
    """A33."""
    timetable = Timetable.read(cron, BERLIN)
    since = timetable.next(datetime(2027, 3, 20, tzinfo=UTC))
    assert since
    until = since + timedelta(days=12)
    every = list(takewhile(lambda at: at <= until, timetable.after(since - timedelta(seconds=1))))
    assert timetable.newest(count, since=since, until=until) == every[-count:]


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "0 * * * * *", "@daily", "60 * * * *", "0 0 30 2 *", "0 0 * * 1#6", "a b c d e", "* * * * *\n",
     "*/0 * * * *", "5-1 * * * *", "* * * * ²", "1" * 101],
)  # fmt: skip
def test_it_refuses_invalid_expressions(cron: str) -> None:
    """A33."""
    with pytest.raises(InvalidTimetable) as refused:
        Timetable.read(cron, "UTC")
    assert refused.value.pointer == "/cron"


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "europe/berlin", "localtime", "+02:00"])
def test_it_refuses_unknown_time_zones(zone: str) -> None:
    """A33."""
    with pytest.raises(InvalidTimetable) as refused:
        Timetable.read("0 6 * * *", zone)
    assert refused.value.pointer == "/timezone"
