"""Text and Markdown: taken as they are. Form feeds divide them into pages."""

from pathlib import Path

from etl.core import formats
from etl.core.errors import FileCorrupt, TooManyPages


def pages(path: Path, *, most: int) -> list[str]:
    content = path.read_bytes()
    if content.count(b"\f") > 2 * most + 1:  # before anything is split; a zero byte of UTF-16 may stand beside each
        raise TooManyPages
    try:
        text = content.decode(formats.encoding(content[:4]))
    except UnicodeDecodeError:
        raise FileCorrupt from None
    found = text.removesuffix("\f").split("\f")
    if len(found) > most:
        raise TooManyPages
    return found
