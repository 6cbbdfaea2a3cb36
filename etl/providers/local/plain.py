"""Text and Markdown files, unchanged. Form feeds separate pages."""

from pathlib import Path

from etl.core import formats
from etl.core.errors import FileCorrupt, TooManyPages


def read_pages(path: Path, *, max_pages: int) -> list[str]:
    content = path.read_bytes()
    if content.count(b"\f") > 2 * max_pages + 1:  # an early check; in UTF-16, other characters contain this byte too
        raise TooManyPages
    try:
        text = content.decode(formats.encoding(content[:4]))
    except UnicodeDecodeError:
        raise FileCorrupt from None
    pages = text.removesuffix("\f").split("\f")
    if len(pages) > max_pages:
        raise TooManyPages
    return pages
