"""Parser of the code blocks in the documentation, and comparison of their output.

The language of a block determines whether it is run. `<!-- not run: REASON -->` on the line before a block excludes it.
A block with a title, as in ```` ```python title="receiver.py" ````, is a file that other blocks can use.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

PROJECT = Path(__file__).resolve().parents[2]
RUN = ("sh", "python")
WHY_NOT = re.compile(r"<!-- not run: (?P<reason>.+?) -->\s*\Z", re.DOTALL)
TITLE = re.compile(r'title="(?P<title>[^"]+)"')
WILDCARD = "…"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a page. `line`: the first line of its text in the file. `reason`: why it is not run, or ""."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.title and not self.reason


def pages() -> list[Path]:
    """Return the pages of the documentation. ADRs are excluded, because their blocks may be outdated."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    return [
        block_of(page, token, before)
        for before, token in zip([None, *tokens], tokens, strict=False)
        if token.type == "fence"
    ]


def block_of(page: Path, token: Token, before: Token | None) -> Block:
    language, _, rest = token.info.partition(" ")
    marker = WHY_NOT.search(before.content) if before and before.type == "html_block" else None
    titled = TITLE.search(rest)
    return Block(
        page=page,
        line=(token.map or [0])[0] + 2,
        language=language,
        title=titled["title"] if titled else "",
        text=token.content,
        reason=" ".join(marker["reason"].split()) if marker else "",
    )


def expected_output(blocks: list[Block], index: int) -> Block | None:
    """Return the next block if it shows the output of this one."""
    following = blocks[index + 1] if index + 1 < len(blocks) else None
    return following if following and following.language in ("json", "text") and not following.reason else None


# ---- Comparison of output -------------------------------------------------------------------------------------------


def differences(shown: Block, printed: str) -> list[str]:
    """Return the differences between the output on a page and the end of the actual output. `…` matches anything."""
    if shown.language == "json":
        return list(differing_places(json.loads(shown.text), last_json(printed)))
    wanted, lines = shown.text.strip().splitlines(), printed.strip().splitlines()
    return list(differing_places(wanted, lines[-len(wanted) :]))


def last_json(printed: str) -> Any:
    """Return the last JSON document of an output, or None. Another one may precede it on the same line, because curl's
    output ends without a newline."""
    lines = printed.strip().splitlines()
    for first in range(len(lines)):
        with suppress(json.JSONDecodeError):
            return documents("\n".join(lines[first:]))[-1]
    return None


def documents(text: str) -> list[Any]:
    """Parse consecutive JSON documents. Raises JSONDecodeError."""
    found, rest = [], text
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def differing_places(shown: Any, real: Any, place: str = "") -> Iterator[str]:
    """Yield a message for each difference between two documents, with its JSON Pointer."""
    match shown, real:
        case "…", _:
            pass
        case dict(), dict():
            yield from differing_fields(shown, real, place)
        case list(), list():
            yield from differing_items(shown, real, place)
        case str(), str():
            if not re.fullmatch(".*".join(map(re.escape, shown.split(WILDCARD))), real, re.DOTALL):
                yield f"{place} is {real!r}"
        case _:
            if shown != real or isinstance(shown, bool) != isinstance(real, bool):
                yield f"{place} is {real!r}"


def differing_fields(shown: dict[str, Any], real: dict[str, Any], place: str) -> Iterator[str]:
    if shown.keys() != real.keys():
        yield f"{place} has {sorted(real.keys() ^ shown.keys())} on one side only"
    for name in shown.keys() & real.keys():
        yield from differing_places(shown[name], real[name], f"{place}/{name}")


def differing_items(shown: list[Any], real: list[Any], place: str) -> Iterator[str]:
    """Yield the differences between two lists. `…` at the end of a list matches any number of items."""
    is_open = shown[-1:] == [WILDCARD]
    given = shown[:-1] if is_open else shown
    if len(given) > len(real) or (not is_open and len(given) < len(real)):
        yield f"{place} has {len(real)} items"
    for index, (one, other) in enumerate(zip(given, real, strict=False)):
        yield from differing_places(one, other, f"{place}/{index}")
