"""`manage.py doctor` on a whole installation, and on misconfigured servers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from pydantic import SecretStr

from config.dev.stack import processes
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.postgres import SUPERUSER, Postgres
from config.dev.stack.servers import Servers
from config.dev.stack.servers import running as servers_running
from config.ops.doctor import database, redis, source, storage
from exports.models import Dataset
from tests import servers
from tests.broker import lose_messages, valkey
from tests.chaos.documents import ALL
from tests.e2e.test_source import Standby, documented_role, running
from tests.integration.test_doctor import examine, name_of, passes
from tests.operations import pgbouncer
from tests.serving import variables
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # the tests start whole installations
ROLE = "exporter"
MIGRATE = [sys.executable, "manage.py", "migrate", "-v0"]


@pytest.fixture
def superuser() -> Iterator[psycopg.Connection]:
    """A superuser's connection to the source database."""
    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER, "source"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def exporter(dataset: Dataset, superuser: psycopg.Connection) -> Iterator[str]:
    """The URL of the role that docs/source-database.md creates."""
    superuser.execute(documented_role())
    yield f"postgresql://{ROLE}:change-me@{LOOPBACK}:{servers.started[0].postgres.port}/source"
    superuser.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


@pytest.fixture
def point(settings: LazySettings) -> Callable[..., None]:
    def point(**urls: str) -> None:
        values = {name: SecretStr(url) for name, url in urls.items()}
        settings.SLUICE = settings.SLUICE.model_copy(update=values)

    return point


