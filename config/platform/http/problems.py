"""Errors as RFC 9457 `application/problem+json`, from views, DRF, Django, and the database.

`{"type", "title", "status", "detail", "code", "requestId"}`, and for bad input
`"errors": [{"pointer", "code", "detail"}]` with RFC 6901 JSON Pointers such as `/items/17/effectiveDate`.
Programs should check `code`; `type` is the same word as a URN.

All texts are defined here or in the apps. Messages of Django, the database, and libraries never reach clients.
`config.platform.http.error_handling` turns problems into responses.
"""

import errno
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, TypeVar

import psycopg
import structlog
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.db.models import Model, QuerySet
from django.http import Http404
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions
from rest_framework.settings import api_settings

from config.platform.http.pointers import join
from config.platform.observability import logs
from config.platform.observability.metrics import DISK_FULL_TOTAL

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5
# A request with 10,000 invalid items must not get a response of a megabyte.
MAX_ERRORS = 100
MAX_POINTER = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class InputError:
    """An input error. `pointer` is a JSON Pointer; "" is the whole document."""

    pointer: str
    code: str
    detail: str


Row = TypeVar("Row", bound=Model)


class Problem(Exception):
    """An error response. Subclasses set its parts as class attributes."""

    status = 500
    code = "internal_error"
    title = ""  # empty: the phrase of the HTTP status
    detail = "Unexpected error."  # instances can override it
    retry_after: int | None = None  # seconds; 429 and 503 always send one
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, detail: str | None = None, *, retry_after: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.detail = detail or self.detail
        self.retry_after = self.retry_after if retry_after is None else retry_after
        self.headers = {**self.headers, **(headers or {})}
        super().__init__(self.detail)

    def body(self) -> dict[str, Any]:
        return {
            "type": f"urn:problem:sluice:{self.code}",
            "title": self.title or phrase(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }

    def all_headers(self) -> dict[str, str]:
        # Without this, 404 and 410 would be cacheable.
        headers = {"Cache-Control": "no-store", **self.headers}
        if self.retry_after is not None or self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS if self.retry_after is None else self.retry_after)
        return headers


class BadInput(Problem):
    status = 400
    code = "invalid"
    detail = "The input is not valid."

    def __init__(self, *errors: InputError) -> None:
        super().__init__()
        self.errors = errors

    def body(self) -> dict[str, Any]:
        return super().body() | {"errors": [asdict(error) for error in self.errors[:MAX_ERRORS]]}


class NotAuthenticated(Problem):
    status = 401
    code = "not_authenticated"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})
    detail = "Authentication is required: send a bearer token, or sign in."


class AuthenticationFailed(NotAuthenticated):
    code = "authentication_failed"
    headers = MappingProxyType({"WWW-Authenticate": 'Bearer error="invalid_token"'})
    detail = "The token is unknown, expired or revoked, or its user is inactive."


class NotPermitted(Problem):
    status = 403
    code = "permission_denied"
    detail = "You do not have permission to do this."


class CSRFFailed(Problem):
    status = 403
    code = "csrf_failed"
    detail = "The CSRF token of the session is missing or invalid."


class NotFound(Problem):
    status = 404
    code = "not_found"
    detail = "Not found."


class BodyTooLarge(Problem):
    status = 413
    code = "body_too_large"
    detail = "The request body is too large."


class DiskFull(Problem):
    status = 503
    code = "storage_unavailable"
    retry_after = 60
    detail = "The server has no disk space for this request at the moment. Try again later."


class StorageUnavailable(Problem):
    status = 503
    code = "storage_unavailable"
    detail = "The object storage is not available at the moment. Try again in a few seconds."


class DatabaseUnavailable(Problem):
    status = 503
    code = "database_unavailable"
    detail = "The database is not available at the moment. Try again in a few seconds."


