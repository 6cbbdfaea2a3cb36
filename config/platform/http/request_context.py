"""What every request carries: an id, and lines in the log that tell its route but not its path or query."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import structlog
from django.http import HttpRequest, HttpResponse
from django_structlog import middlewares

HEADER = "HTTP_X_REQUEST_ID"
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id(request: HttpRequest) -> str:
    """Return the request's id: the client's own X-Request-ID if it is sane, else a new one. It stays the same."""
    request.META[HEADER] = taken = sane_id(str(request.META.get(HEADER, "")))
    return taken


def sane_id(given: str) -> str:
    return given if SANE_ID.fullmatch(given) else str(uuid4())


class RequestMiddleware(middlewares.RequestMiddleware):
    """django-structlog's middleware with ids that are checked, answered as X-Request-ID, with routes for paths, and
    with the code of the problem where the answer is one.

    It wants DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID: what it then trusts has been through `request_id`.
    """

    def prepare(self, request: HttpRequest) -> None:
        request_id(request)
        super().prepare(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if "job_id" in kwargs:
            structlog.contextvars.bind_contextvars(job_id=str(kwargs["job_id"]))
        if "task_id" in kwargs:  # `task_id` itself is Celery's in log lines
            structlog.contextvars.bind_contextvars(etl_task_id=kwargs["task_id"])

    def handle_response(self, request: HttpRequest, response: HttpResponse) -> None:
        response["X-Request-ID"] = request_id(request)
        if problem := getattr(response, "problem", ""):
            structlog.contextvars.bind_contextvars(problem=problem)
        super().handle_response(request, response)

    @staticmethod
    def format_request(request: HttpRequest) -> str:
        """Return `GET /exports/<uuid:job_id>`. Paths hold keys and dates, and query strings hold links."""
        match = request.resolver_match
        return f"{request.method} /{match.route}" if match else f"{request.method} (no route)"
