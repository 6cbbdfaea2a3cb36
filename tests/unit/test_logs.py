"""The content of log lines, and private data that they must not contain."""

import json
import logging
import logging.config
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import StringIO
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import structlog
from botocore.exceptions import ClientError
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from structlog.contextvars import bound_contextvars, get_contextvars

from config.celery import app
from config.platform import wakeups
from config.platform.observability import logs
from tests.unit.failing_views import SECRET

Lines = Callable[[], list[dict[str, Any]]]
log = structlog.get_logger("exports.tests")


def test_a_wake_up_message_has_no_log_context_of_its_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may process the work of another user."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(app, "send_task", lambda *_args, **_options: sent.append(get_contextvars()))
    with bound_contextvars(request_id="a", etl_task_id=17, stage="ocr", evaluation_id=3):
        wakeups.send("exports.deliver", {})
        assert get_contextvars()["etl_task_id"] == 17
    assert sent == [{}]


def configure(*, level: str, style: str) -> StringIO:
    """Configure logging, and return the stream to which it writes."""
    logging.config.dictConfig(logs.configuration(level=level, style=style))
    stream = StringIO()
    handler().setStream(stream)
    return stream


def handler() -> logging.StreamHandler[Any]:
    (found,) = (one for one in logging.root.handlers if isinstance(one.formatter, logs.LineFormatter))
    assert isinstance(found, logging.StreamHandler)
    return found


@pytest.fixture
def _restore_logging() -> Iterator[None]:
    before = handler().stream
    yield
    structlog.contextvars.clear_contextvars()
    logging.config.dictConfig(settings.LOGGING)
    handler().setStream(before)


@pytest.fixture
def lines(_restore_logging: None) -> Lines:
    """A function that returns the lines that were logged since its last call."""
    stream = configure(level="INFO", style="json")

    def read() -> list[dict[str, Any]]:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in text.splitlines()]

    return read


def test_a_line_has_an_action_with_ids_and_fields(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r1", job_id="j1", chunk_id=7):
        log.info("chunk_done", rows=12, source="live")

    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "action": "chunk_done",
        "level": "info",
        "logger": "exports.tests",
        "request_id": "r1",
        "job_id": "j1",
        "chunk_id": 7,
        "rows": 12,
        "source": "live",
    }


def test_messages_of_libraries_have_the_same_format(lines: Lines) -> None:
    with structlog.contextvars.bound_contextvars(job_id="j1"):
        logging.getLogger("some.library").warning("Retrying %s in %d s", "GET /a?token=abc", 3)

    (line,) = lines()
    assert (line["action"], line["message"]) == ("library_message", "Retrying GET /a? in 3 s")
    assert (line["logger"], line["job_id"]) == ("some.library", "j1")


def test_messages_of_libraries_are_cut_to_one_line(lines: Lines) -> None:
    logging.getLogger("celery.worker.consumer").error(
        "Received unregistered task.\n\nThe body was:\n%r", {"row": SECRET}
    )

    assert [line["message"] for line in lines()] == ["Received unregistered task."]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kombu.transport.redis", "Could not restore message: %r"),
        ("celery.worker.consumer.consumer", "Can't decode message body: %r [type:%r encoding:%r headers:%s]"),
    ],
)
def test_messages_of_the_broker_are_not_quoted(lines: Lines, name: str, text: str) -> None:
    """A28: if Kombu cannot restore a message, it logs its body."""
    values = [{"body": SECRET}, UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, "invalid"), SECRET, SECRET]
    logging.getLogger(name).critical(text, *values[: text.count("%")])
    (line,) = lines()
    assert line["message"] == text
    assert SECRET not in str(line)


def test_suspicious_requests_are_not_quoted(lines: Lines, client: Client) -> None:
    client.get("/livez", headers={"Host": "hunter2.example.com"})

    (line,) = (line for line in lines() if line["action"] == "request_suspicious")
    assert line["error"] == "django.core.exceptions.DisallowedHost"
    assert "hunter2" not in json.dumps(line)


