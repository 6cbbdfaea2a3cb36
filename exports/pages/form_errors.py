"""Mapping of API errors to the form for an export: the form's fields, and texts for its users."""

import re

from config.platform.http.problems import InputError

FIELDS = {
    "/name": "name",
    "/dataset": "dataset",
    "/filters/ruleId": "rule",
    "/filters/batchId": "batch",
    "/filters/status": "status",
    "/filters/keys": "keys",
    "/filters/dateFrom": "date_from",
    "/filters/dateTo": "date_to",
    "/filters": "keys",
    "/csv/delimiter": "delimiter",
    "/csv": "written_for",
    "/format": "format",
    "/compression": "compression",
    "/delivery": "delivery",
    "/deliveryTtlSeconds": "keep_for",
    "/columns": "columns",
}
NUMBERED = re.compile(r"/(?:filters/)?(key|column)s/(\d+)")
INVALID_DATE = "Enter a date such as 2024-02-29."
FORM_TEXTS = {
    "Must not be empty.": "Enter at least one key and date.",
    "Must be a non-empty list of keys.": "Enter at least one key.",
    "Must be a date written YYYY-MM-DD.": INVALID_DATE,
    "Must not be before dateFrom.": "The end date is before the start date.",
}


def field_and_text(error: InputError) -> tuple[str | None, str]:
    """Return the field and the text of an error. Errors in a list of keys or columns start with the position."""
    name = next((field for start, field in FIELDS.items() if within(error.pointer, start)), None)
    text = FORM_TEXTS.get(error.detail, error.detail)
    place = NUMBERED.fullmatch(error.pointer)
    return name, f"{place[1].capitalize()} {int(place[2]) + 1}: {text}" if place else text


def within(pointer: str, start: str) -> bool:
    return pointer == start or pointer.startswith(f"{start}/")
