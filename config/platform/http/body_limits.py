"""Size limits of request bodies, enforced before Django reads them.

Django's ASGI handler writes a whole body of any size to disk before any view or middleware sees the request. So files
are accepted from authenticated clients only. DRF treats a body of unknown length (`Transfer-Encoding: chunked`) as
empty, because it reads Content-Length only.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import orjson
import structlog
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.shortcuts import resolve_url
from django.utils.http import parse_header_parameters

from config.platform.http.auth import refusal_by_headers
from config.platform.http.error_handling import page_of
from config.platform.http.problems import CONTENT_TYPE, BodyTooLarge, DiskFull, Problem, is_full, of_status
from config.platform.http.request_context import valid_id_or_new

log = structlog.get_logger(__name__)

# For a client that keeps sending after a rejection: in total, and while no byte arrives.
LINGER_SECONDS, IDLE_SECONDS = 30.0, 5.0
# Headers that are parsed before authentication, and their maximum length in bytes. The time of Python's parser grows
# with the square of the length.
WITH_PARAMETERS, MAX_PARAMETERS = (b"content-type", b"accept", b"accept-encoding"), 2_000

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The limit of a path that accepts files as multipart/form-data: maximum size of the body, and the error above it.

    Anonymous users are redirected to the sign-in page, and after the sign-in to `page`. Without `page`, they get 401.
    """

    limit: int
    problem: type[Problem]
    page: str = ""


class SignInFirst(Problem):
    status = 303
    code = "not_authenticated"
    detail = "You are signed out. Sign in, then send the form again."


class BoundedBody:
    """ASGI middleware that returns 413 for a body whose declared or actual size is above the limit.

    The limit is that of the path in BODY_LIMITS, or BODY_LIMIT, except for the paths that a pattern in `files` matches.
    They require authentication before the body is read. If the request has no Content-Length, the inner application
    gets the counted size.
    """

    def __init__(self, application: Application, *, files: Mapping[str, Files] = MappingProxyType({})) -> None:
        self.application = application
        self.files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # WebSockets and lifespan are not supported: Django would raise an error
        files = self.files_of(scope)
        limit = files.limit if files else limit_of(scope["path"])
        body = Body({**scope, "headers": [*scope["headers"]]}, receive, limit=limit)
        refusal = malformed_header(scope)
        if not (refusal or body.too_large):
            refusal = (files and await authentication_error(scope, files)) or await self.pass_on(body, send)
        if body.too_large and not refusal:
            refusal = (
                files.problem() if files else BodyTooLarge(f"The request body must not exceed {limit:,} bytes here.")
            )
        if refusal:
            await refuse(scope, send, refusal, rest=body)

    async def pass_on(self, body: "Body", send: Send) -> Problem | None:
        """Run the application.

        Return a problem if the disk has no space for the body, which Django writes to a file first.
        """
        try:
            await self.application(body.scope, body.receive, send)
        except OSError as error:
            if not is_full(error):
                raise
            return DiskFull()
        return None

    def files_of(self, scope: Scope) -> Files | None:
        content_type = dict(scope["headers"]).get(b"content-type", b"")
        is_form = content_type.lower().startswith(b"multipart/form-data")
        path = scope["path"]
        return next((each for pattern, each in self.files.items() if is_form and re.fullmatch(pattern, path)), None)


@cache
def body_limits() -> list[tuple[re.Pattern[str], int]]:
    return [(re.compile(pattern), limit) for pattern, limit in settings.BODY_LIMITS.items()]


def limit_of(path: str) -> int:
    """Return the maximum size of a body without files."""
    limit: int = settings.BODY_LIMIT
    return next((limit for pattern, limit in body_limits() if pattern.fullmatch(path)), limit)


async def authentication_error(scope: Scope, files: Files) -> Problem | None:
    """Return the error for a client without a valid token or session, before its body is read."""
    async with ThreadSensitiveContext():
        refusal = await sync_to_async(refusal_by_headers)(scope)
    if refusal is not None and refusal.status == HTTPStatus.UNAUTHORIZED and files.page:
        sign_in = f"{resolve_url(settings.LOGIN_URL)}?{urlencode({'next': files.page})}"
        return SignInFirst(headers={"Location": sign_in})
    return refusal


def malformed_header(scope: Scope) -> Problem | None:
    """Return the error for a Content-Type that Python cannot parse, for which Django's request would raise an error.

    Long headers with parameters are refused as well, because Python may need seconds to parse them.
    """
    values = [b",".join(value for name, value in scope["headers"] if name == parsed) for parsed in WITH_PARAMETERS]
    if any(len(value) > MAX_PARAMETERS for value in values):
        return of_status(400)
    try:
        parse_header_parameters(values[0].decode("latin-1"))
    except (TypeError, ValueError):
        return of_status(400)
    return None


class Body:
    """The body of one request, with a count of its bytes."""

    def __init__(self, scope: Scope, receive: Receive, *, limit: int) -> None:
        self.scope = scope
        self.inner = receive
        self.size = 0
        self.is_complete = False
        self.limit = limit
        declared = dict(scope["headers"]).get(b"content-length")
        self.is_declared = declared is not None
        self.too_large = declared is not None and declared.isdigit() and int(declared) > self.limit

    async def receive(self) -> Message:
        message = await self.inner()
        self.is_complete = not message.get("more_body")
        if message["type"] != "http.request":
            return message
        self.size += len(message.get("body", b""))
        if self.size > self.limit:
            self.too_large = True
            return {"type": "http.disconnect"}  # makes Django drop the request silently
        if self.size and not self.is_declared and not message.get("more_body"):
            # Django creates its request from the scope after the last part of the body arrives.
            self.scope["headers"].append((b"content-length", str(self.size).encode()))
        return message

    async def drain(self) -> None:
        """Discard the rest of the body, within time limits.

        Most clients read the response only after they have sent everything. Closing the connection earlier would reset
        it, and the response would be lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.is_complete:
                    async with asyncio.timeout(IDLE_SECONDS):
                        self.is_complete = not (await self.inner()).get("more_body")


async def refuse(scope: Scope, send: Send, problem: Problem, *, rest: Body) -> None:
    """Respond immediately, and close the connection after the rest of the body."""
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    request_id = valid_id_or_new(given.decode("latin-1"))
    log.info("request_refused", code=problem.status, problem=problem.code, request_id=request_id)
    is_page = problem.status != SignInFirst.status and scope["path"].startswith(settings.PAGE_PREFIXES)
    headers = {
        **problem.all_headers(),
        "Content-Type": "text/html; charset=utf-8" if is_page else CONTENT_TYPE,
        "X-Content-Type-Options": "nosniff",
        "X-Request-ID": request_id,
        "Connection": "close",
    }
    content = page_of(problem, request_id) if is_page else orjson.dumps(problem.body() | {"requestId": request_id})
    headers["Content-Length"] = str(len(content))  # the client can detect the end before the connection closes
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    await rest.drain()
    await send({"type": "http.response.body"})
