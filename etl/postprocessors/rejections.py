"""Interpretation of error responses from model servers.

Servers report the cause of an error as a status, an error code, or a message. A message may quote the request and thus
the document, so a phrase in a message is ignored if the request contains it too.
"""

import json
import re
from http import HTTPStatus
from typing import Any

from etl.core.errors import DocumentTooLong, EtlError, LlmForbidden, LlmRefused, LlmUnavailable

MAX_MESSAGE_CHARACTERS = 4_000  # of a server's error message
MAX_BODY_CHARACTERS = 200_000  # of a body, which may quote the request
# Members of error bodies that describe the error. Others, such as FastAPI's `input`, quote the request.
ERROR_MEMBERS = ("error", "errors", "detail", "details", "message", "msg", "code", "type", "param", "loc", "innererror")
MAX_LEVELS = 5

TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "context_window")
# Verbatim parts of messages, such as "when context the overflows" of LM Studio.
TOO_LONG = re.compile(
    r"context.(?:length|window|size|limit)|maximum context|max_model_len|(?:prompt|input|conversation) is too long"
    r"|too many (?:prompt |input )?tokens|reduce the length|exceeds the available|maximum input length"
    r"|max_input_tokens|input token count|range of input length|when context the overflows"
    r"|`?inputs`? (?:tokens|must have less than)|prompt (?:contains|has) [\d,]+ tokens"
    r"|exceeds? the (?:model's )?maximum|larger than the (?:maximum|configured) context|tokens exceed"
    r"|current length is [\d,]+ while limit is"
)
REFUSED_CODES = ("content_filter", "content_policy_violation", "data_inspection_failed", "responsibleaipolicyviolation")
REFUSED = re.compile(
    r"content management policy|content filter|content.?policy|inappropriate content|content exists risk"
    r"|flagged by (?:our )?(?:moderation|content|safety)|usage policies"
)
# NO_VISION: messages of a model or server without image support. BAD_IMAGE: messages that reject a particular image.
VISION = r"(?:image|vision|visual|multi-?modal)"
NEGATION = r"(?:\bnot\b|n't\b|\bonly\b|unsupported|unknown|unexpected|cannot|\bno\b|at most 0)"
NO_VISION = re.compile(
    rf"{VISION}[^.]{{0,80}}{NEGATION}|{NEGATION}[^.]{{0,80}}{VISION}|mmproj"
    r"|content\b[^.]{0,40}(?:must|should|expected)[^.]{0,40}string|expected a string[^.]{0,40}(?:list|array)"
)
BAD_IMAGE = re.compile(r"too (?:large|big|many|small)|dimension|resolution|decode|image (?:size|format)|at most [1-9]")

# Statuses that may be due to the request. Some servers send 404 or 500 for an unknown parameter.
POSSIBLE_REQUEST_ERRORS = (400, 404, 415, 422, 500, 501)
TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class ErrorResponse(Exception):
    """An error response of a model server. `error`: its meaning. `message`: its texts in lower case, for matching only
    and not for display; "" if the request is not the cause."""

    def __init__(self, error: EtlError, *, message: str) -> None:
        super().__init__(error.code)
        self.error, self.message = error, message


def interpret(status: int, body: str, *, sent: str, retry_after: float | None) -> ErrorResponse:
    """Interpret a response with an error status. `sent`: the prompt, whose phrases are ignored in the response."""
    message, codes = error_texts(body)
    error = error_of(status, message, codes, sent.lower(), retry_after=retry_after)
    is_about_request = status in POSSIBLE_REQUEST_ERRORS and not isinstance(error, DocumentTooLong | LlmRefused)
    return ErrorResponse(error, message=message if is_about_request else "")


def error_of(status: int, message: str, codes: set[str], sent: str, *, retry_after: float | None) -> EtlError:
    """Return the error for a response with this status."""
    is_refused = matches(REFUSED, REFUSED_CODES, message, codes, sent)
    if status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and not is_refused):
        return LlmForbidden("The language model's server rejects ETL_LLM_API_KEY.")
    if status not in TRANSIENT:  # a 429 may mention tokens too, but means a rate limit
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or matches(TOO_LONG, TOO_LONG_CODES, message, codes, sent):
            return DocumentTooLong("The document, or a part of it, exceeds the context length of the language model.")
        if status < HTTPStatus.INTERNAL_SERVER_ERROR and is_refused:
            return LlmRefused()
    if status in TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return LlmUnavailable(
            f"The language model's server is busy or failed (HTTP {status}).", retry_after=retry_after
        )
    if status == HTTPStatus.NOT_FOUND:
        return LlmForbidden("The language model's server has no such model or path (HTTP 404).")
    return LlmForbidden(f"The language model's server rejects the request (HTTP {status}).")


def lacks_vision(message: str) -> bool:
    """Return whether a request with images was rejected because the model does not accept images."""
    return bool(NO_VISION.search(message)) and not BAD_IMAGE.search(message)


def matches(phrase: re.Pattern[str], known: tuple[str, ...], message: str, codes: set[str], sent: str) -> bool:
    """Return whether an error has one of these codes, or a matching phrase that does not occur in the request."""
    if not codes.isdisjoint(known):
        return True
    return any(match.group() not in sent for match in phrase.finditer(message))


# ---- Bodies ---------------------------------------------------------------------------------------------------------
def error_texts(body: str) -> tuple[str, set[str]]:
    """Return the error texts and the error codes of a body, both in lower case."""
    body = body[:MAX_BODY_CHARACTERS]
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = body
    codes = set[str]()
    texts = texts_of(parsed, codes, MAX_LEVELS)
    return " ".join(texts)[:MAX_MESSAGE_CHARACTERS].lower(), codes


def texts_of(value: Any, codes: set[str], levels: int) -> list[str]:
    """Return the texts that describe the error, and add its codes to `codes`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and levels:
        return [text for each in value for text in texts_of(each, codes, levels - 1)]
    if not (isinstance(value, dict) and levels):
        return []
    codes.update(value[name].lower() for name in ("code", "type") if isinstance(value.get(name), str))
    return [text for name in ERROR_MEMBERS if name in value for text in texts_of(value[name], codes, levels - 1)]
