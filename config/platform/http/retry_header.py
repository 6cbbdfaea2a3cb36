"""How long a peer asks us to wait."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def seconds(retry_after: str | None, *, most: float) -> float | None:
    """Return the seconds of a Retry-After: a number of them, or a date (RFC 9110, 10.2.3), from 0 to `most`.

    None where there is none, or no sense in it.
    """
    told = (retry_after or "").strip()
    try:
        wish = float(told) if NUMBER.fullmatch(told) else until(told)
    except (ValueError, OverflowError):
        return None
    return max(0.0, min(wish, most))


def until(date: str) -> float:
    """Raises ValueError."""
    moment = parsedate_to_datetime(date)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
