"""Texts of JSON Schemas in the editor: parsing, formatting, and positions of the parts.

Positions are in UTF-16 code units with LF line endings, as in browsers.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from config.platform import exact_json
from config.platform.http import parsers
from config.platform.http.pointers import join, tokens
from config.platform.http.problems import BadInput, InputError
from rules.schema.json_schema import SAVED, SCHEMA_POINTER, compact_size, levels_of
from rules.schema.subschemas import refusal

TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
MALFORMED = "malformed"
MAX_NAME = 60  # characters of a name in an error
INDENT = "  "
# Longer texts are refused without parsing. No allowed schema is this long with indentation, and finding the positions
# in a text of megabytes would take a minute.
MAX_CHARACTERS = 8 * SAVED.size
MAX_LIST = 80  # characters of a list that is written on one line
Span = tuple[int, int]
Tokens = Iterator[re.Match[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in a text. `line` counts from 1; `start` and `end` are offsets for the selection in a browser."""

    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSize:
    """Size of a schema and its limit: bytes of compact JSON, and levels of nesting."""

    size: int
    levels: int
    max_size: int = SAVED.size
    max_levels: int = SAVED.depth

    @property
    def is_within(self) -> bool:
        return self.size <= self.max_size and self.levels <= self.max_levels


def write(schema: Any) -> str:
    """Return a schema as indented text, or "" for None. Short lists such as `["string", "null"]` are on one line."""
    return "" if schema is None else indented(schema, "")


def indented(value: Any, margin: str) -> str:
    if isinstance(value, dict) and value:
        parts = [f"{flat(name)}: {indented(inside, margin + INDENT)}" for name, inside in value.items()]
        return block("{", parts, "}", margin)
    if isinstance(value, list) and value and not is_short(value):
        return block("[", [indented(inside, margin + INDENT) for inside in value], "]", margin)
    return flat(value)


def block(begin: str, parts: list[str], end: str, margin: str) -> str:
    inside = ",\n".join(f"{margin}{INDENT}{part}" for part in parts)
    return f"{begin}\n{inside}\n{margin}{end}"


def is_short(values: list[Any]) -> bool:
    return not any(isinstance(value, dict | list) for value in values) and len(flat(values)) <= MAX_LIST


def flat(value: Any) -> str:
    return f"[{', '.join(map(flat, value))}]" if isinstance(value, list) else exact_json.dumps(value).decode()


def read(text: str) -> Any:
    """Parse a text like a body of the API. Return None if it is empty. Raises BadInput with pointers into the body."""
    if is_too_long(text):
        detail = f"Has {len(text):,} characters; the limit is {SAVED.size:,} bytes as compact JSON."
        raise BadInput(refusal(SCHEMA_POINTER, "too_large", detail))
    if not text.strip():
        return None
    body = text.encode(errors="replace")
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        detail = f"This is not JSON: {error.msg}."
        raise BadInput(InputError(pointer=SCHEMA_POINTER, code=MALFORMED, detail=detail)) from None
    require_unique_members(text)
    try:
        return parsers.load(body, is_exact=True)
    except BadInput as refused:
        found = [
            InputError(pointer=SCHEMA_POINTER + each.pointer, code=each.code, detail=each.detail)
            for each in refused.errors
        ]
        raise BadInput(*found) from None


def require_unique_members(text: str) -> None:
    """Raise BadInput if an object has a member twice, because one of them would be lost silently."""

    def unique(members: list[tuple[str, Any]]) -> None:
        for name, count in Counter(name for name, _ in members).items():
            if count > 1:
                detail = f"An object has the member {name[:MAX_NAME]!r} more than once."
                raise BadInput(InputError(pointer=SCHEMA_POINTER, code=MALFORMED, detail=detail))

    with suppress(RecursionError):  # `parsers.load` rejects it as too deep
        json.loads(text, object_pairs_hook=unique)


def is_too_long(text: str) -> bool:
    return len(text) > MAX_CHARACTERS


def syntax_error_in(text: str) -> Place | None:
    """Return the position of the first syntax error, or None."""
    try:
        orjson.loads(text.encode(errors="replace"))
    except orjson.JSONDecodeError as error:
        # The error can be beyond the end of the text, which cannot be selected.
        start = min(error.pos, len(text))
        return place(text, (start, min(start + 1, len(text))))
    return None


def schema_size(schema: Any) -> SchemaSize:
    return SchemaSize(size=compact_size(schema), levels=levels_of(schema))


def place(text: str, span: Span) -> Place:
    start, end = (offset if text.isascii() else utf16_length(text[:offset]) for offset in span)
    return Place(line=text.count("\n", 0, span[0]) + 1, start=start, end=end)


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", errors="surrogatepass")) // 2


def spans(text: str, pointers: Iterable[str]) -> dict[str, Span]:
    """Return the positions of the values at these JSON Pointers, and of all values that contain them, by pointer.

    The position of a scalar is its text. The position of an object or list is its name or, without one, its bracket.
    `read` must have accepted the text, so that it is JSON of limited depth. Other positions are not returned, because
    the pointers to all values could take gigabytes.
    """
    found: dict[str, Span] = {}
    following = TOKEN.finditer(text)
    record_value(next(following), following, "", found, wanted=[tokens(each) for each in pointers], name=None)
    return found


# The remaining tokens of the requested pointers that lead to a value or into it. Empty if no pointer does.
Remaining = list[list[str]]


def inside(wanted: Remaining, name: object) -> Remaining:
    """Return the remaining tokens below a member or item."""
    return [rest[1:] for rest in wanted if rest and rest[0] == str(name)]


def record_value(
    first: re.Match[str],
    following: Tokens,
    pointer: str,
    found: dict[str, Span],
    *,
    wanted: Remaining,
    name: Span | None,
) -> None:
    token = first[0]
    if wanted:
        found[pointer] = name or first.span() if token in "{[" else first.span()
    if token == "{":
        record_members(following, pointer, found, wanted)
    elif token == "[":
        record_items(following, pointer, found, wanted)


def record_members(following: Tokens, pointer: str, found: dict[str, Span], wanted: Remaining) -> None:
    for token in following:
        if token[0] == "}":
            return
        if token[0] == ",":
            continue
        next(following)  # the colon
        name = orjson.loads(token[0]) if wanted else ""
        left = inside(wanted, name)
        at = join(pointer, name) if left else ""
        record_value(next(following), following, at, found, wanted=left, name=token.span())


def record_items(following: Tokens, pointer: str, found: dict[str, Span], wanted: Remaining) -> None:
    index = 0
    for token in following:
        if token[0] == "]":
            return
        if token[0] == ",":
            index += 1
            continue
        left = inside(wanted, index) if wanted else []
        at = join(pointer, index) if left else ""
        record_value(token, following, at, found, wanted=left, name=None)
