"""Errors as RFC 9457 `application/problem+json`, whatever raised them: a view, DRF, Django, or the database.

`{"type", "title", "status", "detail", "code", "requestId"}`, and for bad input
`"errors": [{"pointer", "code", "detail"}]` with RFC 6901 JSON Pointers such as `/items/17/effectiveDate`.
`code` is what programs switch on; `type` is the same word as a URN.

Two doors lead here: DRF's exception handler, and a middleware for everything that never reaches a DRF view. Both say
only words of our own: no message of Django's, of the database's or of a stranger's exception gets through.
"""

import errno
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, cast

import orjson
import psycopg
import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase
from django.template import loader
from django.views.csrf import csrf_failure as csrf_failure_page
from rest_framework import exceptions
from rest_framework.settings import api_settings

from config import logs
from config.api.requests import request_id

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5
# A request of 10,000 wrong items is not worth an answer of a megabyte.
MAX_ERRORS = 100
MAX_POINTER = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class InputError:
    """One thing wrong with the input, and where: `pointer` is a JSON Pointer, "" the whole document."""

    pointer: str
    code: str
    detail: str


class Problem(Exception):
    """Something went wrong."""

    # A subclass says what happened in its docstring: the first paragraph is the default `detail`.
    status = 500
    code = "internal_error"
    title = ""  # the phrase of the HTTP status unless there is a better one
    retry_after: int | None = None  # seconds; 429 and 503 always send one
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, detail: str | None = None, *, retry_after: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.detail = detail or self.said()
        self.retry_after = self.retry_after if retry_after is None else retry_after
        self.headers = {**self.headers, **(headers or {})}
        super().__init__(self.detail)

    @classmethod
    def said(cls) -> str:
        paragraph = (inspect.getdoc(cls) or "").partition("\n\n")[0]
        return " ".join(paragraph.split()) or phrase(cls.status)

    def body(self) -> dict[str, Any]:
        return {
            "type": f"urn:problem:sluice:{self.code}",
            "title": self.title or phrase(self.status),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }

    def all_headers(self) -> dict[str, str]:
        # An error is about now; 404 and 410 would be cacheable without this.
        headers = {"Cache-Control": "no-store", **self.headers}
        if self.retry_after is not None or self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS if self.retry_after is None else self.retry_after)
        return headers


class BadInput(Problem):
    """The input is not valid."""

    status = 400
    code = "invalid"

    def __init__(self, *errors: InputError, detail: str | None = None) -> None:
        super().__init__(detail)
        self.errors = errors

    def body(self) -> dict[str, Any]:
        return super().body() | {"errors": [asdict(error) for error in self.errors[:MAX_ERRORS]]}


class NotAuthenticated(Problem):
    """A bearer token or a signed-in session is needed."""

    status = 401
    code = "not_authenticated"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class AuthenticationFailed(NotAuthenticated):
    """The token is unknown, expired or revoked, or its user is inactive."""

    code = "authentication_failed"


class NotPermitted(Problem):
    """You may not do this."""

    status = 403
    code = "permission_denied"


class CSRFFailed(Problem):
    """The CSRF token of the session is missing or wrong."""

    status = 403
    code = "csrf_failed"


class NotFound(Problem):
    """There is nothing here."""

    status = 404
    code = "not_found"


class BodyTooLarge(Problem):
    """The body of the request is too large."""

    status = 413
    code = "body_too_large"


class NoRoom(Problem):
    """There is no room here for what was sent at the moment. Try again later."""

    status = 503
    code = "storage_unavailable"
    retry_after = 60


class StorageUnavailable(Problem):
    """The object storage does not answer at the moment. Try again in a few seconds."""

    status = 503
    code = "storage_unavailable"


class DatabaseUnavailable(Problem):
    """The database does not answer at the moment. Try again in a few seconds."""

    status = 503
    code = "database_unavailable"


STATUS_CODES = {
    400: "invalid",
    401: NotAuthenticated.code,
    403: NotPermitted.code,
    404: NotFound.code,
    405: "method_not_allowed",
    406: "not_acceptable",
    413: BodyTooLarge.code,
    415: "unsupported_media_type",
    429: "throttled",
    500: Problem.code,
    503: "unavailable",
}
STATUS_DETAILS = {
    400: "The request is malformed.",
    401: NotAuthenticated.said(),
    403: NotPermitted.said(),
    404: NotFound.said(),
    405: "This path does not take this method.",
    406: "None of the media types in Accept can be served here.",
    413: BodyTooLarge.said(),
    415: "The body's media type is not accepted here.",
    429: "Too many requests. Wait before the next one.",
    500: "Something went wrong on our side. The request id helps us to find it.",
    503: "The service is not available at the moment. Try again in a few seconds.",
}
# Where DRF's details are a view's own words. Elsewhere they quote the request.
OWN_WORDS = frozenset({403, 404, 409, 410, 422})


def phrase(status: int) -> str:
    return next((known.phrase for known in HTTPStatus if known == status), "Error")


def of_status(status: int) -> Problem:
    """Return the problem that an HTTP status stands for when nothing more is known."""
    problem = Problem(STATUS_DETAILS.get(status))
    problem.status = status
    problem.code = STATUS_CODES.get(status) or phrase(status).lower().replace(" ", "_")
    return problem


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException) -> bool:
    """Whether a disk had no room, or a user no more of it; the log is told."""
    if not (isinstance(error, OSError) and error.errno in NO_ROOM):
        return False
    log.error("no_room", setting="TMPDIR", error=logs.describe(error))
    return True


