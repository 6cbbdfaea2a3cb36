"""Parser of the Retry-After header."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def seconds(header: str | None, *, limit: float) -> float | None:
    """Return the delay in a Retry-After header, a number of seconds or a date (RFC 9110, 10.2.3), from 0 to `limit`.

    Return None if the header is missing or invalid.
    """
    value = (header or "").strip()
    try:
        delay = float(value) if NUMBER.fullmatch(value) else seconds_until(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, min(delay, limit))


def seconds_until(date: str) -> float:
    """Return the seconds until an HTTP date. Raises ValueError."""
    moment = parsedate_to_datetime(date)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
