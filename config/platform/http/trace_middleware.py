"""Middleware that traces requests. Installed only if TRACING is set."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from config.platform.http.addresses import client_address, within
from config.platform.http.request_context import request_id
from config.platform.observability import tracing

PROBES = ("/livez", "/readyz", "/metrics")  # requested every few seconds


@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponse:
            with span_of(request) as finish:
                response: HttpResponse = await get_response(request)
                finish(response)
                return response

        return handle_async

    def handle(request: HttpRequest) -> HttpResponse:
        with span_of(request) as finish:
            response: HttpResponse = get_response(request)
            finish(response)
            return response

    return handle


def span_of(request: HttpRequest) -> AbstractContextManager[Callable[[HttpResponse], None]]:
    if request.path_info in PROBES:
        return nullcontext(lambda _response: None)
    return tracing.request(request, request_id=request_id(request), is_trusted=is_trusted(request))


def is_trusted(request: HttpRequest) -> bool:
    """Return whether to continue the caller's trace.

    Any client can send a traceparent. It could control sampling, and add its requests to the traces of others.
    """
    networks = settings.SLUICE.tracing_parent_cidrs
    address = client_address(request) if networks else None
    return address is not None and within(address, networks)
