"""The audit log: an entry for each request that opens data or changes something.

Each view has an attribute `audited`. The entry is written before the response is sent. The entry of a change is written
in the transaction of the change, if possible. Entries contain routes and IDs, but never data, keys, or paths.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import structlog
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.admin.utils import unquote
from django.db import Error, connection, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, resolve
from django.utils.decorators import sync_and_async_middleware
from knox.models import AuthToken

from config.platform.http import tokens
from config.platform.http.addresses import client_address
from config.platform.http.request_context import request_id
from config.platform.models import AuditEntry
from config.platform.observability import logs, metrics

log = structlog.get_logger(__name__)


SAFE = ("GET", "HEAD", "OPTIONS")
# Nothing was opened or changed, or the client already has the data. The number of rate-limited requests is unbounded.
UNRECORDED = (
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.TOO_MANY_REQUESTS,
)
DENIED = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
PLAIN = ("name",)  # path parameters that are recorded without a hash: names of datasets
HASHED = ("key",)  # path parameters that are always hashed: keys of exports may be personal data
MAX_OBJECTS = 20
RECORDED_BY_SIGNALS = ("sign-out", "login", "logout")


class Audited(NamedTuple):
    """The recorded requests of a view: `reads` are GET requests, `writes` are requests with all unsafe methods."""

    reads: bool
    writes: bool


# The responses are data.
OPENS_DATA = Audited(reads=True, writes=True)
# Status, lists, and settings. The view calls `mark_opened` if a response contains data.
CHANGES = Audited(reads=False, writes=True)
# The view changes nothing with any method, or writes its entries itself.
NOTHING = Audited(reads=False, writes=False)


@dataclass(slots=True)
class Pending:
    """The pending audit entry of the current request or command."""

    fields: Callable[[], dict[str, Any]]
    is_read: bool = False
    opened: bool = False
    is_written: bool = False
    known: set[str] = field(default_factory=set)  # objects whose change is already recorded

    def write(self, *objects: str, **outcome: Any) -> None:
        values = self.fields()
        named = dict.fromkeys((*values.pop("object_ids"), *objects))
        AuditEntry(**values, object_ids=list(named)[:MAX_OBJECTS], **outcome).save(force_insert=True)


current: ContextVar[Pending | None] = ContextVar("audit_entry", default=None)


@contextmanager
def pending(entry: Pending) -> Iterator[Pending]:
    token = current.set(entry)
    try:
        yield entry
    finally:
        current.reset(token)


def mark_opened() -> None:
    """Record the current request, because its response contains data."""
    if entry := current.get():
        entry.opened = True


def record_change(**objects: Any) -> None:
    """Write the entry of the current request now, so that it is committed together with the change.

    `objects`: changed objects that the path does not name. A request that changes several objects in separate
    transactions gets an entry for each. After a rollback, the entry is written before the response.
    """
    entry = current.get()
    if entry is None or entry.is_read or not connection.in_atomic_block:
        return
    changed = set(object_ids(objects)) or {""}
    if changed <= entry.known or (entry.known and not objects):
        return
    entry.known |= changed
    entry.write(*object_ids(objects), outcome=AuditEntry.Outcome.SUCCESS)
    transaction.on_commit(lambda: setattr(entry, "is_written", True))


# ---- Requests -------------------------------------------------------------------------------------------------------
@sync_and_async_middleware
def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Write the entry of a request after the view and before the response.

    Must be listed after the authentication middleware, because the entry names the user.
    """
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            with pending(pending_of(request)) as entry:
                response: HttpResponseBase = await get_response(request)
                if is_due(request, response, entry):
                    await sync_to_async(finish)(request, response, entry)
                return response

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        with pending(pending_of(request)) as entry:
            response: HttpResponseBase = get_response(request)
            if is_due(request, response, entry):
                finish(request, response, entry)
            return response

    return handle


def pending_of(request: HttpRequest) -> Pending:
    return Pending(lambda: fields_of(request), is_read=request.method in SAFE)


def is_due(request: HttpRequest, response: HttpResponseBase, entry: Pending) -> bool:
    """Return whether the request must be recorded and is not yet."""
    status, match = response.status_code, request.resolver_match
    if match is None or entry.is_written or status in UNRECORDED:
        return False
    audited = audited_requests_of(match)
    if not entry.is_read:
        is_due = audited.writes
    elif status >= HTTPStatus.BAD_REQUEST:
        is_due = audited.reads and status in DENIED
    else:
        # The URL in a response to HEAD works like the one in a response to GET.
        is_due = (request.method == "GET" or response.has_header("Location")) and (audited.reads or entry.opened)
    # Refused requests without a user, such as requests with an invalid link, are not recorded: anyone can send them.
    return is_due and (status < HTTPStatus.BAD_REQUEST or bool(user_id_of(request)))