@pytest.mark.parametrize("name", ["botocore.endpoint", "urllib3.connectionpool", "httpx", "django.db.backends"])
@pytest.mark.usefixtures("_restore_logging")
def test_debug_and_info_messages_of_libraries_are_not_logged(name: str) -> None:
    stream = configure(level="DEBUG", style="json")

    logging.getLogger(name).debug("body: %s", SECRET)
    logging.getLogger(name).info("url: %s", SECRET)
    log.debug("kept")

    assert [json.loads(line)["action"] for line in stream.getvalue().splitlines()] == ["kept"]


@pytest.mark.parametrize("name", ["uvicorn.access", "django.server", "django.request", "celery.app.trace"])
def test_loggers_with_query_strings_and_results_are_silenced(lines: Lines, name: str) -> None:
    logging.getLogger(name).error("GET /exports/1/download?token=%s", SECRET)

    assert lines() == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"request": "GET /exports/1/download?token=abc HTTP/1.1"}, "GET /exports/1/download? HTTP/1.1"),
        ({"note": "Authorization: Bearer abcdefgh"}, "Authorization: [removed]"),
        ({"note": "slc_0123456789abcdef"}, "[removed]"),
        ({"note": "redis://:password@host:1/0"}, "redis://[removed]host:1/0"),
        ({"token": "abc"}, "[removed]"),
        ({"token": 17}, 17),
        ({"Set-Cookie": "sessionid=1"}, "[removed]"),
        ({"filters": {"keys": ["JFK"]}}, "[removed]"),
        ({"items": 3}, 3),
        ({"body": b"abc"}, "[removed]"),
        ({"more": {"inner": {"key": "JFK", "n": 1}}}, {"inner": {"key": "[removed]", "n": 1}}),
        ({"object_path": "flights/2013/02/15/JFK.csv"}, logs.path_hash("flights/2013/02/15/JFK.csv")),
        ({"amount": Decimal("1.5")}, "1.5"),
        ({"seen": [ValueError(SECRET)]}, ["ValueError"]),
    ],
)
def test_it_redacts_private_values(lines: Lines, facts: dict[str, Any], expected: object) -> None:
    log.info("something", **facts)

    (line,) = lines()
    assert line[next(iter(facts))] == expected


def test_exceptions_are_logged_without_messages_and_variables(lines: Lines) -> None:
    def fail(row: str) -> None:
        try:
            int(row)
        except ValueError as error:
            raise KeyError(row) from error

    try:
        fail(SECRET)
    except KeyError:
        log.exception("chunk_failed")

    (line,) = lines()
    assert line["error"] == "KeyError"
    assert "in fail\n    int(row)" in line["exception"]
    assert line["exception"].index("ValueError") < line["exception"].index("KeyError")
    assert "hunter2" not in json.dumps(line)


def test_exceptions_logged_by_libraries_are_redacted_too(lines: Lines) -> None:
    error = ValueError(SECRET)

    logging.getLogger("some.library").error("It failed: %s %r", error, error, exc_info=error)

    (line,) = lines()
    assert line["message"] == "It failed: ValueError 'ValueError'"
    assert "hunter2" not in json.dumps(line)


def test_messages_of_celery_failures_are_dropped(lines: Lines) -> None:
    error = ValueError(SECRET)

    log.error("task_failed", error=str(error), exception=error)

    (line,) = lines()
    assert line["error"] == "ValueError"
    assert "hunter2" not in json.dumps(line)


