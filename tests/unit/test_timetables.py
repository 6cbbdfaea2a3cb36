"""Planned times of cron expressions, with clock changes and invalid expressions. A33."""

from datetime import UTC, date, datetime, timedelta
from itertools import takewhile

import pytest

from exports.schedules.timetable import InvalidTimetable, Timetable

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = date(2027, 3, 28), date(2027, 10, 31)  # clocks go forward at 02:00 and back at 03:00


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
        ("30 2 * * *", SPRING, ["01:00"]),  # 02:30 does not exist, so it runs at 03:00, the first time after the gap
        ("30 2 * * *", AUTUMN, ["00:30"]),  # 02:30 exists twice, and it runs at the first one
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


@pytest.mark.parametrize("cron", ["15 23 * * *", "59 23 * * *", "0 0 * * *", "0 12 * * *"])
def test_each_day_has_its_runs_where_clocks_go_forward_at_midnight(cron: str) -> None:
    """A33: in Greenland, clocks went forward from 23:00 on 29 March 2025 to 00:00 on 30 March.

    A run that this moves to 00:00 keeps its date, so that no day is skipped.
    """
    timetable = Timetable.read(cron, "America/Nuuk")
    days = [timetable.planned_date(at) for at in timetable.upcoming(datetime(2025, 3, 27, 12, tzinfo=UTC), 8)]
    assert sorted(set(days)) == [min(days) + timedelta(days=n) for n in range(len(set(days)))]
    assert date(2025, 3, 29) in days


@pytest.mark.parametrize("day", [SPRING, AUTUMN])
def test_it_runs_each_hour_of_a_day_with_a_clock_change(day: date) -> None:
    """A33: 23 hours in spring, 25 in autumn."""
    assert len(times("0 * * * *", day)) == (23 if day == SPRING else 25)


@pytest.mark.slow
@pytest.mark.parametrize("zone", [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "15 1,2 * * 0", "0 0 L * *"])
def test_times_grow_strictly_from_any_start(zone: str, cron: str) -> None:
    """A33: repeated calls of `next` return the same times as `after`, so no time is lost or planned twice."""
    timetable = Timetable.read(cron, zone)
    start, end = datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
    listed = list(takewhile(lambda at: at < end, timetable.after(start)))
    successive, last = [], start
    while (following := timetable.next(last)) and following < end:
        successive.append(last := following)
    assert listed == successive
    assert listed == sorted(set(listed))


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