# ---- From exceptions --------------------------------------------------------------------------------------------
# Pool timeouts, shutdowns, statement timeouts and deadlocks among them: all worth another try.
DATABASE_ERRORS = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
MEANINGS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[], Problem]], ...] = (
    (Http404, NotFound),
    (PermissionDenied, NotPermitted),
    (RequestDataTooBig, BodyTooLarge),
    ((SuspiciousOperation, BadRequest, MultiPartParserError), lambda: of_status(400)),
    (DATABASE_ERRORS, DatabaseUnavailable),
)


def of_exception(error: BaseException | None) -> Problem | None:
    """Return the problem that an exception means to the client, or None when it is a bug."""
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
            return BadInput(InputError(pointer="", code="malformed", detail="The body is not what its type says."))
        case exceptions.NotAuthenticated():
            return NotAuthenticated()
        case exceptions.AuthenticationFailed():
            return AuthenticationFailed()
    problem = of_status(error.status_code)
    if error.status_code in OWN_WORDS and isinstance(error.detail, str) and error.detail != str(error.default_detail):
        problem.detail = str(error.detail)  # NotFound("Task not found")
    if isinstance(code := error.get_codes(), str):
        problem.code = code
    if wait := getattr(error, "wait", None):
        problem.retry_after = math.ceil(wait)
    return problem


def input_errors(detail: Any, pointer: str = "") -> Iterator[InputError]:
    """Yield what DRF's nested details say: dicts by field, lists by index, `non_field_errors` at their parent."""
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


def join(pointer: str, name: object) -> str:
    """Return the pointer to a member, `~` and `/` in its name escaped as RFC 6901 says."""
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"


# ---- To responses -----------------------------------------------------------------------------------------------
class ProblemResponse(HttpResponse):
    """An answer that is a problem. The request's line in the log tells which: a status stands for several."""

    problem = ""


def respond(problem: Problem, request: HttpRequest) -> HttpResponse:
    """Return the response, not DRF's Response: a view that renders Markdown or CSV still answers errors as JSON."""
    response = ProblemResponse(
        orjson.dumps(problem.body() | {"requestId": request_id(request)}),
        status=problem.status,
        content_type=CONTENT_TYPE,
        headers=problem.all_headers(),
    )
    response.problem = problem.code
    return response


def respond_page(problem: Problem, request: HttpRequest) -> HttpResponse:
    """Return the same for people. The page asks the database nothing: it may be what is away."""
    words = {
        "title": problem.title or phrase(problem.status),
        "detail": problem.detail,
        "retry_after": problem.all_headers().get("Retry-After"),
        "request_id": request_id(request),
    }
    page = loader.render_to_string("problem.html", words)
    return HttpResponse(page, status=problem.status, headers=problem.all_headers())


def handle(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """DRF's EXCEPTION_HANDLER. None lets a bug go on to Django, which logs it; the middleware words the answer.

    Unlike DRF's own it rolls nothing back: ATOMIC_REQUESTS is off, and transactions belong to the stages.
    """
    problem = of_exception(error)
    if problem is None:
        return None
    request = context["request"]
    return respond(problem, getattr(request, "_request", request))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    """CSRF_FAILURE_VIEW: Django's page for pages, a problem for the rest."""
    if is_page(request):
        return csrf_failure_page(request, reason=reason)
    return respond(CSRFFailed(), request)


def is_page(request: HttpRequest) -> bool:
    """Tell whether people look at this path, so that errors stay HTML. Everything else is the API's."""
    return request.path_info.startswith(settings.PAGE_PREFIXES)


class ProblemMiddleware:
    """Answers problem+json where a view, the URL resolver or a middleware further in gave up.

    It stands outside all middleware that can fail, inside `RequestMiddleware`, whose ids it shows.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        got_request_exception.connect(self.remember)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self.answer_async(request)
        return self.refuse(request) or self.reword(request, cast("HttpResponseBase", self.get_response(request)))

    async def answer_async(self, request: HttpRequest) -> HttpResponseBase:
        return self.refuse(request) or self.reword(request, await self.get_response(request))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer what plain Django views raise. None leaves bugs to Django."""
        problem = of_exception(error)
        if problem is None:
            return None
        return respond_page(problem, request) if is_page(request) else respond(problem, request)

    def remember(self, *, request: HttpRequest | None = None, **_later: object) -> None:
        """Keep what was raised outside of views, for example by the session middleware while the database is down."""
        if request is not None:
            request.uncaught = sys.exc_info()[1]  # type: ignore[attr-defined]

    def refuse(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse NUL in cookies, paths and query strings: Postgres cannot hold it, so that looking for a session or
        filtering by it would be an error 500."""
        problem = nul_in(request)
        if problem is None:
            return None
        return respond_page(problem, request) if is_page(request) else respond(problem, request)

    def reword(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Replace the body of Django's own error responses, DEBUG's technical pages among them. Headers stay."""
        if not is_foreign_error(response) or is_page(request):
            return response
        uncaught = getattr(request, "uncaught", None)
        answer = respond(of_exception(uncaught) or of_status(response.status_code), request)
        for name, value in response.items():
            if name not in ("Content-Type", "Content-Length", "Content-Encoding", "ETag"):
                answer.setdefault(name, value)
        answer.cookies = response.cookies
        return answer


def nul_in(request: HttpRequest) -> Problem | None:
    if "\0" in request.path_info:
        return NotFound()
    if "%00" in request.META.get("QUERY_STRING", ""):
        return BadInput(InputError(pointer="", code="nul", detail="NUL in the query string."))
    if any("\0" in value for value in request.COOKIES.values()):  # they write it "\000"
        return BadInput(InputError(pointer="", code="nul", detail="NUL in a cookie."))
    return None


def is_foreign_error(response: HttpResponseBase) -> bool:
    if response.status_code < HTTPStatus.BAD_REQUEST or response.streaming:
        return False
    return response.get("Content-Type", "").partition(";")[0] in ("", "text/html", "text/plain")