# Code and detail of the generic problem of each status.
STATUSES = {
    400: ("invalid", "The request is malformed."),
    401: (NotAuthenticated.code, NotAuthenticated.detail),
    403: (NotPermitted.code, NotPermitted.detail),
    404: (NotFound.code, NotFound.detail),
    405: ("method_not_allowed", "This path does not support this method."),
    406: ("not_acceptable", "None of the media types in the Accept header is available here."),
    413: (BodyTooLarge.code, BodyTooLarge.detail),
    415: ("unsupported_media_type", "The media type of the body is not supported here."),
    429: ("throttled", "Too many requests. Wait before you send the next one."),
    500: (Problem.code, "Unexpected error. If you report it, include the request ID."),
    503: ("unavailable", "The service is not available at the moment. Try again in a few seconds."),
}
# Statuses for which views set the detail of DRF's exceptions. Other details of DRF may quote the request.
STATUSES_WITH_DETAIL = frozenset({403, 404, 409, 410, 422})


def require_first(rows: QuerySet[Row], problem: Problem | type[Problem]) -> Row:
    """Return the first row. Raises the problem if there is none."""
    row = rows.first()
    if row is None:
        raise problem
    return row


def phrase(status: int) -> str:
    return next((known.phrase for known in HTTPStatus if known == status), "Error")


def of_status(status: int) -> Problem:
    """Return the generic problem of an HTTP status."""
    code, detail = STATUSES.get(status) or (phrase(status).lower().replace(" ", "_"), None)
    problem = Problem(detail)
    problem.status, problem.code = status, code
    return problem


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException) -> bool:
    """Return whether the error means a full disk or quota. A full disk is logged and counted."""
    if not (isinstance(error, OSError) and error.errno in DISK_FULL):
        return False
    DISK_FULL_TOTAL.inc()
    log.error("no_room", setting="TMPDIR", error=logs.describe(error))
    return True


# ---- From exceptions --------------------------------------------------------------------------------------------
# These include pool timeouts, shutdowns, statement timeouts, and deadlocks. After all of them, a retry may succeed.
DATABASE_ERRORS = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
MEANINGS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[], Problem]], ...] = (
    (Http404, NotFound),
    (PermissionDenied, NotPermitted),
    (RequestDataTooBig, BodyTooLarge),
    ((SuspiciousOperation, BadRequest, MultiPartParserError), lambda: of_status(400)),
    (DATABASE_ERRORS, DatabaseUnavailable),
)


def of_exception(error: BaseException | None) -> Problem | None:
    """Return the problem for an exception, or None for a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, exceptions.APIException):
        return of_api_exception(error)
    if isinstance(error, DATABASE_ERRORS):
        log.error("database_unavailable", error=logs.describe(error))
    return next((meaning() for kinds, meaning in MEANINGS if isinstance(error, kinds)), None)


def of_api_exception(error: exceptions.APIException) -> Problem:
    match error:
        case exceptions.ValidationError():
            return BadInput(*input_errors(error.detail))
        case exceptions.ParseError():
            return BadInput(
                InputError(pointer="", code="malformed", detail="The body does not match its Content-Type.")
            )
        case exceptions.NotAuthenticated():
            return NotAuthenticated()
        case exceptions.AuthenticationFailed():
            return AuthenticationFailed()
    problem = of_status(error.status_code)
    if (
        error.status_code in STATUSES_WITH_DETAIL
        and isinstance(error.detail, str)
        and error.detail != str(error.default_detail)
    ):
        problem.detail = str(error.detail)  # NotFound("Task not found")
    if isinstance(code := error.get_codes(), str):
        problem.code = code
    if wait := getattr(error, "wait", None):
        problem.retry_after = math.ceil(wait)
    return problem


def input_errors(detail: Any, pointer: str = "") -> Iterator[InputError]:
    """Flatten DRF's nested details: dicts by field, lists by index, `non_field_errors` at their parent."""
    if isinstance(detail, Mapping):
        for name, member in detail.items():
            inside = pointer if name == api_settings.NON_FIELD_ERRORS_KEY else join(pointer, name)
            yield from input_errors(member, inside)
    elif isinstance(detail, list | tuple):
        for index, member in enumerate(detail):
            yield from input_errors(member, pointer if isinstance(member, str) else join(pointer, index))
    elif detail:
        code = getattr(detail, "code", None) or "invalid"
        yield InputError(pointer=pointer[:MAX_POINTER], code=code, detail=str(detail)[:MAX_POINTER])
