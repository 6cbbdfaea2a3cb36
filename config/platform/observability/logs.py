"""Logs: one JSON object per line on stderr, with IDs for correlation and without private data.

An event is `{"action", "level", "logger", "timestamp", …ids and facts}`. Sluice's code logs one `action` word per
event, as in `log.info("chunk_done", rows=12)`; messages of libraries get the action `library_message`. The IDs
`request_id`, `job_id`, `chunk_id` come from structlog's context variables. With tracing, there is a `trace_id`.
`request_finished` has the status as `code`, and the code of a problem response as `problem`: `rate_limited` and
`quota_exceeded` are both 429.

A line never contains credentials, links, query strings, filters, bodies, or rows. Object paths are hashed. Three layers
ensure this: libraries whose debug output contains bodies are silenced at every LOG_LEVEL, exceptions are logged by
class and code instead of by message, and every value passes through `scrub`.
"""

import errno
import hashlib
import json
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import psycopg
import structlog
from botocore.exceptions import ClientError
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from structlog.typing import EventDict, Processor, WrappedLogger

log = structlog.get_logger(__name__)

OWN_LOGGERS = ("config", "exports", "etl", "rules", "django_structlog")
LIBRARIES = {
    "django": "WARNING",
    "uvicorn": "INFO",
    "uvicorn.error": "INFO",
    "celery": "INFO",
    "celery.beat": "WARNING",
    "celery.worker.strategy": "WARNING",  # logs "received" for each task
    # Logs a line for each wake-up message, and two for each Celery task that finds no work.
    "django_structlog.celery": "WARNING",
}
SILENCED = (
    # `request_finished` and `request_failed` have the same facts, with IDs and without paths.
    *("django.request", "django.security.csrf", "django.server"),
    "uvicorn.access",  # its lines contain query strings, which include download links
    "celery.app.trace",  # it logs results and exception messages; `task_succeeded` and `task_failed` do not
    # These log hosts and whole URLs, and webhook URLs are secret.
    *("urllib3", "httpx2", "httpcore2"),
    # `traces_not_sent` reports an unavailable collector once a minute, without its address and messages.
    *("opentelemetry", "sentry_sdk"),
    "openai",  # with OPENAI_LOG it would log requests, which contain documents
)

# The messages of these exceptions describe code. Other messages may quote data: int('…'), KeyError('…'), a constraint's
# DETAIL.
SAFE_MESSAGES = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, ImproperlyConfigured)
MAX_FRAMES = 40
MAX_CHAIN = 8
MAX_NESTING = 4
MAX_MESSAGE = 500

REMOVED = "[removed]"
# Numbers with these names are kept: `token=17` is a fencing token, `items=12` a count.
PRIVATE_NAMES = frozenset(
    {"authorization", "cookie", "cookies", "credentials", "headers", "password", "secret", "set_cookie", "token"}
    | {"link", "params", "presigned_url", "query", "query_string", "signed_url", "upload_url", "url", "user_agent"}
    | {"effective_date", "filters", "items", "key", "keys"}
    | {"args", "body", "content", "data", "kwargs", "payload", "record", "result", "row"}
)
PATH_NAMES = frozenset({"path", "object_path", "object_key", "file_key", "base_path"})
QUERY_STRING = re.compile(r"\?\S+")
CREDENTIAL = re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{6,}|\bslc_\w+|\bwhsec_[\w+/=-]+|(?<=://)[^/\s@]+@")
ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")


def configure() -> None:
    """Send structlog's events to the standard library's handlers. Call it once, from the settings.

    Python's warnings and unhandled errors become events without messages.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *context(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    warnings.showwarning = log_warning
    threading.excepthook = log_thread_failure
    if sys.unraisablehook is sys.__unraisablehook__:  # pytest replaces it
        sys.unraisablehook = log_unraisable


def configuration(*, level: str, style: str) -> dict[str, Any]:
    """Return Django's LOGGING. `level` is for Sluice's loggers; `style` is `json` or `console`.

    Lines go to stderr: the stdout of `issue_token` holds the token and nothing else.
    """
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": LineFormatter,
                "foreign_pre_chain": context(),
                "processors": [
                    describe_exception,
                    name_action,
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    scrub_event,
                    renderer(style),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        # Libraries log at WARNING and above: botocore logs bodies at DEBUG, httpx2 logs URLs at INFO.
        "root": {"handlers": ["stderr"], "level": "ERROR" if level == "ERROR" else "WARNING"},
        "loggers": {
            **{name: {"level": level} for name in OWN_LOGGERS},
            **{name: {"handlers": [], "level": minimum, "propagate": True} for name, minimum in LIBRARIES.items()},
            **{name: {"handlers": [], "level": "CRITICAL", "propagate": False} for name in SILENCED},
        },
    }


def context() -> list[Processor]:
    """Return the processors that add the time, the logger, the level, and ids."""
    return [
        structlog.contextvars.merge_contextvars,
        add_trace_id,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


current_trace: Callable[[], str] = str  # config.platform.observability.tracing replaces it


def add_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if trace_id := current_trace():
        event["trace_id"] = trace_id
    return event


def renderer(style: str) -> Processor:
    if style == "console":
        return structlog.dev.ConsoleRenderer(event_key="action")
    # json.dumps writes ASCII only, so no value can contain a line break and forge a line.
    return structlog.processors.JSONRenderer(serializer=json.dumps, default=str)


def quotes_message(record: logging.LogRecord) -> bool:
    """Return whether Kombu or Celery may quote a broker's message, as in "Could not restore message"."""
    is_of_broker = record.name.partition(".")[0] == "kombu" or record.name.startswith("celery.worker.consumer")
    return is_of_broker and "message" in str(record.msg).lower()


class LineFormatter(structlog.stdlib.ProcessorFormatter):
    """The formatter of all lines. It removes the messages of exceptions from the arguments of library messages."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        if quotes_message(record):
            record.args = None
        if isinstance(record.args, tuple):
            record.args = tuple(without_message(value) for value in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: without_message(value) for name, value in record.args.items()}
        return super().format(record)


def name_action(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Store the event word of Sluice's code as `action`, and the message of a library as `message`.

    Only the first line of a message is kept: data follows it, as in Celery's "Received unregistered task".
    """
    text = event.pop("event", "")
    if event["_from_structlog"]:
        event["action"] = text
    elif str(event.get("logger")).startswith("django.security"):
        event["action"] = "request_suspicious"  # the message quotes the request; `error` has its class
    else:
        event["action"], event["message"] = "library_message", str(text).partition("\n")[0][:MAX_MESSAGE]
    return event


# ---- Exceptions -------------------------------------------------------------------------------------------------
def describe_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Turn exceptions into `error` (class and code) and `exception` (the stack, without messages or variables)."""
    error = current_exception(event.pop("exc_info", None))
    if isinstance(given := event.pop("exception", None), BaseException):
        # django-structlog passes Celery's failures here, with the raw message as `error`.
        error = given
        event.pop("error", None)
    if error is not None:
        event["error"] = describe(error)
        event["exception"] = stack_of(error)
    return event


def current_exception(exc_info: object) -> BaseException | None:
    """Return the exception of an exc_info, which may be True, an exception, or a tuple."""
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if isinstance(exc_info[1], BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def describe(error: BaseException) -> str:
    """Return the class and code of an exception, without a message that may quote data.

    `psycopg.errors.UniqueViolation (SQLSTATE 23505)`, `ConnectionRefusedError (ECONNREFUSED)`,
    `botocore.errorfactory.NoSuchKey (NoSuchKey in GetObject)`,
    `exports.delivery.receipts.ReceiptNotReady (not_ready)`, `KeyError`.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    reason = reason_of(error)
    return f"{name} ({reason})" if reason else name


def reason_of(error: BaseException) -> str | None:
    if isinstance(error, psycopg.Error | DatabaseError):
        state = sqlstate(error)
        return f"SQLSTATE {state}" if state else None
    if isinstance(error, ClientError):
        return f"{safe_code(error.response.get('Error', {}).get('Code'))} in {safe_code(error.operation_name)}"
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0)
    if isinstance(error, SAFE_MESSAGES):
        return scrub(str(error)[:MAX_MESSAGE]) if str(error) else None
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and ERROR_CODE.fullmatch(code) else None


def sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a psycopg error, or of the psycopg error that a Django error wraps."""
    if isinstance(error, DatabaseError):
        error = error.__cause__
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def safe_code(code: object) -> str:
    return code if isinstance(code, str) and ERROR_CODE.fullmatch(code) else "?"


def stack_of(error: BaseException) -> str:
    """Return the stacks of an exception and its causes, cause first, as file, line, and source line."""
    parts = []
    for link in reversed(list(chain_of(error))):
        parts += traceback.extract_tb(link.__traceback__, limit=-MAX_FRAMES).format()
        parts.append(f"{describe(link)}\n")
        if isinstance(link, BaseExceptionGroup):
            parts += [f"  with {describe(member)}\n" for member in link.exceptions[:MAX_CHAIN]]
    return "".join(parts).rstrip()


def chain_of(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yield an exception and its causes. `hidden`: include causes that a library hid with "from None"."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ and not hidden else link.__context__)


def without_message(value: object) -> object:
    return describe(value) if isinstance(value, BaseException) else value


# ---- Output of Python and Celery -----------------------------------------------------------------------------------
def log_warning(  # noqa: PLR0917  the signature of warnings.showwarning
    message: Warning | str,  # noqa: ARG001  it may quote data
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    log.warning("warning", category=category.__name__, place=f"{filename}:{lineno}")


def log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        log.error("thread_failed", exc_info=failure.exc_value)


def log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    log.error("unraisable_error", exc_info=unraisable.exc_value)


def write_unlocked(message: str, *_stream: object) -> None:
    """Write a library's message without locks: a signal handler may have interrupted the holder of the logging lock."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"logger": "celery", "level": "info", "timestamp": now, "action": "library_message", "message": message}
    with suppress(OSError):
        os.write(2, f"{json.dumps(line)}\n".encode())


# ---- Values -----------------------------------------------------------------------------------------------------
def scrub_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: scrub_named(name, value, nesting=0) for name, value in event.items()}


def scrub_named(name: object, value: object, *, nesting: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    word = str(name).lower().replace("-", "_")
    if word in PRIVATE_NAMES:
        return REMOVED
    if word in PATH_NAMES:
        return path_hash(str(value))
    return scrub_value(value, nesting=nesting)


def scrub_value(value: object, *, nesting: int) -> object:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, bytes | bytearray | memoryview) or nesting >= MAX_NESTING:
        return REMOVED
    if isinstance(value, Mapping):
        return {str(name): scrub_named(name, member, nesting=nesting + 1) for name, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [scrub_value(member, nesting=nesting + 1) for member in value]
    return value if value is None or isinstance(value, bool | int | float) else scrub(str(value))


def scrub(text: str) -> str:
    """Return the text without credentials and query strings."""
    return CREDENTIAL.sub(REMOVED, QUERY_STRING.sub("?", text))


def path_hash(path: str) -> str:
    """Return a hash of an object's path, 16 hex digits, that correlates lines without revealing the path."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:16]