@pytest.mark.django_db
def test_database_errors_are_logged_as_their_sqlstate(lines: Lines) -> None:
    User.objects.create_user(SECRET)
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        User.objects.create_user(SECRET)
    log.error("failed", exc_info=caught.value)

    (line,) = lines()
    assert line["error"] == "django.db.utils.IntegrityError (SQLSTATE 23505)"
    assert "psycopg.errors.UniqueViolation (SQLSTATE 23505)" in line["exception"]
    assert "hunter2" not in json.dumps(line)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("JFK"), "KeyError"),
        (ConnectionRefusedError(111, "host 10.0.0.1"), "ConnectionRefusedError (ECONNREFUSED)"),
        (FileNotFoundError(2, "No such file", "/flights/JFK.csv"), "FileNotFoundError (ENOENT)"),
        (TypeError("'NoneType' object is not subscriptable"), "TypeError ('NoneType' object is not subscriptable)"),
        (psycopg.OperationalError("password authentication failed"), "psycopg.OperationalError"),
        (psycopg.errors.QueryCanceled(), "psycopg.errors.QueryCanceled (SQLSTATE 57014)"),
        (
            ClientError({"Error": {"Code": "NoSuchKey", "Message": "flights/JFK.csv"}}, "GetObject"),
            "botocore.exceptions.ClientError (NoSuchKey in GetObject)",
        ),
    ],
)
def test_it_describes_exceptions_by_class_and_code(error: Exception, expected: str) -> None:
    assert logs.describe(error) == expected


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.recursive(st.text() | st.binary() | st.integers() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip  # noqa: E501
@pytest.mark.slow
def test_any_value_is_written_as_one_ascii_line(value: object, lines: Lines) -> None:
    log.info("something", value=value)

    assert len(lines()) == 1


@pytest.mark.usefixtures("_restore_logging")
def test_a_human_readable_format_is_available() -> None:
    stream = configure(level="INFO", style="console")

    log.info("chunk_done", rows=12, token="abc")

    assert "chunk_done" in stream.getvalue()
    assert "abc" not in stream.getvalue()


def test_uncaught_exceptions_are_logged_without_messages(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError(SECRET)

    def exit_quietly() -> None:
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", logs.log_thread_failure)
    for target in (fail, exit_quietly):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    logs.log_warning(UserWarning(SECRET), UserWarning, "models.py", 12)

    shown = lines()
    assert [line["action"] for line in shown] == ["thread_failed", "warning"]
    assert shown[0]["error"] == "ValueError"
    assert (shown[1]["category"], shown[1]["place"]) == ("UserWarning", "models.py:12")
    assert "hunter2" not in json.dumps(shown)


FAILING = """
import sys, threading, warnings
import config.settings
from django.conf import settings
import django
django.setup()

class Broken:
    def __del__(self):
        int("hunter2")

def fail():
    int("hunter2")

warnings.warn("hunter2")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
Broken()
"""


@pytest.mark.slow
def test_every_process_logs_warnings_and_uncaught_exceptions() -> None:
    """A28."""
    done = subprocess.run([sys.executable, "-c", FAILING], check=True, capture_output=True, text=True)

    assert [json.loads(line)["action"] for line in done.stderr.splitlines()] == [
        "warning", "thread_failed", "unraisable_error"
    ]  # fmt: skip
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.urls("tests.unit.failing_views")
def test_requests_are_logged_by_route_and_id(lines: Lines) -> None:
    client = Client(raise_request_exception=False, headers={"X-Request-ID": "trace-1"})

    client.get("/not-ready?token=hunter2")
    client.get("/exports/hunter2")
    client.get("/bug?token=hunter2")

    shown = lines()
    assert [(line["action"], line["request"], line["code"]) for line in shown] == [
        ("request_finished", "GET /not-ready", 409),
        ("request_finished", "GET (no route)", 404),
        ("request_failed", "GET /bug", 500),
    ]
    assert [line.get("problem") for line in shown] == ["not_ready", "not_found", None]
    assert {line["request_id"] for line in shown} == {"trace-1"}
    assert "hunter2" not in json.dumps(shown)


@pytest.mark.urls("tests.unit.failing_views")
def test_problems_are_not_carried_over_to_the_next_request(lines: Lines) -> None:
    client = Client()
    client.get("/not-ready")
    client.get("/plain/form")
    assert [(line["code"], line.get("problem")) for line in lines()] == [(409, "not_ready"), (200, None)]


def test_equal_paths_have_equal_hashes() -> None:
    path = str(uuid4())

    assert logs.path_hash(path) == logs.path_hash(path) != logs.path_hash(path + "x")


def test_all_processes_have_the_same_hashes() -> None:
    script = "from config.platform.observability import logs; print(logs.path_hash('things/a.csv'))"
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, text=True).strip() == logs.path_hash("things/a.csv")
