"""Health checks: liveness at `GET /livez`, and readiness at `GET /readyz` with the result of each dependency.

Readiness checks open separate connections. The connection pool may be busy while the service is ready, and it waits
longer for an unavailable server than a probe does. Each check takes at most about two seconds. The checks run at most
once a second for any number of clients, because these endpoints need no authentication.
"""

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import amqp
import kombu
import psycopg
import redis
import structlog
from django.conf import settings
from django.db import connection as django_connection
from django.db.migrations.loader import MigrationLoader
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    inline_serializer,
)
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.platform import broker, storage
from config.platform.http.audit import NOTHING
from config.platform.http.negotiation import IgnoreAccept
from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 2
CHECK_SECONDS = 2.5  # maximum duration of all checks
FRESH_SECONDS = 1.0
OK = "ok"

LATE = f"did not respond within {CONNECT_SECONDS} seconds"
SILENT = "does not respond"
UNKNOWN = "is unreachable or rejects the connection"
UNMIGRATED = "lacks a migration of this release: run manage.py migrate"
UNTRUSTED = "has an untrusted certificate or does not support TLS"
REFUSED = "rejects the user name or password"


class NotMigrated(Exception):
    pass


KINDS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((NotMigrated,), UNMIGRATED),
    ((psycopg.errors.ConnectionTimeout, redis.TimeoutError, TimeoutError), LATE),
    ((redis.AuthenticationError, amqp.exceptions.AccessRefused), REFUSED),
    ((amqp.exceptions.NotAllowed,), "does not have this virtual host, or denies access to it"),
    ((redis.ConnectionError, ConnectionError), SILENT),
)
# psycopg has no SQLSTATE for a failed login, and botocore no error code for a failed HEAD. These are fixed messages of
# libpq, Postgres and config.platform.storage. A host name with several addresses may yield several messages; the first
# pattern that matches is used. For a Postgres with messages in another language, the general text is used.
PHRASES = (
    (r'password authentication failed|role ".*" does not exist', REFUSED),
    (r"certificate verify failed|server does not support SSL", UNTRUSTED),
    (r"no pg_hba\.conf entry", "has no matching pg_hba.conf entry"),
    (r'database ".*" does not exist', "does not have this database"),
    (r"unsupported startup parameter", "is a connection pooler; a direct connection to Postgres is required"),
    (r"returned 403", "denies these keys access to the bucket"),
    (r"returned 404", "does not have this bucket"),
    (r"timeout expired|TimeoutError", LATE),
    (r"Connection refused|EndpointConnectionError", SILENT),
)

Check = Callable[[], None]


class Readiness:
    """The latest results, and the checks that are still running."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self.checks = checks
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(max_workers=len(checks), thread_name_prefix="readyz")
        self.running: dict[str, Future[str]] = {}
        self.results: dict[str, str] = {}
        self.checked_at = float("-inf")

    def read(self) -> dict[str, str]:
        """Return `{name: "ok" or the reason}`, at most FRESH_SECONDS old. Concurrent callers share one run."""
        with self.lock:
            if time.monotonic() - self.checked_at > FRESH_SECONDS:
                self.results = self.run_checks()
                self.checked_at = time.monotonic()
            return self.results

    def run_checks(self) -> dict[str, str]:
        for name, check in self.checks.items():
            # A check that hangs, for example in DNS, occupies its thread. A second one would hang as well.
            if name not in self.running or self.running[name].done():
                self.running[name] = self.pool.submit(outcome, name, check)
        done, _ = wait(self.running.values(), timeout=CHECK_SECONDS)
        results = {name: future.result() if future in done else LATE for name, future in self.running.items()}
        self.running = {name: future for name, future in self.running.items() if future not in done}
        return results


def outcome(name: str, check: Check) -> str:
    """Run a check, and return "ok" or a reason.

    Never return a driver's message: it contains hosts, users, or buckets.
    """
    try:
        check()
    except Exception as error:  # noqa: BLE001  any error means that this part is not ready
        CAUGHT.labels("readiness").inc()
        log.warning("readiness_failed", part=name, error=logs.describe(error))
        return reason(error)
    return OK


def reason(error: Exception) -> str:
    if isinstance(error, kombu.exceptions.OperationalError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if logs.sqlstate(error):
        return f"refused with SQLSTATE {logs.sqlstate(error)}"
    if any(isinstance(cause, ssl.SSLError) for cause in logs.chain_of(error, hidden=True)):
        return UNTRUSTED
    for kinds, text in KINDS:
        if isinstance(error, kinds):
            return text
    if isinstance(error, psycopg.OperationalError | storage.StorageError):
        return next((text for pattern, text in PHRASES if re.search(pattern, str(error))), UNKNOWN)
    return UNKNOWN


def check_database() -> None:
    """Connect, and require all migrations of this release. Migrations of newer releases are accepted."""
    url, name = settings.SLUICE.database_url.get_secret_value(), django_connection.settings_dict["NAME"]
    with postgres_connection(url, dbname=name) as connection:
        if not migrations() <= applied(connection):
            raise NotMigrated


@cache
def migrations() -> frozenset[tuple[str, str]]:
    """Return the app and name of each migration of this release."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).graph.nodes)


