"""Strict JSON parser with limits of size and depth."""

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.http import HttpRequest
from rest_framework.parsers import BaseParser

from config.platform.http.pointers import join
from config.platform.http.problems import BadInput, BodyTooLarge, InputError

# Far below Python's recursion limit, which serializers, json.dumps, and schema validators would exceed.
MAX_DEPTH = 200
ESCAPED_NUL = b"\\u0000"


class JSONParser(BaseParser):
    """Parser of RFC 8259 JSON objects in UTF-8. Raises BodyTooLarge above DATA_UPLOAD_MAX_MEMORY_SIZE bytes.

    Raises BadInput for invalid JSON (including NaN, numbers outside of the range of a double, lone surrogates, and a
    BOM), for more than 200 levels, and for NUL, which Postgres cannot store. A charset in Content-Type is ignored, as
    the RFC requires. Of duplicate names, the last one counts, as in most parsers: a proxy that checks bodies must do
    the same.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        request: HttpRequest | None = (parser_context or {}).get("request")
        document = load(read(stream, declared=declared_length(request)))
        if not isinstance(document, dict):
            raise BadInput(InputError(pointer="", code="not_an_object", detail="The body must be a JSON object."))
        return document


def declared_length(request: HttpRequest | None) -> int:
    text = str(request.META.get("CONTENT_LENGTH") or "") if request is not None else ""
    return int(text) if text.isdecimal() else 0


def read(stream: IO[Any], *, declared: int) -> bytes:
    """Return the whole body, or raise BodyTooLarge for its declared or actual size."""
    most: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if declared > most:
        raise BodyTooLarge
    body: bytes = stream.read(most + 1)
    if len(body) > most:
        raise BodyTooLarge
    return body


def load(body: bytes) -> Any:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        where = f"The body is not JSON: line {error.lineno}, column {error.colno}."
        raise BadInput(InputError(pointer="", code="malformed", detail=where)) from None
    for pointer, member in members(document):
        if too_deep(member):
            raise BadInput(InputError(pointer=pointer, code="too_deep", detail=f"More than {MAX_DEPTH} levels."))
    if ESCAPED_NUL in body and (places := list(nul_places(document, ""))):
        raise BadInput(*(InputError(pointer=place, code="nul", detail="NUL is not allowed.") for place in places))
    return document


def too_deep(value: Any) -> bool:
    """Return whether a value has more than MAX_DEPTH levels, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in children(outer) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def nul_places(value: Any, pointer: str) -> Iterator[str]:
    if isinstance(value, str) and "\0" in value:
        yield pointer
    for inside, member in members(value, pointer):
        if "\0" in inside:
            yield pointer
        else:
            yield from nul_places(member, inside)


def members(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((join(pointer, name), member) for name, member in value.items())
    elif isinstance(value, list):
        yield from ((join(pointer, index), member) for index, member in enumerate(value))
