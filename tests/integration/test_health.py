"""Health checks: servers that respond, that are down, or that accept connections and never respond."""

import os
import threading
from contextlib import suppress
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import redis
from django.conf import LazySettings
from django.db import connection as django_connection
from django.test import Client
from psycopg.conninfo import make_conninfo
from pydantic import AnyHttpUrl, SecretStr

from config.platform import storage
from config.platform.http import health
from tests.conftest import change_settings
from tests.servers import OPERATOR
from tests.waiting import expect_within, wait_until

# The health checks do not use Django's connection, so the test database must exist before they run.
pytestmark = pytest.mark.usefixtures("django_db_setup")


@pytest.fixture(autouse=True)
def _no_cached_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discard the cached results of earlier tests."""
    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))


def change(settings: LazySettings, **urls: str) -> None:
    secrets = {name: SecretStr(url) for name, url in urls.items()}
    change_settings(settings, **secrets)


def ready(client: Client) -> tuple[int, dict[str, Any]]:
    """Request `/readyz`, with longer timeouts than in production, because test machines may stall for seconds."""
    with patch.object(health, "CHECK_SECONDS", 60), patch.object(health, "CONNECT_SECONDS", 30):
        response = client.get("/readyz")
    return response.status_code, response.json()


def failed_checks(client: Client) -> dict[str, str]:
    """Return the checks that fail. Names and secrets in these tests are "hunter2", and must not be in the response."""
    with suppress(storage.StorageError):
        storage.ping()  # botocore needs some time to create the first client for an address
    status, body = ready(client)
    assert status == 503
    assert "hunter2" not in str(body)
    return {part: answer for part, answer in body["checks"].items() if answer != "ok"}


@pytest.mark.slow
def test_a_check_that_ended_late_is_run_again() -> None:
    answered = threading.Event()
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        answered.wait(60)
        if len(calls) == 2:
            raise redis.ConnectionError

    readiness = health.Readiness({"part": check})
    assert readiness.run_checks() == {"part": health.LATE}
    answered.set()
    wait_until(readiness.running["part"].done)
    assert readiness.run_checks() == {"part": health.SILENT}


def test_livez_succeeds_during_outages(client: Client, settings: LazySettings, closed_port: int) -> None:
    change(settings, database_url=f"postgresql://127.0.0.1:{closed_port}/x")

    response = client.get("/livez", headers={"Accept": "text/plain"})

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_readyz_fails_until_the_migrations_of_this_release_are_applied(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older release that runs at the same time has fewer migrations, and is ready."""
    ours = health.migrations()
    monkeypatch.setattr(health, "migrations", lambda: ours | {("etl", "9999_of_the_next_release")})
    assert failed_checks(client) == {"database": "lacks a migration of this release: run manage.py migrate"}

    monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))
    monkeypatch.setattr(health, "migrations", lambda: frozenset(sorted(ours)[1:]))
    assert ready(client)[0] == 200


