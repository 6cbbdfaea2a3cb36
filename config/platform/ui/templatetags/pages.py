"""Template filters for times, sizes, numbers, and statuses."""

import re
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from config.platform.db import clock
from config.platform.durations import duration, precise

register = template.Library()

DATE = re.compile(r"(\d{4}-\d\d-\d\d)")
MONTH = timedelta(days=30)
# Colors of the status badges of pages and admin. The text is always shown too, for users who cannot distinguish colors.
TONES = {
    "good": ("success", "done", "completed", "active", "open", "enabled", "delivered", "redeemed"),
    "bad": ("failed", "completed_with_errors", "disabled", "expired", "revoked", "dead", "failing"),
    "busy": ("running", "retrying", "mineru_parsing", "llm_processing", "sending", "held"),
}
LABELS = {"mineru_parsing": "MinerU parsing", "llm_processing": "LLM processing"}


@register.filter
def count(value: int | None) -> str:
    """Format `12345` as `12,345`, and None as a dash."""
    return "–" if value is None else f"{value:,}"


@register.filter
def percent(value: float | None) -> str:
    """Format `0.975` as `97.5 %`, and None as a dash. Round down, so that only a whole is 100 %."""
    return "–" if value is None else f"{int(value * 1000 + 1e-6) / 10:g} %"


@register.filter
def points(value: float | None) -> str:
    """Format a difference of shares as percentage points: `-0.05` as `−5`, and None as a dash."""
    return "–" if value is None else f"{value * 100:+.1f}".removesuffix(".0").replace("-", "−")


@register.filter
def size(value: int | None) -> str:
    """Format bytes as `1.2 MB`, in powers of ten as object storage does."""
    if value is None:
        return "–"
    number = float(value)
    for unit in ("bytes", "kB", "MB", "GB"):
        if round(number, 1) < 1000:  # noqa: PLR2004 - SI prefixes
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


register.filter("duration", duration)


@register.filter
def milliseconds(value: float | None) -> str:
    """Format milliseconds as `precise` does, and None as a dash."""
    return "–" if value is None else precise(timedelta(milliseconds=value))


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """Format a time as `3 min ago` or `in 3 min`, with the exact time as tooltip and in `datetime`."""
    if moment is None:
        return "–"
    return format_html('<time datetime="{}" title="{} UTC">{}</time>', moment.isoformat(), exactly(moment), age(moment))


def exactly(moment: datetime) -> str:
    """Return a time to the second; Django's English format is `Nov. 21, 2026, 11:14 p.m.`"""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


@register.filter
def wall_time(moment: datetime) -> str:
    """Format a time in its time zone as `Mon 2026-03-02 06:00 CET`. Django's `date` would convert it to UTC."""
    return f"{moment:%a %Y-%m-%d %H:%M %Z}"


@register.filter
def whole_dates(text: str) -> SafeString:
    """Render a text without line breaks inside dates."""
    parts = enumerate(DATE.split(text))  # every second part is a date
    shown = (format_html('<span class="nowrap">{}</span>', part) if n % 2 else part for n, part in parts)
    return format_html_join("", "{}", ((part,) for part in shown))


def age(moment: datetime) -> str:
    """Return `3 min ago` or `in 2 h`, or a date if it is more than a month away."""
    since = clock.now() - moment
    if abs(since) > MONTH:
        return f"{moment:%Y-%m-%d}"
    if abs(since) < timedelta(seconds=1):
        return "just now"
    return f"{duration(since)} ago" if since > timedelta(0) else f"in {duration(-since)}"


@register.filter
def state(status: str) -> SafeString:
    """Render a status as a badge: the API's value in sentence case."""
    tone = next((tone for tone, words in TONES.items() if status in words), "calm")
    return format_html('<span class="state {}">{}</span>', tone, label(status))


def label(status: str) -> str:
    return LABELS.get(status) or status.replace("_", " ").capitalize()


@register.simple_tag(takes_context=True)
def current(context: dict[str, Any], prefix: str) -> SafeString | str:
    """Return ` aria-current="page"` if the page's path starts with `prefix`."""
    here = "request" in context and context["request"].path.startswith(prefix)
    return SafeString(' aria-current="page"') if here else ""
