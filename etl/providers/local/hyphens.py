"""Resolution of hyphens at line ends.

A hyphen is removed only if the document contains the joined word elsewhere, and not the hyphenated one.
"""

import re
from collections.abc import Collection

from etl.providers.local.boxes import BREAK

WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
BROKEN = re.compile(rf"((?:[^\W\d_]+-)*[^\W\d_]+)-{BREAK}([^\W\d_]+)")


def words(text: str) -> set[str]:
    """Return the words of a text in lower case, except words that are split across lines."""
    return {word.lower() for word in WORD.findall(BROKEN.sub(" ", text))}


def resolve(text: str, known: Collection[str]) -> str:
    """Join words that are split across lines, and remove the marks. `known`: words of the document in lower case."""

    def join(match: re.Match[str]) -> str:
        first, second = match.groups()
        joined = (first + second).lower() in known and f"{first}-{second}".lower() not in known
        return first + second if joined else f"{first}-{second}"

    return BROKEN.sub(join, text).replace(BREAK, "")