def test_readyz_fails_in_an_empty_database(
    client: Client, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(django_connection.settings_dict, "NAME", "postgres")
    assert failed_checks(client) == {"database": "lacks a migration of this release: run manage.py migrate"}


def test_readyz_succeeds_when_every_server_responds(client: Client) -> None:
    checks = {"database": "ok", "source": "ok", "broker": "ok", "storage": "ok"}

    assert ready(client) == (200, {"status": "ok", "checks": checks})


def use_run_state_server(settings: LazySettings, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Use another Redis for run-states, as a process that was started with this setting."""
    change(settings, etl_redis_url=url)
    monkeypatch.setattr(health, "readiness", health.Readiness(health.checks()))


def test_it_checks_a_separate_run_state_redis(
    client: Client, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    """B10: it may be full or refuse the login while the main Redis is ready."""
    own = urlsplit(settings.SLUICE.broker_url)
    use_run_state_server(settings, monkeypatch, urlunsplit(own._replace(path="/7")))
    status, body = ready(client)
    assert (status, body["checks"]["run_state"], len(body["checks"])) == (200, "ok", 5)

    use_run_state_server(settings, monkeypatch, f"redis://user:hunter2@127.0.0.1:{closed_port}/0")
    assert failed_checks(client) == {"run_state": "does not respond"}


def test_it_checks_a_shared_server_once(
    client: Client, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = urlsplit(settings.SLUICE.broker_url)
    use_run_state_server(settings, monkeypatch, urlunsplit(own._replace(path=own.path.rstrip("0").rstrip("/"))))
    assert "run_state" not in ready(client)[1]["checks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "scheme", "name"),
    [
        ("source_database_url", "postgresql", "source"),
        ("database_url", "postgresql", "database"),
        ("celery_broker_url", "redis", "broker"),
        ("celery_broker_url", "amqp", "broker"),
    ],
)
def test_it_names_unavailable_parts_without_addresses(
    client: Client, settings: LazySettings, closed_port: int, *, setting: str, scheme: str, name: str
) -> None:
    change(settings, **{setting: f"{scheme}://user:hunter2@127.0.0.1:{closed_port}/0"})

    assert failed_checks(client) == {name: "does not respond"}


@pytest.mark.parametrize(
    ("setting", "name", "change_url", "reason"),
    [
        ("database_url", "database", {"password": "hunter2"}, "rejects the user name or password"),
        ("source_database_url", "source", {"user": "hunter2"}, "rejects the user name or password"),
        ("source_database_url", "source", {"dbname": "hunter2"}, "does not have this database"),
    ],
)
def test_a_refused_postgres_login_differs_from_an_outage(
    client: Client, settings: LazySettings, *, setting: str, name: str, change_url: dict[str, str], reason: str
) -> None:
    url = getattr(settings.SLUICE, setting).get_secret_value()
    change(settings, **{setting: make_conninfo(url, **change_url)})

    assert failed_checks(client) == {name: reason}


@pytest.mark.parametrize("credentials", ["", ":hunter2@", "hunter2:hunter2@"])
def test_it_reports_a_refused_broker_login(client: Client, settings: LazySettings, *, credentials: str) -> None:
    host = settings.SLUICE.broker_url.rpartition("@")[2]
    change(settings, celery_broker_url=f"redis://{credentials}{host}")

    assert failed_checks(client) == {"broker": "rejects the user name or password"}


def test_it_tries_every_address_of_the_broker(client: Client, settings: LazySettings, closed_port: int) -> None:
    change(settings, celery_broker_url=f"redis://127.0.0.1:{closed_port}/0;redis://127.0.0.1:{closed_port}/1")

    assert failed_checks(client) == {"broker": "does not respond"}


def test_it_reports_refused_storage_keys(client: Client, settings: LazySettings) -> None:
    change(settings, s3_secret_access_key="hunter2")

    assert failed_checks(client) == {"storage": "denies these keys access to the bucket"}


def test_it_reports_a_forbidden_bucket(client: Client, settings: LazySettings) -> None:
    change_settings(settings, s3_bucket="hunter2")

    assert failed_checks(client) == {"storage": "denies these keys access to the bucket"}


def test_it_reports_a_missing_bucket(client: Client, settings: LazySettings) -> None:
    """This needs a key that can list buckets: for others, access is denied whether the bucket exists or not."""
    key, secret = (SecretStr(os.environ[name]) for name in OPERATOR)
    changes = {"s3_bucket": "hunter2", "s3_access_key_id": key, "s3_secret_access_key": secret}
    change_settings(settings, **changes)

    assert failed_checks(client) == {"storage": "does not have this bucket"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"), [("closed", "does not respond"), ("silent", "did not respond within 2 seconds")]
)
def test_it_reports_unreachable_object_storage(
    client: Client, settings: LazySettings, closed_port: int, silent_port: int, *, kind: str, reason: str
) -> None:
    endpoint = AnyHttpUrl(f"http://127.0.0.1:{closed_port if kind == 'closed' else silent_port}")
    change_settings(settings, s3_endpoint_url=endpoint)

    assert failed_checks(client) == {"storage": reason}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "hunter2"', "has no matching pg_hba.conf entry"),
        ('FATAL:  role "hunter2" does not exist', "rejects the user name or password"),
        ('connection to server at "::1" failed: timeout expired', "did not respond within 2 seconds"),
        ('"::1" failed: Connection refused\n"127.0.0.1" failed: FATAL:  database "hunter2" does not exist',
         "does not have this database"),
        ("FATAL:  Passwort-Authentifizierung für »hunter2« fehlgeschlagen", "is unreachable or rejects the connection"),
    ],
)  # fmt: skip
def test_it_recognizes_libpq_messages(message: str, reason: str) -> None:
    assert health.reason(psycopg.OperationalError(message)) == reason


def test_it_classifies_postgres_errors_after_the_login_by_sqlstate() -> None:
    assert health.reason(psycopg.errors.InsufficientPrivilege("hunter2")) == "refused with SQLSTATE 42501"


@pytest.mark.slow
def test_it_does_not_wait_for_silent_servers(
    client: Client, settings: LazySettings, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(
        settings,
        database_url=f"postgresql://u:p@127.0.0.1:{silent_port}/x",
        source_database_url=f"postgresql://u:p@127.0.0.1:{silent_port}/x",
        celery_broker_url=f"redis://127.0.0.1:{silent_port}/0",
    )

    storage.ping()  # creates the client, which takes time
    reports: list[dict[str, str]] = []

    def check() -> None:
        monkeypatch.setattr(health, "readiness", health.Readiness(health.readiness.checks))
        response = client.get("/readyz")
        assert response.status_code == 503
        reports.append(response.json()["checks"])

    expect_within(3, check)
    checks = reports[-1]
    assert all(checks[name].startswith("did not respond") for name in ("database", "source", "broker"))
    assert checks["storage"] == "ok"


@pytest.mark.slow
def test_it_checks_at_most_once_a_second(client: Client, settings: LazySettings, closed_port: int) -> None:
    with patch.object(health, "FRESH_SECONDS", 60 * health.FRESH_SECONDS):
        assert ready(client)[0] == 200
        change(settings, celery_broker_url=f"redis://127.0.0.1:{closed_port}/0")
        assert ready(client)[0] == 200
    wait_until(lambda: ready(client)[0] != 200)


@pytest.mark.slow
def test_hanging_checks_do_not_accumulate() -> None:
    """A check that takes too long is reported, and is not started again while it runs."""
    started: list[None] = []
    over = threading.Event()

    def hang() -> None:
        started.append(None)
        over.wait(60)

    readiness = health.Readiness({"hung": hang, "well": lambda: None})
    try:
        assert readiness.run_checks() == {"hung": health.LATE, "well": "ok"}
        assert readiness.run_checks()["well"] == "ok"
        assert len(started) == 1
    finally:
        over.set()
