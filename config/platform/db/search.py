"""Search conditions that can use an index."""

import re
from uuid import UUID

from django.db.models import Q

DIGITS = 32  # of a UUID
ID_PREFIX = re.compile(r"[0-9a-f]{8,32}")  # pages show the first 8


def begins_with(field: str, text: str) -> Q | None:
    """Return a condition for UUIDs with a prefix, or None if the text is not 8 to 32 hexadecimal digits.

    The condition is a range, because the index contains UUIDs and not their text.
    """
    digits = text.lower().replace("-", "")
    if not ID_PREFIX.fullmatch(digits):
        return None
    if len(digits) == DIGITS:
        return Q(**{field: UUID(digits)})
    return Q(**{f"{field}__gte": UUID(digits.ljust(DIGITS, "0")), f"{field}__lte": UUID(digits.ljust(DIGITS, "f"))})
