"""Logs: one JSON object a line on stderr, with ids to find things by and without what people entrusted to us.

An event is `{"action", "level", "logger", "timestamp", …ids and facts}`. Our own code logs one `action` word an event,
`log.info("chunk_done", rows=12)`; a sentence that a library logs gets the action `library_message`.
The ids `request_id`, `job_id`, `chunk_id` come from structlog's context variables; `trace_id` is there in traces.
`request_finished` has the status as `code`, and of an answer that is a problem its code as `problem`: `rate_limited`
and `quota_exceeded` are both 429.

Never in a line: credentials, links, query strings, filters, bodies, row contents. Object paths only as a hash.
Three nets hold that: libraries whose debug output has bodies in it are kept quiet whatever LOG_LEVEL says, exceptions
are told by class and code instead of by message, and every value passes `scrub` on its way out.
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

OURS = ("config", "exports", "etl", "rules", "django_structlog")

# What these say is about the code. Any other message may quote data: int('…'), KeyError('…'), a constraint's DETAIL.
SPEAKS_OF_CODE = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, ImproperlyConfigured)
MAX_FRAMES = 40
MAX_CHAIN = 5
MAX_NESTING = 4
MAX_MESSAGE = 500

REMOVED = "[removed]"
# Numbers under these names stay: `token=17` is a fencing token, `items=12` a count.
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
    """Send structlog's events through the standard library's handlers. Call once, when the settings are read.

    What Python itself would print, messages and all, becomes an event too.
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
    warnings.showwarning = tell_warning
    threading.excepthook = tell_thread_failure
    if sys.unraisablehook is sys.__unraisablehook__:  # pytest has its own
        sys.unraisablehook = tell_unraisable


def configuration(*, level: str, style: str) -> dict[str, Any]:
    """Return Django's LOGGING for a level (of our own loggers) and a style, `json` or `console`.

    Lines go to stderr: the stdout of `issue_token` holds the token and nothing else.
    """
    ours = {name: {"level": level} for name in OURS}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": LineFormatter,
                "foreign_pre_chain": context(),
                "processors": [
                    tell_exceptions,
                    name_action,
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    scrub_event,
                    renderer(style),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        # Strangers speak from WARNING on: botocore logs bodies at DEBUG, httpx whole URLs at INFO.
        "root": {"handlers": ["stderr"], "level": "ERROR" if level == "ERROR" else "WARNING"},
        "loggers": {
            **ours,
            "django": {"handlers": [], "level": "WARNING", "propagate": True},
            # `request_finished` and `request_failed` tell the same with ids and without paths.
            "django.request": silent(),
            "django.security.csrf": silent(),
            "django.server": silent(),
            "uvicorn": {"handlers": [], "level": "INFO", "propagate": True},
            "uvicorn.error": {"handlers": [], "level": "INFO", "propagate": True},
            "urllib3": silent(),
            # A collector that takes nothing: `traces_not_sent` says so once a minute, without its address and words.
            "opentelemetry": silent(),
            "sentry_sdk": silent(),
            # OPENAI_LOG, a variable of the library's own, would have it tell requests with documents in them.
            "openai": silent(),
            # The URLs of webhooks are their owners' secrets; these log hosts and whole URLs.
            "httpx2": silent(),
            "httpcore2": silent(),
            "uvicorn.access": silent(),  # its lines hold query strings, and with them download links
            "celery": {"handlers": [], "level": "INFO", "propagate": True},
            # It logs results and messages of exceptions; `task_succeeded` and `task_failed` do without.
            "celery.app.trace": silent(),
            # A line for each hint, and two for each drain that found nothing, would hide what chunks and jobs say.
            "django_structlog.celery": {"handlers": [], "level": "WARNING", "propagate": True},
            "celery.beat": {"handlers": [], "level": "WARNING", "propagate": True},
            "celery.worker.strategy": {"handlers": [], "level": "WARNING", "propagate": True},  # "received", each time
        },
    }


def silent() -> dict[str, Any]:
    return {"handlers": [], "level": "CRITICAL", "propagate": False}


