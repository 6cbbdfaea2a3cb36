"""Text and Markdown files, unchanged. Form feeds separate pages."""

from pathlib import Path

from etl.core import formats
from etl.core.errors import FileCorrupt, TooManyPages


def pages(path: Path, *, most: int) -> list[str]:
    content = path.read_bytes()
    if content.count(b"\f") > 2 * most + 1:  # checked before splitting; in UTF-16, each form feed is two bytes
        raise TooManyPages
    try:
        text = content.decode(formats.encoding(content[:4]))
    except UnicodeDecodeError:
        raise FileCorrupt from None
    found = text.removesuffix("\f").split("\f")
    if len(found) > most:
        raise TooManyPages
    return found
