"""Error responses: DRF's exception handler, and a middleware for errors outside of DRF views.

Both respond in the same format, even for unknown paths and if the database is unavailable.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

import orjson
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.signals import got_request_exception
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import loader
from django.views.csrf import csrf_failure as csrf_failure_page
from rest_framework.exceptions import UnsupportedMediaType

from config.platform.http.problems import (
    CONTENT_TYPE,
    BadInput,
    CSRFFailed,
    InputError,
    NotFound,
    Problem,
    of_exception,
    of_status,
    phrase,
)
from config.platform.http.request_context import request_id


class ProblemResponse(HttpResponse):
    """A problem response. Its code is logged with the request, because several codes share a status."""

    problem = ""


def respond(problem: Problem, request: HttpRequest) -> HttpResponse:
    """Return a problem response.

    It is Django's, not DRF's, because errors of views that render Markdown or CSV are JSON.
    """
    response = ProblemResponse(
        orjson.dumps(problem.body() | {"requestId": request_id(request)}),
        status=problem.status,
        content_type=CONTENT_TYPE,
        headers=problem.all_headers(),
    )
    response.problem = problem.code
    return response


def respond_page(problem: Problem, request: HttpRequest) -> HttpResponse:
    page = page_of(problem, request_id(request), request=request)
    return HttpResponse(page, status=problem.status, headers=problem.all_headers())


def page_of(problem: Problem, request_id: str, *, request: HttpRequest | None = None) -> bytes:
    """Return the HTML of a problem. It makes no database queries, because the database may be unavailable.

    It has the user's navigation if the request has already loaded the user.
    """
    words = {
        "title": problem.title or phrase(problem.status),
        "detail": problem.detail,
        "retry_after": problem.all_headers().get("Retry-After"),
        "request_id": request_id,
        "user": getattr(request, "_cached_user", None),
        "is_read_only": False,  # finding the user's roles may need a query
    }
    return loader.render_to_string("problem.html", words, request if words["user"] else None).encode()


def handle(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Handle an exception, as DRF's EXCEPTION_HANDLER.

    Return None for a bug: Django logs it, and the middleware responds. Unlike DRF's handler, this one does not roll
    back: ATOMIC_REQUESTS is off, and the called functions manage their transactions.
    """
    problem = of_exception(error)
    if problem is None:
        return None
    if isinstance(error, UnsupportedMediaType):  # RFC 9110, 15.5.16: list the supported media types
        parsers = context["view"].parser_classes
        problem.headers = {**problem.headers, "Accept": ", ".join(str(each.media_type) for each in parsers)}
    request = context["request"]
    return respond(problem, getattr(request, "_request", request))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    """Return Django's HTML page for a page, or a problem for the API. The CSRF_FAILURE_VIEW."""
    if is_page(request):
        return csrf_failure_page(request, reason=reason)
    return respond(CSRFFailed(), request)


def is_page(request: HttpRequest) -> bool:
    """Return whether errors at this path are HTML. All other paths belong to the API."""
    return request.path_info.startswith(settings.PAGE_PREFIXES)


def respond_by_path(problem: Problem, request: HttpRequest) -> HttpResponse:
    return respond_page(problem, request) if is_page(request) else respond(problem, request)


class ProblemMiddleware:
    """Middleware that responds to errors of views, the URL resolver, and inner middleware: with a problem, or a page.

    It is outside of all middleware that can fail, and inside of `RequestMiddleware`, whose IDs it uses.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        got_request_exception.connect(self.keep_exception)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self.respond_async(request)
        return self.refuse(request) or self.replace_body(request, cast("HttpResponseBase", self.get_response(request)))

    async def respond_async(self, request: HttpRequest) -> HttpResponseBase:
        return self.refuse(request) or self.replace_body(request, await self.get_response(request))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return a problem for exceptions of plain Django views, or None to leave bugs to Django."""
        problem = of_exception(error)
        return None if problem is None else respond_by_path(problem, request)

    def keep_exception(self, *, request: HttpRequest | None = None, **_later: object) -> None:
        """Keep an exception raised outside of views, such as by the session middleware during a database outage."""
        if request is not None:
            request.uncaught = sys.exc_info()[1]  # type: ignore[attr-defined]

    def refuse(self, request: HttpRequest) -> HttpResponse | None:
        """Reject NUL in cookies, paths, and query strings. Postgres cannot store it, so it would cause an error 500."""
        problem = nul_in(request)
        return None if problem is None else respond_by_path(problem, request)

    def replace_body(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Replace the body of Django's error responses, including the technical pages of DEBUG. Keep their headers.

        At paths of pages, replace the whole response, and only if the exception is a problem: for example, of a
        middleware that needs an unavailable database.
        """
        if not is_foreign_error(response):
            return response
        problem = of_exception(getattr(request, "uncaught", None))
        if is_page(request):
            return respond_page(problem, request) if problem else response
        replaced = respond(problem or of_status(response.status_code), request)
        for name, value in response.items():
            if name not in ("Content-Type", "Content-Length", "Content-Encoding", "ETag"):
                replaced.setdefault(name, value)
        replaced.cookies = response.cookies
        return replaced


def nul_in(request: HttpRequest) -> Problem | None:
    if "\0" in request.path_info:
        return NotFound()
    if "%00" in request.META.get("QUERY_STRING", ""):
        return BadInput(InputError(pointer="", code="nul", detail="NUL in the query string."))
    if any("\0" in value for value in request.COOKIES.values()):  # cookies encode NUL as "\000"
        return BadInput(InputError(pointer="", code="nul", detail="NUL in a cookie."))
    return None


def is_foreign_error(response: HttpResponseBase) -> bool:
    if response.status_code < HTTPStatus.BAD_REQUEST or response.streaming:
        return False
    return response.get("Content-Type", "").partition(";")[0] in ("", "text/html", "text/plain")
