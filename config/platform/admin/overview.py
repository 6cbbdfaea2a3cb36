"""The admin's start page: health checks, and figures and charts that the apps contribute, with links to their rows.

Each part runs one or two indexed statements over unfinished or recent rows, and counts at most `MAX_ROWS` of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, cast

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.http import HttpRequest

from config.platform.admin.display import list_url
from config.platform.db import clock
from config.platform.http import health

MAX_ROWS = 10_000
HOURS = 24
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A current number. `tone`: "", `warning` or `danger`; `note` expresses it in words, for accessibility."""

    title: str
    value: str
    note: str = ""
    url: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or one segment of each bar. `texts` and `urls` are for the table; the default text is the value."""

    label: str
    color: str
    values: Sequence[float | None]
    texts: Sequence[str] = ()
    urls: Sequence[str] = ()

    def cell(self, index: int) -> tuple[str, str]:
        value = self.values[index]
        text = self.texts[index] if self.texts else "-" if value is None else f"{value:,.0f}"
        return text, self.urls[index] if self.urls and value else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart.

    `labels` and `along`: labels, oldest first, and title of the category axis. `unit`: title of the other axis.
    """

    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    kind: str = "bar"  # or "line", or "across": horizontal bars, for long labels
    along: str = "hour (UTC)"
    unit: str = ""
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @property
    def data(self) -> str:
        return json.dumps({"labels": list(self.labels), "datasets": [self.dataset(each) for each in self.series]})

    def dataset(self, series: Series) -> dict[str, Any]:
        shape = {"borderWidth": 2, "tension": 0.2, "pointRadius": 3} if self.kind == "line" else {"maxBarThickness": 28}
        colors = {"backgroundColor": series.color, "borderColor": series.color}
        return {"label": series.label, "data": list(series.values), "spanGaps": True, **shape, **colors}

    @property
    def options(self) -> str:
        stacked = self.kind == "bar"
        ticks: dict[str, Any] = {"color": "#8a93a3"}
        along = {"stacked": stacked, "ticks": {**ticks, "maxRotation": 0}, "grid": {"display": False}}
        amounts = {
            "stacked": stacked,
            "beginAtZero": True,
            "ticks": {**ticks, "precision": 0, "maxTicksLimit": 5},
            "title": {"display": bool(self.unit), "text": self.unit, "color": "#8a93a3"},
        }
        is_horizontal = self.kind == "across"
        return json.dumps(
            {
                "animation": False,
                "responsive": True,
                "maintainAspectRatio": False,
                "plugins": {"legend": {"display": False}},
                "indexAxis": "y" if is_horizontal else "x",
                "scales": {"x": amounts, "y": along} if is_horizontal else {"x": along, "y": amounts},
            }
        )

    @property
    def rows(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The rows of the table, newest first, without empty ones."""
        indexes = [index for index in range(len(self.labels)) if any(each.values[index] for each in self.series)]
        return [(self.labels[index], [each.cell(index) for each in self.series]) for index in reversed(indexes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewContent:
    figures: Sequence[Figure] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPart:
    """Figures and charts of an app, shown to users with the permission."""

    permission: str
    draw: Callable[[], OverviewContent]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """A suggestion for an empty installation. `is_due` reads at most one row."""

    title: str
    words: str
    url: Callable[[], str]
    label: str
    permission: str
    is_due: Callable[[], bool]


parts: list[OverviewPart] = []
steps: list[FirstStep] = []


def contribute(*own: OverviewPart, first: Iterable[FirstStep] = ()) -> None:
    parts.extend(own)
    steps.extend(first)


# Labels of the readiness checks.
PARTS = {
    "database": "Database",
    "source": "Source database",
    "broker": "Broker",
    "storage": "Object storage",
    "run_state": "Run-state Redis",
}


def readiness() -> list[tuple[str, bool]]:
    """Return the name and status of each check of /readyz, and whether it passed.

    The results are those of /readyz: the checks take at most 2.5 s and run at most once a second.
    """
    results = health.readiness.read()
    return [
        (f"{PARTS.get(name, name)}: {'available' if result == health.OK else result}", result == health.OK)
        for name, result in results.items()
    ]


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return Unfold's template context, with the parts that the user may view."""
    contents = [part.draw() for part in parts if request.user.has_perm(part.permission)]
    due = [
        {"title": step.title, "words": step.words, "label": step.label, "url": step.url()}
        for step in steps
        if request.user.has_perm(step.permission) and step.is_due()
    ]
    mine = (
        LogEntry.objects.filter(user=cast("User", request.user))
        .prefetch_related("content_type")
        .order_by("-action_time")[:8]
    )
    return {
        **context,
        "title": "Overview",
        "readiness": readiness(),
        "figures": [figure for content in contents for figure in content.figures],
        "charts": [chart for content in contents for chart in content.charts],
        "steps": due,
        "mine": mine,
        "drawn_at": clock.now(),
    }


# ---- Hours ----------------------------------------------------------------------------------------------------------
def last_hours() -> list[datetime]:
    """Return the starts of the last 24 hours, including the current one, oldest first."""
    current = clock.now().replace(minute=0, second=0, microsecond=0)
    return [current - timedelta(hours=age) for age in reversed(range(HOURS))]


def labels_of(hours: Sequence[datetime]) -> list[str]:
    return [f"{hour:%H}:00" for hour in hours]


def urls_by_hour(model: str, hours: Sequence[datetime], field: str, **query: str) -> list[str]:
    """Return the URL of each hour's list of rows, filtered by a time field."""
    return [
        list_url(model, query | {f"{field}__gte": hour.isoformat(), f"{field}__lt": (hour + HOUR).isoformat()})
        for hour in hours
    ]


def by_status_and_hour(
    title: str,
    model: str,
    hours: Sequence[datetime],
    counts: Mapping[tuple[datetime, str], int],
    *,
    colors: Mapping[str, str],
    names: Mapping[str, str] = MappingProxyType({}),
    rows: str,
) -> Chart:
    """Return a chart of the rows created in each hour, by status. `names`: labels of statuses, if different."""
    return Chart(
        title=title,
        labels=labels_of(hours),
        series=[
            Series(
                label=names.get(status, status),
                color=color,
                values=[counts.get((hour, status), 0) for hour in hours],
                urls=urls_by_hour(model, hours, "created_at", status__exact=status),
            )
            for status, color in colors.items()
        ],
        note=truncation_note(sum(counts.values()), rows),
    )


def by_error(rows: str, model: str, counts: Mapping[str, int], *, names: Callable[[str], str], **query: str) -> Chart:
    """Return a chart of failed rows by error code. `query`: filters of the linked lists."""
    return Chart(
        title=f"Failed {rows} by error, last 24 hours",
        labels=[names(code) for code in counts],
        along="error",
        kind="across",
        series=[
            Series(
                label=rows,
                color="#dc2626",
                values=list(counts.values()),
                urls=[list_url(model, query | {"error_code": code}) for code in counts],
            )
        ],
        note=truncation_note(sum(counts.values()), f"failed {rows}"),
    )


def at_most(count: int) -> str:
    """Format a count that is bounded by `MAX_ROWS`."""
    return f"{MAX_ROWS:,}+" if count > MAX_ROWS else f"{count:,}"


def truncation_note(count: int, rows: str) -> str:
    """Return a note if the count reached its limit, else ""."""
    return f"Based on the newest {MAX_ROWS:,} {rows}." if count >= MAX_ROWS else ""
