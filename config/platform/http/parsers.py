"""Strict JSON parser with limits of size, depth, and number of values."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, Any

import orjson
from django.conf import settings
from rest_framework.parsers import BaseParser

from config.platform import exact_json
from config.platform.http.pointers import join
from config.platform.http.problems import MAX_ERRORS, MAX_POINTER, BadInput, BodyTooLarge, InputError

# Far below Python's recursion limit. Deeper JSON would exceed it in serializers, json.dumps, and schema validators.
MAX_DEPTH = 200
# Maximum number of lists, objects, and commas: checking five megabytes of `[]` would take seconds, and hundreds of
# megabytes of memory. The largest export request has three of them per item.
MAX_VALUES = 400_000
ESCAPED_NUL = b"\\u0000"


class JSONParser(BaseParser):
    """Parser of RFC 8259 JSON objects in UTF-8. Raises BodyTooLarge above DATA_UPLOAD_MAX_MEMORY_SIZE bytes.

    Raises BadInput for invalid JSON (including NaN, numbers outside of the range of a double, lone surrogates, and a
    BOM), for more than 200 levels or 400,000 values, and for NUL, which Postgres cannot store. A charset in
    Content-Type is ignored, as the RFC requires. The last of duplicate names is used, as by most parsers. A proxy that
    inspects bodies must do the same.
    """

    media_type = "application/json"
    is_exact = False

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        document = load(read(stream), is_exact=self.is_exact)
        if not isinstance(document, dict):
            raise BadInput(InputError(pointer="", code="not_an_object", detail="The body must be a JSON object."))
        return document


class ExactJSONParser(JSONParser):
    """A JSONParser whose numbers keep their digits."""

    is_exact = True


def read(stream: IO[Any]) -> bytes:
    """Return the whole body. Raises BodyTooLarge.

    In production, `config.platform.http.body_limits` rejects such a body earlier.
    """
    limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body: bytes = stream.read(limit + 1)
    if len(body) > limit:
        raise BodyTooLarge
    return body


def load(body: bytes, *, is_exact: bool = False) -> Any:
    """Return the document of a body. `is_exact`: numbers keep their digits (`exact_json`). Raises BadInput."""
    if sum(map(body.count, (b"[", b"{", b","))) > MAX_VALUES:
        detail = f"The body has more than {MAX_VALUES:,} values."
        raise BadInput(InputError(pointer="", code="too_many_values", detail=detail))
    document = parse(body)
    for name, member in members_of(document):
        if exact_json.nested_deeper(member, MAX_DEPTH - 1):  # the document itself is the first level
            raise BadInput(too_deep(join("", name)[:MAX_POINTER]))
    if ESCAPED_NUL in body and (places := list(islice(pointers_to_nul(document), MAX_ERRORS))):
        raise BadInput(*(InputError(pointer=place, code="nul", detail="NUL is not allowed.") for place in places))
    if not is_exact:
        return document
    try:
        return exact_json.loads(body)
    except ValueError:
        detail = "The exponent of a number is out of range."
        raise BadInput(InputError(pointer="", code="malformed", detail=detail)) from None


def parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:  # 1,024 levels
            raise BadInput(too_deep("")) from None
        detail = f"The body is not JSON: line {error.lineno}, column {error.colno}."
        raise BadInput(InputError(pointer="", code="malformed", detail=detail)) from None


def too_deep(pointer: str) -> InputError:
    return InputError(pointer=pointer, code="too_deep", detail=f"More than {MAX_DEPTH} levels.")


def members_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the members or items with their names or indexes."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def pointers_to_nul(value: Any) -> Iterator[str]:
    """Yield the pointers to strings with NUL. Build no other pointers, because a name may have megabytes."""
    if isinstance(value, str):
        if "\0" in value:
            yield ""
    else:
        for name, member in members_of(value):
            if isinstance(name, str) and "\0" in name:
                yield ""
            elif isinstance(member, str | dict | list):
                for place in pointers_to_nul(member):
                    yield (join("", name) + place)[:MAX_POINTER]
