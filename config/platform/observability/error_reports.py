"""Error reports to Sentry or a compatible server. Without SENTRY_DSN, they are off and the library is not loaded.

Each exception that is logged at level ERROR is reported once, with the same data as its log line: classes and codes of
exceptions, stacks without variables, and IDs. Expected errors, such as refusals and retried attempts, are at most
warnings in the log and are not reported.

Only the client and transport of the library are used. Its integrations would collect requests, bodies, messages, and
variables, and private data would have to be removed from them. See docs/adr/0021.
"""

from __future__ import annotations

import atexit
import logging
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

import structlog
from django.conf import settings

from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT

if TYPE_CHECKING:
    from sentry_sdk import Client

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 2  # to send the remaining reports when a process exits
IDS = (
    *("action", "request_id", "job_id", "chunk_id", "etl_task_id", "stage", "task", "task_id", "trace_id", "code"),
    *("webhook_id", "delivery_id", "schedule_id", "evaluation_id", "sample_id"),
)
MARK = "_was_reported"

client: Client | None = None


def start() -> None:
    """Start reporting if SENTRY_DSN is set. A forked process sends its reports in a separate thread."""
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
            shutdown_timeout=FLUSH_SECONDS,
        )
        logging.getLogger().addHandler(Reporter(client))
        atexit.register(flush)


def flush() -> None:
    """Send the remaining reports, in at most two seconds."""
    if client:
        client.flush(timeout=FLUSH_SECONDS)


class Reporter(logging.Handler):
    """Log handler that reports the exception of a log line.

    An exception that is logged repeatedly is reported once.
    """

    def __init__(self, client: Client) -> None:
        super().__init__(level=logging.ERROR)
        self.client = client

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] = record.msg if isinstance(record.msg, dict) else {"event": "library_message"}
        given = event.get("exception")  # set by django-structlog for a failed task
        error = (
            given
            if isinstance(given, BaseException)
            else logs.current_exception(event.get("exc_info") or record.exc_info)
        )
        if error is None or getattr(error, MARK, False):
            return
        try:
            setattr(error, MARK, True)
            self.client.capture_event(report(error, event | {"action": event.get("event")}, logger=record.name))
        except Exception as failure:  # noqa: BLE001  a failed report must not break the code that logs
            CAUGHT.labels("error_report").inc()
            log.warning("error_report_failed", error=logs.describe(failure))  # a line at ERROR would be reported again


def report(error: BaseException, event: dict[str, Any], *, logger: str) -> Any:
    """Return an event in Sentry's format."""
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
