"""Request IDs, and log lines of requests with the route instead of the path and query."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import structlog
from django.http import HttpRequest, HttpResponse
from django_structlog import middlewares

HEADER = "HTTP_X_REQUEST_ID"
VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id(request: HttpRequest) -> str:
    """Return the request's ID: the client's X-Request-ID if it is valid, otherwise a new one.

    Repeated calls return the same ID.
    """
    request.META[HEADER] = valid = valid_id_or_new(str(request.META.get(HEADER, "")))
    return valid


def valid_id_or_new(given: str) -> str:
    return given if VALID_ID.fullmatch(given) else str(uuid4())


class RequestMiddleware(middlewares.RequestMiddleware):
    """django-structlog's middleware with validated IDs, X-Request-ID, routes, and codes of problems.

    It requires DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID: `request_id` has validated the trusted ID.
    """

    def prepare(self, request: HttpRequest) -> None:
        request_id(request)
        super().prepare(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if "job_id" in kwargs:
            structlog.contextvars.bind_contextvars(job_id=str(kwargs["job_id"]))
        if "task_id" in kwargs:  # in log lines, `task_id` is the ID of Celery's task
            structlog.contextvars.bind_contextvars(etl_task_id=kwargs["task_id"])

    def handle_response(self, request: HttpRequest, response: HttpResponse) -> None:
        response["X-Request-ID"] = request_id(request)
        if problem := getattr(response, "problem", ""):
            structlog.contextvars.bind_contextvars(problem=problem)
        super().handle_response(request, response)

    @staticmethod
    def format_request(request: HttpRequest) -> str:
        """Return `GET /exports/<uuid:job_id>`. Paths contain keys and dates, and query strings contain links."""
        match = request.resolver_match
        return f"{request.method} /{match.route}" if match else f"{request.method} (no route)"
