"""Formatting of values in the admin."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.utils import display_for_label

from config.platform.durations import precise
from config.platform.ui.templatetags import pages

NOTHING = "-"
LABELS = {"good": "success", "bad": "danger", "busy": "info"}  # Unfold's labels for the tones of statuses
COLORS = {status: LABELS[tone] for tone, statuses in pages.TONES.items() for status in statuses}


def badge(state: str) -> SafeString:
    label: SafeString = display_for_label(state, NOTHING, COLORS)
    return label


def link(url: str, text: object) -> SafeString:
    return format_html('<a href="{}" class="text-link">{}</a>', url, text)


def page_of(model: str, pk: int | str | UUID, text: object) -> SafeString:
    """Return a link to a row's page. `model`: `chunk` for a model of the exports app, `etl_task` for other apps."""
    return link(reverse(f"admin:{with_app(model)}_change", args=[quote(pk)]), text)


def list_of(model: str, text: object, query: Mapping[str, Any]) -> SafeString:
    """Return a link to a filtered list."""
    return link(list_url(model, query), text)


def list_url(model: str, query: Mapping[str, Any]) -> str:
    return f"{reverse(f'admin:{with_app(model)}_changelist')}?{urlencode(query)}"


def with_app(model: str) -> str:
    return model if "_" in model else f"exports_{model}"


def side_by_side(parts: list[SafeString]) -> SafeString:
    return format_html_join(SafeString(" &nbsp;·&nbsp; "), "{}", [[part] for part in parts])


def below_each_other(rows: list[tuple[object, object]]) -> SafeString:
    """Return a list of names and values."""
    items = format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows)
    return format_html('<dl class="facts">{}</dl>', items) if rows else SafeString(NOTHING)


def short(pk: UUID) -> str:
    return str(pk)[:8]


def number(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def size(value: int | None) -> str:
    return NOTHING if value is None else pages.size(value)


def bar(done: int, total: int, *, unit: str = "") -> SafeString:
    """Return a progress bar with both numbers, or with `done` and its unit."""
    return format_html(
        '<span class="bar"><progress value="{}" max="{}" aria-label="Progress"></progress> {}</span>',
        done,
        total,
        f"{done:,}{unit}" if unit else f"{done:,} of {total:,}",
    )


# ---- Times ----------------------------------------------------------------------------------------------------------
def exact_time_and_age(value: datetime) -> SafeString:
    """Return a time with its age in parentheses. Touch screens show no tooltips."""
    return format_html('<time datetime="{}">{} ({})</time>', value.isoformat(), pages.exactly(value), pages.age(value))


def shown(field: str, show: Callable[[Any], Any], description: str = "") -> Callable[[Any], Any]:
    """Return a column that formats a field with a function, such as `number`. None is shown as "-"."""

    def column(row: Any) -> Any:
        value = getattr(row, field)
        return None if value is None else show(value)

    column.__name__ = field
    return admin.display(description=description or field.replace("_", " "), empty_value=NOTHING)(column)


def yes_or_no(value: object) -> str:
    return "yes" if value else "no"  # Django shows a red cross for False


def date_or_age(field: str, *, time: Callable[[datetime], SafeString | str] = pages.ago) -> Callable[[Any], Any]:
    """Return a column or field that shows a date, or the age of a time."""

    def show(value: date) -> str:
        return time(value) if isinstance(value, datetime) else str(value)

    return shown(field, show, field.replace("_", " ").removesuffix(" at"))


def exact_time(field: str) -> Callable[[Any], Any]:
    """Return a column or field that shows a time exactly, with its age."""
    return date_or_age(field, time=exact_time_and_age)


def span(begin: datetime | None, end: datetime | None) -> str:
    """Return a duration, such as `2.5 s`."""
    return NOTHING if begin is None or end is None else precise(end - begin)


def milliseconds(value: float) -> str:
    return precise(timedelta(milliseconds=value))