def context() -> list[Processor]:
    """Return the processors that say when, where and for what an event was."""
    return [
        structlog.contextvars.merge_contextvars,
        tell_trace,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def no_trace() -> str:
    return ""


current_trace: Callable[[], str] = no_trace  # `config.platform.observability.tracing` has another once it is on


def tell_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Say which trace an event belongs to, where there is one."""
    if trace_id := current_trace():
        event["trace_id"] = trace_id
    return event


def renderer(style: str) -> Processor:
    if style == "console":
        return structlog.dev.ConsoleRenderer(event_key="action")
    # json.dumps writes ASCII only, so that no value can end a line or forge one.
    return structlog.processors.JSONRenderer(serializer=json.dumps, default=str)


class LineFormatter(structlog.stdlib.ProcessorFormatter):
    """The formatter of every line. It swaps exceptions among a library's arguments for their description first."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        if isinstance(record.args, tuple):
            record.args = tuple(described(value) for value in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: described(value) for name, value in record.args.items()}
        return super().format(record)


def name_action(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put our own event word under `action`; a library's sentence goes to `message`.

    Of the sentence the first line stays: what follows it is data, as in Celery's "Received unregistered task".
    """
    text = event.pop("event", "")
    if event["_from_structlog"]:
        event["action"] = text
    elif str(event.get("logger")).startswith("django.security"):
        event["action"] = "request_suspicious"  # of the sentence, which quotes the request, `error` has the class
    else:
        event["action"], event["message"] = "library_message", str(text).partition("\n")[0][:MAX_MESSAGE]
    return event


# ---- Exceptions -------------------------------------------------------------------------------------------------
def tell_exceptions(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Turn exceptions into `error` (class and code) and `exception` (the stack, without messages or variables)."""
    error = current_exception(event.pop("exc_info", None))
    if isinstance(given := event.pop("exception", None), BaseException):
        # django-structlog hands over Celery's failures so, with the raw message beside it as `error`.
        error = given
        event.pop("error", None)
    if error is not None:
        event["error"] = describe(error)
        event["exception"] = stack_of(error)
    return event


def current_exception(exc_info: object) -> BaseException | None:
    """Return the exception that any of logging's forms of exc_info stands for: True, an exception, or a triple."""
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if isinstance(exc_info[1], BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def describe(error: BaseException) -> str:
    """Return what may be told of an exception: its class and a code, never a message that may quote data.

    `psycopg.errors.UniqueViolation (SQLSTATE 23505)`, `ConnectionRefusedError (ECONNREFUSED)`,
    `botocore.errorfactory.NoSuchKey (NoSuchKey in GetObject)`, `exports.delivery.receipts.NotReady (not_ready)`,
    `KeyError`.
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
        return f"{plain(error.response.get('Error', {}).get('Code'))} in {plain(error.operation_name)}"
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0)
    if isinstance(error, SPEAKS_OF_CODE):
        return scrub(str(error)[:500]) if str(error) else None
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and ERROR_CODE.fullmatch(code) else None


def sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of psycopg's error, or of the one that Django's error wraps."""
    if isinstance(error, DatabaseError):
        error = error.__cause__
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def plain(code: object) -> str:
    return code if isinstance(code, str) and ERROR_CODE.fullmatch(code) else "?"


def stack_of(error: BaseException) -> str:
    """Return the stacks of an exception and of what caused it, cause first, as file, line and source line."""
    parts = []
    for link in reversed(list(chain_of(error))):
        parts += traceback.extract_tb(link.__traceback__, limit=-MAX_FRAMES).format()
        parts.append(f"{describe(link)}\n")
        if isinstance(link, BaseExceptionGroup):
            parts += [f"  with {describe(member)}\n" for member in link.exceptions[:MAX_CHAIN]]
    return "".join(parts).rstrip()


def chain_of(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def described(value: object) -> object:
    return describe(value) if isinstance(value, BaseException) else value


# ---- What others would print -------------------------------------------------------------------------------------
def tell_warning(  # noqa: PLR0917  Python calls it so
    message: Warning | str,  # noqa: ARG001  it may quote data
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    log.warning("warning", category=category.__name__, place=f"{filename}:{lineno}")


def tell_thread_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        log.error("thread_failed", exc_info=failure.exc_value)


def tell_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    log.error("unraisable_error", exc_info=unraisable.exc_value)


def say(sentence: str, *_where: object) -> None:
    """Write a library's sentence at once: for signal handlers, which must not wait for a lock that they interrupt."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"logger": "celery", "level": "info", "timestamp": now, "action": "library_message", "message": sentence}
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
    """Return the text without credentials and without anything that follows a question mark."""
    return CREDENTIAL.sub(REMOVED, QUERY_STRING.sub("?", text))


def path_hash(path: str) -> str:
    """Return 16 hex digits that stand for an object's path: the same path can be followed, nobody can read it."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:16]
