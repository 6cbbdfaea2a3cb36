"""Middleware that processes one large body at a time, because parsing megabytes holds the GIL."""

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.platform.http.body_limits import limit_of

Respond = Callable[[HttpRequest], HttpResponseBase]

# Each request has a separate thread, so a waiting request does not block others.
turn = threading.Lock()


def middleware(get_response: Respond) -> Respond:
    """Queue requests whose body is larger than BODY_LIMIT.

    Their bodies have been received already, so a slow client does not delay others.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if not is_large(request):
            return get_response(request)
        with ExitStack() as held:
            held.enter_context(turn)
            request.end_turn = held.close  # type: ignore[attr-defined]
            gc.collect()  # serializers and requests are cyclic, and keep the values of the previous body
            return get_response(request)

    return respond


def end_turn(request: HttpRequest) -> None:
    """Let the next request with a large body start, because this one is about to wait."""
    getattr(request, "end_turn", lambda: None)()


def is_large(request: HttpRequest) -> bool:
    size = request.META.get("CONTENT_LENGTH") or "0"
    # Uploads of files exceed the limit of their path. They are not parsed in memory.
    return size.isdigit() and settings.BODY_LIMIT < int(size) <= limit_of(request.path_info)
