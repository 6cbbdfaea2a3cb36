"""Query parameters for searching lists: text, and dates of creation in UTC."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Any, cast

from django.db.models import Q
from rest_framework.exceptions import ValidationError

from config.platform.http.paging import refusal
from config.platform.http.serializers import CONTROL, as_day

MAX_TEXT = 255  # characters of a search

# By parameter. Each reader gets the parameter's name and text, and may raise ValidationError.
Readers = Mapping[str, Callable[[str, str], Any]]


def read_parameters(query: Mapping[str, str], readers: Readers) -> dict[str, Any]:
    """Return the values of the given parameters. Raises ValidationError with the errors of all parameters.

    The days `from` and `to` are returned as `first` and `last`.
    """
    values: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for name, read in readers.items():
        if name in query:
            try:
                values[name] = read(name, query[name])
            except ValidationError as error:
                errors |= cast("dict[str, Any]", error.detail)
    first, last = values.pop("from", None), values.pop("to", None)
    if first and last and first > last:
        errors |= cast("dict[str, Any]", refusal("to", "Must not be before `from`.").detail)
    if errors:
        raise ValidationError(errors)
    return {**values, "first": first, "last": last}


def read_text(name: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise refusal(name, f"Has {len(text):,} characters; the limit is {MAX_TEXT}.", code="max_length")
    if CONTROL.search(text):
        raise refusal(name, "Must not contain control characters.")
    return text.strip()


def read_day(name: str, text: str) -> date:
    day = as_day(text)
    if day is None:
        raise refusal(name, "Must be a date such as 2024-02-29.")
    return day


def created_between(first: date | None, last: date | None) -> Q:
    """Return the condition for rows created from `first` to `last`, inclusive. None: no limit."""
    condition = Q()
    if first:
        condition &= Q(created_at__gte=datetime.combine(first, time.min, UTC))
    if last:
        condition &= Q(created_at__lte=datetime.combine(last, time.max, UTC))
    return condition