def applied(connection: psycopg.Connection) -> set[tuple[str, str]]:
    try:
        return {(app, name) for app, name in connection.execute("SELECT app, name FROM django_migrations")}
    except psycopg.errors.UndefinedTable:
        return set()


def check_source() -> None:
    """Connect with a startup option, as every export does. Poolers reject or ignore it."""
    with postgres_connection(settings.SLUICE.source_url, options="-c datestyle=ISO,YMD") as connection:
        if connection.info.parameter_status("DateStyle") != "ISO, YMD":
            raise psycopg.OperationalError("unsupported startup parameter: options")


@contextmanager
def postgres_connection(url: str, **options: Any) -> Iterator[psycopg.Connection]:
    """Connect without a pool, and run a minimal query. Raises psycopg.Error."""
    # tcp_user_timeout aborts a query if the host disappears.
    with psycopg.connect(
        url, connect_timeout=CONNECT_SECONDS, tcp_user_timeout=CONNECT_SECONDS * 1000, autocommit=True, **options
    ) as connection:
        connection.execute("SELECT 1")
        yield connection


def check_broker() -> None:
    url: str = settings.SLUICE.broker_url
    with redis_client(url) if is_redis(url) else broker_connection(url):
        pass


def is_redis(url: str) -> bool:
    """Return whether the URL is a single Redis server; Celery accepts several URLs, separated by semicolons."""
    return urlsplit(url).scheme in {"redis", "rediss"} and ";" not in url


@contextmanager
def redis_client(url: str) -> Iterator[redis.Redis]:
    """Connect without retries. Raises redis.RedisError."""
    with redis.Redis.from_url(
        url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS, retry=Retry(NoBackoff(), 0)
    ) as client:
        client.ping()
        yield client


@contextmanager
def broker_connection(url: str) -> Iterator[kombu.Connection]:
    """Connect to a broker of any kind. Raises kombu.exceptions.OperationalError."""
    with kombu.Connection(url, ssl=broker.tls(url) or False, connect_timeout=CONNECT_SECONDS) as connection:
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        yield connection


def check_run_state() -> None:
    with redis_client(settings.SLUICE.run_state_url):
        pass


ALWAYS: Mapping[str, Check] = {
    "database": check_database,
    "source": check_source,
    "broker": check_broker,
    "storage": storage.ping,
}


def checks() -> dict[str, Check]:
    """Return the checks by name. The run-state has one only if it is not in the broker's database."""
    is_separate = database_of(settings.SLUICE.run_state_url) != database_of(settings.SLUICE.broker_url)
    return {**ALWAYS, **({"run_state": check_run_state} if is_separate else {})}


def database_of(url: str) -> tuple[object, ...]:
    """Return the parts of a Redis URL that identify the database."""
    if not is_redis(url):
        return (url,)
    parts = urlsplit(url)
    return parts.hostname, parts.port or 6379, parts.path.strip("/") or "0", parts.query


readiness = Readiness(checks())


class Probe(APIView):
    """A view for load balancers, without authentication and with any Accept header."""

    audited = NOTHING
    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    content_negotiation_class = IgnoreAccept


LIVE = inline_serializer("Live", {"status": serializers.CharField()})
CHECKS = inline_serializer(
    "Checks",
    {
        **{name: serializers.CharField() for name in ALWAYS},
        "run_state": serializers.CharField(
            required=False, help_text="Present if ETL_REDIS_URL is another server or database than the broker's."
        ),
    },
)
READY = inline_serializer("Ready", {"status": serializers.CharField(), "checks": CHECKS})
RETRY_AFTER = OpenApiParameter(
    "Retry-After", int, "header", required=True, response=[503], description="Seconds until the next attempt."
)


class Live(Probe):
    @extend_schema(
        operation_id="livez",
        tags=["operations"],
        summary="Check liveness",
        description="Returns 200 while the process runs. It checks no dependencies, which a restart would not fix.",
        responses=LIVE,
        examples=[OpenApiExample("Alive", {"status": OK}, response_only=True)],
    )
    def get(self, request: Request) -> Response:
        return Response({"status": OK})


class Ready(Probe):
    @extend_schema(
        operation_id="readyz",
        tags=["operations"],
        summary="Check readiness",
        description='Checks each dependency: "ok" or the reason. Runs at most once a second and responds within 3 s.',
        parameters=[RETRY_AFTER],
        responses={
            200: OpenApiResponse(READY, "All dependencies are available."),
            503: OpenApiResponse(READY, "A dependency is not available. Send no requests to this instance."),
        },
        examples=[
            OpenApiExample("Ready", {"status": OK, "checks": dict.fromkeys(ALWAYS, OK)}, response_only=True),
            OpenApiExample(
                "Not ready",
                {"status": "unavailable", "checks": {**dict.fromkeys(ALWAYS, OK), "broker": SILENT}},
                response_only=True,
                status_codes=["503"],
            ),
        ],
    )
    def get(self, request: Request) -> Response:
        checks = readiness.read()
        if all(result == OK for result in checks.values()):
            return Response({"status": OK, "checks": checks})
        headers: dict[str, Any] = {"Retry-After": "5", "Cache-Control": "no-store"}
        return Response({"status": "unavailable", "checks": checks}, status=503, headers=headers)
