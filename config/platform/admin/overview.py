"""The start page of the staff's pages: is it healthy? Figures and charts that the apps contribute, each with its number
in words and a link to the rows that it counts.

Every part costs one statement or two, over indexes that hold live or recent rows, and counts no further than `MOST`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.models import LogEntry
from django.http import HttpRequest
from django.utils import timezone

from config.platform.http import health

MOST = 10_000
HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number of now. `tone`: "" or `warning`, `danger`; said in `note`, too, as colours are not for everybody."""

    title: str
    value: str
    note: str = ""
    url: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line or a part of bars. `texts` and `urls` are the table's; without texts it has the values as they are."""

    label: str
    colour: str
    values: Sequence[float | None]
    texts: Sequence[str] = ()
    urls: Sequence[str] = ()

    def cell(self, place: int) -> tuple[str, str]:
        value = self.values[place]
        text = self.texts[place] if self.texts else "-" if value is None else f"{value:,.0f}"
        return text, self.urls[place] if self.urls and value else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`labels` are of the places along the axis, oldest first. `unit` is said at the other axis."""

    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    kind: str = "bar"  # or line, or across: bars that lie, for labels that are words
    along: str = "hour (UTC)"
    unit: str = ""
    note: str = ""
    empty: str = "None in the last 24 hours."

    @property
    def is_empty(self) -> bool:
        return not any(value for series in self.series for value in series.values)

    @property
    def data(self) -> str:
        return json.dumps({"labels": list(self.labels), "datasets": [self.dataset(each) for each in self.series]})

    def dataset(self, series: Series) -> dict[str, Any]:
        shape = {"borderWidth": 2, "tension": 0.2, "pointRadius": 3} if self.kind == "line" else {"maxBarThickness": 28}
        colours = {"backgroundColor": series.colour, "borderColor": series.colour}
        return {"label": series.label, "data": list(series.values), "spanGaps": True, **shape, **colours}

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
        lies = self.kind == "across"
        return json.dumps(
            {
                "animation": False,
                "responsive": True,
                "maintainAspectRatio": False,
                "plugins": {"legend": {"display": False}},
                "indexAxis": "y" if lies else "x",
                "scales": {"x": amounts, "y": along} if lies else {"x": along, "y": amounts},
            }
        )

    @property
    def rows(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The table: newest first, without places that have nothing."""
        places = [at for at in range(len(self.labels)) if any(each.values[at] for each in self.series)]
        return [(self.labels[at], [each.cell(at) for each in self.series]) for at in reversed(places)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    figures: Sequence[Figure] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an app shows to those who may look at the rows that it counts."""

    permission: str
    draw: Callable[[], Drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """What to do where there is nothing yet. `is_due` costs a look at one row."""

    title: str
    words: str
    url: Callable[[], str]
    label: str
    permission: str
    is_due: Callable[[], bool]


@dataclass(slots=True)
class Contributions:
    parts: list[Part] = field(default_factory=list)
    steps: list[FirstStep] = field(default_factory=list)


contributions = Contributions()


def contribute(*parts: Part, first: Iterable[FirstStep] = ()) -> None:
    contributions.parts.extend(parts)
    contributions.steps.extend(first)


# What readiness calls its parts, in words.
PARTS = {
    "database": "The database",
    "source": "The source database",
    "broker": "The broker",
    "storage": "The object storage",
    "run_state": "The Redis of documents",
}


def readiness() -> list[tuple[str, bool]]:
    """Return a sentence for each check of /readyz, and whether all is well with it. As there: within 2.5 s, and asked
    at most once a second however many look."""
    answers = health.readiness.answer()
    return [
        (f"{PARTS.get(name, name)} {'answers' if answer == health.OK else predicate(answer)}.", answer == health.OK)
        for name, answer in answers.items()
    ]


def predicate(answer: str) -> str:
    return f"gave {answer}" if answer.startswith("no ") else answer


def context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What unfold asks for: the template's context, with what this user may see."""
    seen = [part.draw() for part in contributions.parts if request.user.has_perm(part.permission)]
    steps = [
        {"title": step.title, "words": step.words, "label": step.label, "url": step.url()}
        for step in contributions.steps
        if request.user.has_perm(step.permission) and step.is_due()
    ]
    mine = (
        LogEntry.objects.filter(user__username=request.user.get_username())
        .select_related("content_type")
        .order_by("-id")[:8]
    )
    return {
        **context,
        "title": "Overview",
        "readiness": readiness(),
        "figures": [figure for drawn in seen for figure in drawn.figures],
        "charts": [chart for drawn in seen for chart in drawn.charts],
        "steps": steps,
        "mine": mine,
        "drawn_at": timezone.now(),
    }


# ---- Hours ----------------------------------------------------------------------------------------------------------
def last_hours(now: datetime | None = None) -> list[datetime]:
    """Return the beginnings of the last 24 hours, the one that goes on included, oldest first."""
    this = (now or timezone.now()).replace(minute=0, second=0, microsecond=0)
    return [this - timedelta(hours=back) for back in reversed(range(HOURS))]


def labels_of(hours: Sequence[datetime]) -> list[str]:
    return [f"{hour:%H}:00" for hour in hours]


def within(hour: datetime, name: str) -> dict[str, str]:
    """Return the filter of a list for an hour of a field."""
    return {f"{name}__gte": hour.isoformat(), f"{name}__lt": (hour + timedelta(hours=1)).isoformat()}


def at_most(count: int) -> str:
    """Write a number that was counted no further than `MOST`."""
    return f"{MOST:,}+" if count > MOST else f"{count:,}"


def cut(count: int, what: str) -> str:
    """Say so where not all was counted."""
    return f"Of the newest {MOST:,} {what}." if count >= MOST else ""
