"""Counts with their nouns."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 chunk`, `2,000 chunks`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
