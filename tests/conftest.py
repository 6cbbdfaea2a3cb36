"""Fixtures for all tests: users, a dataset with its function, and the source database."""

import signal
from asyncio.events import _get_running_loop, _set_running_loop
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any

import hypothesis
import psycopg
import pytest
from django.conf import LazySettings, settings
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.db import DEFAULT_DB_ALIAS, connection
from django.dispatch import Signal
from django.test import Client, override_settings
from django_prometheus.middleware import Metrics
from rest_framework.test import APIClient

from config.dev.stack.processes import Web
from config.platform import storage
from config.platform.db.base import DatabaseWrapper
from exports.models import Dataset, Slot
from tests.cleaning import keep_migrated_rows
from tests.serving import token_of
from tests.waiting import wait_until

# On a busy machine, an example may exceed Hypothesis' deadline although the code is correct.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

DAY = date(2024, 2, 29)

# A process that a shell starts in the background ignores SIGINT, and its children inherit this. Some tests send SIGINT
# to child processes.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _hide_playwright_loop(item: pytest.Item) -> Iterator[None]:
    """Hide Playwright's event loop from tests without a browser, and allow database queries in tests with one.

    The loop runs in this thread from the first browser test until the process ends. If it were not hidden, other tests
    could not start a loop. In browser tests, Django would refuse queries while a loop is running.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "playwright" in getattr(item, "fixturenames", ()):
            patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
            yield
            return
        loop = _get_running_loop()
        _set_running_loop(None)
        try:
            yield
        finally:
            _set_running_loop(loop)


_hook = pytest.hookimpl(wrapper=True)(_hide_playwright_loop)
pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _hook


@pytest.fixture(scope="session", autouse=True)
def _request_metrics() -> None:
    """Create the singleton of django-prometheus. Its creation is not thread-safe, and the first requests of a test may
    be concurrent."""
    Metrics.get_instance()


@pytest.fixture(autouse=True)
def _every_response_was_closed() -> Iterator[None]:
    """Check that a test has closed its responses, as servers do.

    A streaming response that is not closed keeps its connection to object storage open. This would cause a warning in a
    later test.
    """
    seen: Counter[object] = Counter()

    def count(*, signal: Signal, **_: object) -> None:
        seen[signal] += 1

    for each in (request_started, request_finished):
        each.connect(count)
    yield
    for each in (request_started, request_finished):
        each.disconnect(count)
    # The second signal is sent twice if a test closes a response that the client has closed already.
    assert seen[request_finished] >= seen[request_started]


@pytest.fixture(autouse=True)
def _connections_are_returned() -> Iterator[None]:
    """Check that the threads of a test have returned their connections to the pool.

    If a thread ends without returning its connection, the pool never reuses it, and later tests time out.
    """
    before = connections_held_by_other_threads()
    yield
    wait_until(lambda: connections_held_by_other_threads() <= before, limit=30)


def connections_held_by_other_threads() -> int:
    """Return the number of the pool's connections that other threads are using."""
    pool = DatabaseWrapper._connection_pools.get(DEFAULT_DB_ALIAS)
    stats = pool.get_stats() if pool else {"pool_size": 0, "pool_available": 0}
    return stats["pool_size"] - stats["pool_available"] - int(bool(pool) and connection.connection is not None)


@pytest.fixture(scope="session", autouse=True)
def _fast_clients() -> Iterator[None]:
    """Use a fast password hash, and find static files only when they are requested.

    A real hash takes 0.3 s, and many tests sign in. Each test client creates new middleware, for which WhiteNoise would
    list all static files.
    """
    fast = "django.contrib.auth.hashers.MD5PasswordHasher"
    with override_settings(PASSWORD_HASHERS=[fast, *settings.PASSWORD_HASHERS], WHITENOISE_AUTOREFRESH=True):
        yield


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Close the connection pool if a test without a database has opened it. Otherwise it would continue to connect to
    the original database instead of the test database."""
    if pool := DatabaseWrapper._connection_pools.pop(DEFAULT_DB_ALIAS, None):
        pool.close()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The test database. It is dropped at the end even if a thread still has a session."""
    with django_db_blocker.unblock():
        keep_migrated_rows()
        # If the machine stalls, threads that wait for a connection must not time out.
        wrapper: Any = connection
        wrapper.settings_dict["OPTIONS"]["pool"]["timeout"] = 60  # of pools that are created after a `close_pool`
        wrapper.pool.timeout = 60
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def source_db() -> Iterator[psycopg.Connection]:
    """The source database, with an empty schema `data` for tables and functions."""
    with psycopg.connect(settings.SLUICE.source_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS data CASCADE")
        connection.execute("CREATE SCHEMA data")
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS data CASCADE")


@pytest.fixture
def slots(transactional_db: None) -> int:
    Slot.objects.provide(count=settings.SLUICE.export_db_slots)
    return int(settings.SLUICE.export_db_slots)


@pytest.fixture
def dataset(source_db: psycopg.Connection, slots: int) -> Dataset:
    """A dataset whose function returns three rows: the key, a number, and the date."""
    source_db.execute("""
        CREATE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE sql STABLE AS $$ SELECT key, n, effective_date FROM generate_series(1, 3) n ORDER BY n $$
    """)
    return Dataset.objects.create(name="things", function="data.rows_for", base_path="things")


@pytest.fixture
def empty_bucket() -> None:
    storage.delete_many(item.key for item in list(storage.list_objects("")))
    for upload in list(storage.list_uploads("")):
        storage.abort_upload(upload.key, upload.upload_id)


@pytest.fixture
def alice(transactional_db: None) -> User:
    """The owner of the objects in a test."""
    return User.objects.create_user("alice")


@pytest.fixture
def bob(transactional_db: None) -> User:
    """Another user."""
    return User.objects.create_user("bob")


@pytest.fixture
def token(alice: User) -> str:
    """An API token of alice."""
    return token_of(alice)


@pytest.fixture
def web(served: Web, transactional_db: None) -> Web:
    """The web process, which the fixture `served` of a test folder starts."""
    return served


@pytest.fixture
def api(alice: User) -> APIClient:
    return client_of(alice)


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_of(user)}")
    return client


def browser_of(user: User, **options: Any) -> Client:
    """Return a browser in which the user is signed in."""
    browser = Client(**options)
    browser.force_login(user)
    return browser


def change_settings(settings: LazySettings, **values: Any) -> None:
    """Change values of `settings.SLUICE` until the test ends. `settings`: the fixture."""
    settings.SLUICE = settings.SLUICE.model_copy(update=values)
