"""Durations as text, in the format of all pages and error messages."""

from datetime import timedelta

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(value: float | timedelta | None) -> str:
    """Format seconds as `2 h 5 min`, with the two largest units, and None as a dash."""
    if value is None:
        return "–"
    left = int(value.total_seconds() if isinstance(value, timedelta) else value)
    parts = []
    for length, unit in UNITS:
        number, left = divmod(left, length)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2]) or "0 s"


def precise(span: timedelta) -> str:
    """Format a duration. Short ones have milliseconds or a decimal: `40 ms`, `2.5 s`, `3 min 20 s`."""
    if span < timedelta(seconds=1):
        return f"{span / timedelta(milliseconds=1):.0f} ms"
    return f"{span.total_seconds():.1f} s" if span < timedelta(seconds=10) else duration(span)
