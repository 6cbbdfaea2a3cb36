"""Reports of errors to a Sentry, or what speaks its protocol. Off, and its library not loaded, without SENTRY_DSN.

What is reported is what the log tells at level ERROR with an exception: each once, and with no more than its line has,
the classes and codes of exceptions, their stacks without variables, and ids. What is expected, refusals and attempts
that are made again, is told there as a warning at most.

Of the library only its client and transport are used. Its integrations would read requests, bodies, messages and
variables first, and leave it to us to take out again what must not be there. docs/adr/0021 tells more.
"""

from __future__ import annotations

import atexit
import logging
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

import structlog
from django.conf import settings

from config.platform.observability import logs

if TYPE_CHECKING:
    from sentry_sdk import Client

END_SECONDS = 2  # for what is not sent yet at the end of a process
IDS = ("action", "request_id", "job_id", "chunk_id", "etl_task_id", "stage", "task", "task_id", "trace_id", "code")
MARK = "_was_reported"

client: Client | None = None


def begin() -> None:
    """Report from now on, if SENTRY_DSN is set. A fork goes on with a thread of its own."""
    global client  # noqa: PLW0603
    if settings.SLUICE.sentry_dsn and client is None:
        import sentry_sdk

        client = sentry_sdk.Client(
            dsn=settings.SLUICE.sentry_dsn.get_secret_value(),
            default_integrations=False,
            auto_enabling_integrations=False,
            send_default_pii=False,
            include_local_variables=False,
            max_request_body_size="never",
            max_breadcrumbs=0,
            send_client_reports=False,
            auto_session_tracking=False,
            shutdown_timeout=END_SECONDS,
        )
        logging.getLogger().addHandler(Reporter(client))
        atexit.register(end)


def end() -> None:
    """Send what is left, in two seconds at most."""
    if client:
        client.flush(timeout=END_SECONDS)


class Reporter(logging.Handler):
    """Reports the exception of a log line. An exception that is told twice, where it is caught and where it is raised
    again, is reported once."""

    def __init__(self, client: Client) -> None:
        super().__init__(level=logging.ERROR)
        self.client = client

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] = record.msg if isinstance(record.msg, dict) else {"event": "library_message"}
        given = event.get("exception")  # django-structlog's of a task
        error = (
            given
            if isinstance(given, BaseException)
            else logs.current_exception(event.get("exc_info") or record.exc_info)
        )
        if error is None or getattr(error, MARK, False):
            return
        with suppress(Exception):  # what cannot be reported must break nothing; it is in the log
            setattr(error, MARK, True)
            self.client.capture_event(report(error, event | {"action": event.get("event")}, logger=record.name))


def report(error: BaseException, event: dict[str, Any], *, logger: str) -> Any:
    """Return the event as Sentry takes it."""
    known = structlog.contextvars.get_contextvars() | event
    tags = {name: str(logs.scrub_value(known[name], nesting=0)) for name in IDS if known.get(name)}
    return {
        "level": "error",
        "logger": logger,
        "timestamp": datetime.now(UTC).isoformat(),
        "transaction": tags.get("task", tags.get("action", "")),
        "tags": tags,
        "exception": {"values": [value_of(link) for link in reversed(list(logs.chain_of(error)))]},
    }


def value_of(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "value": logs.reason_of(error) or "",  # never its message, which may quote data
        "stacktrace": {"frames": frames(error.__traceback__)},
    }


def frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    return [
        {
            "filename": frame.filename.rpartition("site-packages/")[2],
            "function": frame.name,
            "lineno": frame.lineno,
            "context_line": frame.line,
            "in_app": "site-packages" not in frame.filename,
        }
        for frame in traceback.extract_tb(trace, limit=-logs.MAX_FRAMES)
    ]
