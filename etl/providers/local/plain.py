"""Reader of text and Markdown files in any encoding that can be detected. Form feeds separate pages."""

from pathlib import Path

from etl.core import encodings
from etl.core.errors import TooManyPages


def read_pages(path: Path, *, max_pages: int) -> list[str]:
    """Return the pages. Raises FileCorrupt and TooManyPages."""
    text = encodings.decode(path.read_bytes()).removesuffix("\f")
    count = text.count("\f") + 1
    if count > max_pages:  # checked first, so that millions of pages are not created
        raise TooManyPages.of(count, max_pages)
    return text.split("\f")
