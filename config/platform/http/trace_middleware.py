"""The middleware that has each request begin a trace, or be a step in its caller's. Only there if TRACING."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from config.platform.http.addresses import client_address, within
from config.platform.http.request_context import request_id
from config.platform.observability import tracing

PROBES = ("/livez", "/readyz", "/metrics")  # asked every few seconds, for ever


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    if iscoroutinefunction(get_response):
        answer: Callable[[HttpRequest], Awaitable[HttpResponse]] = get_response

        async def handle_later(request: HttpRequest) -> HttpResponse:
            with around(request) as answered:
                response = await answer(request)
                answered(response)
                return response

        return handle_later

    def handle(request: HttpRequest) -> HttpResponse:
        with around(request) as answered:
            response: HttpResponse = get_response(request)
            answered(response)
            return response

    return handle


def around(request: HttpRequest) -> AbstractContextManager[Callable[[HttpResponse], None]]:
    if request.path_info in PROBES:
        return nullcontext(lambda _response: None)
    return tracing.request(request, request_id=request_id(request), is_trusted=is_trusted(request))


def is_trusted(request: HttpRequest) -> bool:
    """Whether the caller's trace is gone on with. Anybody can send a traceparent: it would choose what is sampled, and
    put its requests into the trace of others."""
    networks = settings.SLUICE.tracing_parent_cidrs
    address = client_address(request) if networks else None
    return address is not None and within(address, networks)