def audited_requests_of(match: ResolverMatch) -> Audited:
    """Return the view's `audited`. In the admin, pages of objects count as data, and lists do not."""
    if match.url_name in RECORDED_BY_SIGNALS:
        return NOTHING
    if match.app_names == ["admin"]:
        return Audited("object_id" in match.kwargs, writes=True)
    view = getattr(match.func, "view_class", None) or getattr(match.func, "cls", None) or match.func
    audited: Audited = getattr(view, "audited", CHANGES)
    return audited


def finish(request: HttpRequest, response: HttpResponseBase, entry: Pending) -> None:
    """Write the entry. If that fails, data is not sent; a completed change is reported in the log instead."""
    status = response.status_code
    try:
        entry.write(*created_by(response, entry), status=status, outcome=outcome_of(request, response))
        if response.streaming and not connection.in_atomic_block:
            connection.close()  # a slow client must not hold it
    except Error as error:
        if entry.is_read or entry.opened:
            response.close()
            raise
        metrics.AUDIT_ENTRIES_LOST.inc()
        # The log removes values with the name `token`. This is the ID of the token, not a credential.
        named = {"token_id" if name == "token" else name: value for name, value in entry.fields().items()}
        described = {name: str(value) for name, value in named.items()}
        log.exception("audit_entry_not_written", error=logs.describe(error), status=status, entry=described)


def outcome_of(request: HttpRequest, response: HttpResponseBase) -> str:
    """Return the outcome.

    A page responds to an invalid form with status 200 and the form, otherwise with a redirect.
    """
    status, match = response.status_code, request.resolver_match
    is_form = request.method not in SAFE and status == HTTPStatus.OK and via(request) != AuditEntry.Via.API
    if is_form and match and not audited_requests_of(match).reads and not response.has_header("HX-Redirect"):
        return AuditEntry.Outcome.REFUSED
    if status < HTTPStatus.BAD_REQUEST:
        return AuditEntry.Outcome.SUCCESS
    return AuditEntry.Outcome.REFUSED if status < HTTPStatus.INTERNAL_SERVER_ERROR else AuditEntry.Outcome.FAILED


def fields_of(request: HttpRequest) -> dict[str, Any]:
    match = request.resolver_match
    token = getattr(request, "auth", None)
    address = client_address(request)
    return {
        "via": via(request),
        "user_id": user_id_of(request),
        "token": tokens.id_of(token) if isinstance(token, AuthToken) else None,
        "method": (request.method or "")[:8],  # the column's length: without an entry, the page would be sent anyway
        "action": f"/{match.route}"[:200] if match else "",
        "object_ids": object_ids(match.kwargs) if match else [],
        "request_id": request_id(request),
        "address": str(address) if address else None,
    }


def via(request: HttpRequest) -> str:
    if request.path_info.startswith("/admin/"):
        return AuditEntry.Via.ADMIN
    return AuditEntry.Via.PAGE if request.path_info.startswith("/app/") else AuditEntry.Via.API


def user_id_of(request: HttpRequest) -> int | None:
    user_id: int | None = getattr(getattr(request, "user", None), "pk", None)
    return user_id


def created_by(response: HttpResponseBase, entry: Pending) -> list[str]:
    """Return the object in the Location header of the response to a change: a redirect, or a created object."""
    location = urlsplit(response.get("Location", "")) if not entry.is_read else None
    if location is None or location.netloc or not location.path.startswith("/"):
        return []
    try:
        return object_ids(resolve(location.path).kwargs)
    except Resolver404:
        return []


# ---- Objects --------------------------------------------------------------------------------------------------------
def object_ids(objects: Mapping[str, Any]) -> list[str]:
    """Return `job_id=…` for each object. Keys of exports and paths of files are hashed."""
    return [f"{name}={format_object(name, value)}" for name, value in objects.items() if name != "rest"]


def format_object(name: str, value: Any) -> str:
    text = str(value)
    if name not in HASHED and (name in PLAIN or is_plain(text)):
        return text[:200]
    return logs.path_hash(unquote(text))


def is_plain(text: str) -> bool:
    """Return whether a text is a number, a date, or a UUID."""
    if text.isdecimal():
        return True
    for read in (UUID, date.fromisoformat):
        try:
            read(text)
        except ValueError:
            continue
        return True
    return False
