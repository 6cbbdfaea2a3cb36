"""Bounding request bodies before Django reads them.

Django's ASGI handler spools a whole body to disk before any view or middleware sees the request, however large it is.
And a body of unknown length (`Transfer-Encoding: chunked`) reads as empty to DRF, which looks at Content-Length only.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from django.conf import settings

from config.api.problems import CONTENT_TYPE, BodyTooLarge
from config.api.requests import sane_id

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class BoundedBody:
    """An ASGI application around another: answers 413 when a body declares, or turns out, to be too large.

    The bound is DATA_UPLOAD_MAX_MEMORY_SIZE: nothing here takes files yet. Where the client declared no length the
    inner application finds the one that was counted.
    """

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets here, and no lifespan: Django would raise
        body = Body({**scope, "headers": [*scope["headers"]]}, receive)
        if not body.too_large:
            await self.application(body.scope, body.receive, send)
        if body.too_large:
            await refuse(scope, send)


class Body:
    """The body of one request, counted while it comes in."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.inner = receive
        self.size = 0
        headers = dict(scope["headers"])
        self.most: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        declared = headers.get(b"content-length")
        self.is_declared = declared is not None
        self.too_large = declared is not None and declared.isdigit() and int(declared) > self.most

    async def receive(self) -> Message:
        message = await self.inner()
        if message["type"] != "http.request":
            return message
        self.size += len(message.get("body", b""))
        if self.size > self.most:
            self.too_large = True
            return {"type": "http.disconnect"}  # Django drops the request without a word
        if self.size and not self.is_declared and not message.get("more_body"):
            # Django makes its request from the scope after the last part of the body has come.
            self.scope["headers"].append((b"content-length", str(self.size).encode()))
        return message


async def refuse(scope: Scope, send: Send) -> None:
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    request_id = sane_id(given.decode("latin-1"))
    problem = BodyTooLarge()
    headers = {
        **problem.all_headers(),
        "Content-Type": CONTENT_TYPE,
        "X-Request-ID": request_id,
        "Connection": "close",  # the rest of the body is not going to be read
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": orjson.dumps(problem.body() | {"requestId": request_id})})