def doctor(environment: dict[str, str], *options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--json", *options],
        check=False, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in {0, 1, 2}, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed_checks(document: dict[str, Any]) -> dict[str, str]:
    """Return the texts of all findings whose level is not ok, by check."""
    texts: dict[str, str] = {}
    for line in document["findings"]:
        if line["level"] != "ok":
            earlier = f"{texts[line['check']]} " if line["check"] in texts else ""
            texts[line["check"]] = f"{earlier}{line['state']} {line['do']}"
    return texts


# ---- A whole installation -------------------------------------------------------------------------------------------
def test_a_healthy_installation_passes_every_check(exporter: str, alice: User, tmp_path: Path) -> None:
    """C6. With a worker, beat, and web, and then without the worker."""
    lose_messages()
    environment = variables(
        tmp_path,
        SECRET_KEY=os.urandom(40).hex(),
        SOURCE_DATABASE_URL=exporter,
        TRUSTED_PROXY_CIDRS="10.0.0.0/8",
        EXPORT_REAPER_SECONDS="1",
    )
    worker = processes.worker("all", queues=ALL, concurrency=2, root=tmp_path, environment=environment)
    beat = processes.beat(root=tmp_path, environment=environment)
    web = processes.Web(tmp_path, KeptSettings(tmp_path), environment)
    try:
        for each in (worker, beat, web):
            each.start()
        wait_until(lambda: "ready." in worker.log.read_text())
        wait_until(lambda: passes(database.SUBJECT, "ticks"))
        status, document = doctor(environment, "--web", web.url)
        assert failed_checks(document) == {}
        assert (status, document["status"]) == (0, "ok")

        worker.kill()
        wait_until(lambda: "workers.queues" in failed_checks(doctor(environment)[1]), limit=90)
        status, document = doctor(environment)
        assert set(failed_checks(document)) == {"workers.queues"}
        assert "python -m celery -A config worker -Q etl-postprocess" in failed_checks(document)["workers.queues"]
        assert status == 2
    finally:
        for process in (worker, beat):
            process.kill()
        web.stop()


def test_a_queue_without_a_worker_is_reported(transactional_db: None, tmp_path: Path) -> None:
    lose_messages()
    environment = variables(tmp_path)
    queues = ALL.replace("bundles,", "")
    worker = processes.worker("most", queues=queues, concurrency=1, root=tmp_path, environment=environment)
    try:
        worker.start()
        wait_until(lambda: "ready." in worker.log.read_text())
        _, document = doctor(environment)
    finally:
        worker.kill()
    assert failed_checks(document)["workers.queues"].startswith(
        "No worker consumes the queue bundles: no job is completed."
    )


def test_unreadable_settings_are_reported_without_a_traceback() -> None:
    environment = {**os.environ, "EXPORT_LEASE_SECONDS": "short", "S3_BUCKET": ""}
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        check=False, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "EXPORT_LEASE_SECONDS" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_servers_of_make_up_cause_warnings_at_most(tmp_path: Path) -> None:
    """A stack on one machine has no separate source role and no proxy. These cause warnings only."""
    with servers_running(tmp_path, durable=True) as stack:
        environment = local(stack, tmp_path)
        subprocess.run(MIGRATE, check=True, cwd=PROJECT, env=environment)
        _, document = doctor(environment)
    failures = {line["check"] for line in document["findings"] if line["level"] == "failure"}
    assert failures == {"workers.queues", "database.ticks"}  # no worker and no beat run


def local(stack: Servers, root: Path) -> dict[str, str]:
    return {
        **os.environ, **stack.environment(), "SECRET_KEY": os.urandom(40).hex(), "ETL_CACHE_DIR": str(root / "cache"),
    }  # fmt: skip


# ---- The database ---------------------------------------------------------------------------------------------------
@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that creates a database, points the doctor at it, and returns a connection of its owner."""
    server, made = servers.started[0].postgres, []
    with psycopg.connect(server.url(SUPERUSER), autocommit=True) as admin:

        def make(options: str = "") -> psycopg.Connection:
            admin.execute(f"CREATE DATABASE fresh OWNER sluice TEMPLATE template0 {options}")
            from django.db import connection

            monkeypatch.setitem(connection.settings_dict, "NAME", "fresh")
            made.append(psycopg.connect(server.url("sluice", "fresh"), autocommit=True))
            return made[0]

        yield make
        for connection in made:
            connection.close()
        admin.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)")


def test_missing_migrations_are_reported(fresh: Any) -> None:
    connection = fresh()
    level, text = examine(database.SUBJECT, "migrations")
    assert level == "failure"
    assert "python manage.py migrate" in text

    url = servers.started[0].postgres.url("sluice", "fresh")
    subprocess.run(MIGRATE, check=True, cwd=PROJECT, env={**os.environ, "DATABASE_URL": url})
    assert passes(database.SUBJECT, "migrations")

    newest = connection.execute("""
        DELETE FROM django_migrations WHERE app = 'exports'
          AND name = (SELECT max(name) FROM django_migrations WHERE app = 'exports') RETURNING app, name
    """).fetchone()
    assert newest
    level, text = examine(database.SUBJECT, "migrations")
    assert level == "failure"
    assert f"Unapplied migrations: 1. The first is {newest[0]}.{newest[1]}" in text

    connection.execute("INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, now())", newest)
    connection.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('exports', '9999_later', now())")
    level, text = examine(database.SUBJECT, "migrations")
    assert level == "warning"
    assert "a migration of a newer release" in text


def test_a_database_encoding_other_than_utf8_is_reported(fresh: Any) -> None:
    fresh("ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C'")
    level, text = examine(database.SUBJECT, "encoding")
    assert level == "failure"
    assert "WITH ENCODING 'UTF8'" in text


@pytest.mark.parametrize(
    ("check", "setting", "level", "words"),
    [
        ("timezone", "timezone = 'Asia/Shanghai'", "warning", "SET timezone = 'UTC'"),
        ("defaults", "DateStyle = 'German, DMY'", "warning", "RESET DateStyle"),
        ("defaults", "default_transaction_isolation = 'repeatable read'", "warning", "'read committed'"),
        ("writable", "default_transaction_read_only = on", "failure", "failover"),
        ("lost_clients", "client_connection_check_interval = 0", "warning", "client_connection_check_interval = '1s'"),
    ],
)
def test_unsuitable_database_settings_are_reported(
    fresh: Any, check: str, setting: str, level: str, words: str
) -> None:
    connection = fresh()
    assert passes(database.SUBJECT, check)
    connection.execute(f"ALTER DATABASE fresh SET {setting}")
    actual, text = examine(database.SUBJECT, check)
    assert actual == level
    assert words in text


def test_tables_owned_by_another_role_are_reported(fresh: Any) -> None:
    connection = fresh()
    for name in ("exports_jobs", "platform_identity", "platform_audit", "others_jobs", "etl_task"):
        connection.execute(f"CREATE TABLE {name} ()")
    assert passes(database.SUBJECT, "rights")
    with psycopg.connect(servers.started[0].postgres.url(SUPERUSER, "fresh"), autocommit=True) as admin:
        for name in ("exports_jobs", "platform_identity", "others_jobs"):
            admin.execute(f"ALTER TABLE {name} OWNER TO postgres")
        admin.execute("GRANT SELECT ON exports_jobs TO sluice; ALTER TABLE platform_audit OWNER TO postgres")
        admin.execute("GRANT SELECT, INSERT ON platform_audit TO sluice")  # docs/access.md
    level, text = examine(database.SUBJECT, "rights")
    assert level == "failure"
    assert "lacks privileges on 2 of Sluice's tables, such as exports_jobs" in text


@pytest.mark.parametrize("table", ["exports_chunk", "platform_audit"])
def test_an_invalid_index_is_reported(fresh: Any, table: str) -> None:
    connection = fresh()
    connection.execute(f"CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (1), (1)")
    assert passes(database.SUBJECT, "indexes")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(f"CREATE UNIQUE INDEX CONCURRENTLY unique_n ON {table} (n)")
    level, text = examine(database.SUBJECT, "indexes")
    assert level == "failure"
    assert "REINDEX INDEX CONCURRENTLY unique_n" in text


# ---- The source -----------------------------------------------------------------------------------------------------
def test_the_documented_source_role_passes(exporter: str, point: Callable[..., None]) -> None:
    point(source_database_url=exporter)
    assert [check.__name__ for check in source.SUBJECT.checks[:-1] if not passes(source.SUBJECT, name_of(check))] == []


def test_a_superuser_source_role_is_reported(point: Callable[..., None]) -> None:
    point(source_database_url=servers.started[0].postgres.url(SUPERUSER, "source"))
    level, text = examine(source.SUBJECT, "role")
    assert level == "failure"
    assert "docs/source-database.md#the-role" in text


@pytest.mark.parametrize(
    "deviation",
    [
        ("role", "CREATEROLE", "has privileges beyond reading"),
        ("read_only", "SET default_transaction_read_only = off", "default_transaction_read_only = on"),
        ("statement_timeout", "SET statement_timeout = 0", "SET statement_timeout = '10min'"),
        ("connection_limit", "CONNECTION LIMIT 11", "CONNECTION LIMIT 12"),
    ],
)
def test_deviations_from_the_documented_source_role_are_reported(
    exporter: str, superuser: psycopg.Connection, point: Callable[..., None], deviation: tuple[str, str, str]
) -> None:
    check, statement, words = deviation
    point(source_database_url=exporter)
    superuser.execute(f"ALTER ROLE {ROLE} {statement}")
    level, text = examine(source.SUBJECT, check)
    assert level == "warning"
    assert words in text


@pytest.mark.parametrize(
    "statement",
    [
        f"REVOKE EXECUTE ON FUNCTION data.rows_for FROM {ROLE}",
        f"REVOKE USAGE ON SCHEMA data FROM {ROLE}",
    ],
)
def test_a_function_without_execute_permission_is_reported(
    exporter: str, superuser: psycopg.Connection, point: Callable[..., None], statement: str
) -> None:
    point(source_database_url=exporter)
    superuser.execute(statement)
    level, text = examine(source.SUBJECT, "datasets")
    assert level == "failure"
    assert "GRANT USAGE" in text


def test_a_pooler_in_front_of_the_source_is_reported(
    exporter: str, superuser: psycopg.Connection, point: Callable[..., None], tmp_path: Path
) -> None:
    point(source_database_url=exporter)
    assert passes(source.SUBJECT, "session")
    # The test server's own setting equals that of Sluice's sessions, so it would hide that theirs is lost.
    superuser.execute(f"ALTER ROLE {ROLE} SET client_connection_check_interval = 0")
    dropped = "ignore_startup_parameters = options,extra_float_digits"
    with pgbouncer.running(tmp_path, to=exporter, size=2, more=dropped) as pooler:
        point(source_database_url=pooler.url("source"))
        level, text = examine(source.SUBJECT, "session")
    assert level == "failure"
    assert "to Postgres itself" in text


@pytest.fixture
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    for primary in running(lambda root: Postgres(root, KeptSettings(root), durable=False), tmp_path_factory):
        yield from running(partial(Standby, primary=primary), tmp_path_factory)


def test_a_replica_that_cancels_calls_is_reported(standby: Postgres, point: Callable[..., None]) -> None:
    point(source_database_url=standby.url("source"))
    level, text = examine(source.SUBJECT, "conflicts")
    assert level == "warning"
    assert "hot_standby_feedback" in text
    assert passes(source.SUBJECT, "read_only")


def test_a_replica_as_the_main_database_is_reported(standby: Postgres, point: Callable[..., None]) -> None:
    point(database_url=standby.url("sluice"))
    level, text = examine_elsewhere("writable", "sluice")
    assert level == "failure"
    assert "Point DATABASE_URL to the primary" in text


def examine_elsewhere(check: str, name: str) -> tuple[str, str]:
    from django.db import connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "NAME", name)
        return examine(database.SUBJECT, check)


# ---- Valkey ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("check", "name", "value", "level", "words"),
    [
        ("eviction", "maxmemory-policy", "allkeys-lru", "failure", "noeviction"),
        ("persistence", "appendonly", "no", "warning", "Set appendonly yes"),
        ("memory", "maxmemory", "used", "warning", "Raise maxmemory"),
    ],
)
def test_unsafe_valkey_settings_are_reported(check: str, name: str, value: str, level: str, words: str) -> None:
    client: Any = valkey()
    before = client.config_get(name)[name]
    (subject,) = redis.subjects()
    assert passes(subject, check)
    used = client.info("memory")["used_memory"]
    client.config_set(name, int(used * 1.1) if value == "used" else value)
    try:
        actual, text = examine(subject, check)
    finally:
        client.config_set(name, before)
    assert actual == level
    assert words in text


# ---- Object storage -------------------------------------------------------------------------------------------------
def test_a_bucket_without_lifecycle_rules_is_reported() -> None:
    store = servers.started[0].seaweedfs
    assert passes(storage.SUBJECT, "lifecycle")
    store.client.delete_bucket_lifecycle(Bucket=store.bucket)
    try:
        level, text = examine(storage.SUBJECT, "lifecycle")
    finally:
        store.provision()
    assert level == "warning"
    assert "No lifecycle rule aborts abandoned multipart uploads" in text
    assert "docs/iam/lifecycle.json" in text
    assert passes(storage.SUBJECT, "lifecycle")


def test_a_public_bucket_is_reported() -> None:
    store = servers.started[0].seaweedfs
    assert passes(storage.SUBJECT, "public_access")
    everyone = {
        "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{store.bucket}", f"arn:aws:s3:::{store.bucket}/*"],
    }  # fmt: skip
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everyone]})
    store.client.put_bucket_policy(Bucket=store.bucket, Policy=policy)
    try:
        level, text = examine(storage.SUBJECT, "public_access")
    finally:
        store.client.delete_bucket_policy(Bucket=store.bucket)
    assert level == "failure"
    assert "Block public access" in text


def test_a_versioned_bucket_is_reported(point: Callable[..., None], settings: LazySettings) -> None:
    """In a separate bucket, since versions stay in it."""
    store = servers.started[0].seaweedfs
    store.client.create_bucket(Bucket="versioned")
    key, secret = store.operator
    point(s3_access_key_id=key, s3_secret_access_key=secret)
    settings.SLUICE = settings.SLUICE.model_copy(update={"s3_bucket": "versioned"})
    assert passes(storage.SUBJECT, "versioning")
    store.client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    level, text = examine(storage.SUBJECT, "versioning")
    assert level == "warning"
    assert "NoncurrentVersionExpiration" in text
