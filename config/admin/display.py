"""How single values look in the staff's pages."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.utils import display_for_label

NOTHING = "-"
COLOURS = {
    "running": "info",
    "retrying": "warning",
    "success": "success",
    "done": "success",
    "completed": "success",
    "redeemed": "success",
    "open": "success",
    "enabled": "success",
    "delivered": "success",
    "sending": "info",
    "disabled": "warning",
    "failed": "danger",
    "cancelled": "warning",
    "expired": "warning",
    "deleted": "warning",
    "system": "info",
}


def badge(state: str) -> SafeString:
    label: SafeString = display_for_label(state, NOTHING, COLOURS)
    return label


def link(url: str, text: object) -> SafeString:
    return format_html('<a href="{}" class="text-link">{}</a>', url, text)


def page_of(model: str, pk: int | str | UUID, text: object) -> SafeString:
    """Link to a row's page; `model` is as in `chunk`."""
    return link(reverse(f"admin:exports_{model}_change", args=[quote(pk)]), text)


def list_of(model: str, text: object, query: Mapping[str, Any]) -> SafeString:
    """Link to a filtered list."""
    return link(f"{reverse(f'admin:exports_{model}_changelist')}?{urlencode(query)}", text)


def side_by_side(parts: list[SafeString]) -> SafeString:
    return format_html_join(SafeString(" &nbsp;·&nbsp; "), "{}", [[part] for part in parts])


def short(job_id: UUID) -> str:
    return str(job_id)[:8]


def number(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def size(value: int | None) -> str:
    return NOTHING if value is None else filesizeformat(value)


def moment(field: str) -> Callable[[Any], str | None]:
    """Make a column of a date, or of a time to the second: Django's for English is `Nov. 21, 2026, 11:14 p.m.`"""

    def column(row: Any) -> str | None:
        value: date | None = getattr(row, field)
        if isinstance(value, datetime):
            return f"{timezone.localtime(value):%Y-%m-%d %H:%M:%S}"
        return None if value is None else str(value)

    column.__name__ = field
    return admin.display(description=field.replace("_", " ").removesuffix(" at"), empty_value=NOTHING)(column)


def span(begin: datetime | None, end: datetime | None) -> str:
    """Return how long something took, in units that fit: `40 ms`, `2.5 s`, `12 s`, `3:20:05`."""
    if begin is None or end is None:
        return NOTHING
    took = end - begin
    if took < timedelta(seconds=1):
        return f"{took / timedelta(milliseconds=1):.0f} ms"
    if took < timedelta(seconds=10):
        return f"{took.total_seconds():.1f} s"
    if took < timedelta(minutes=2):
        return f"{took.total_seconds():.0f} s"
    return str(timedelta(seconds=round(took.total_seconds())))
