"""The main database: sessions that do not depend on the role's settings, and the database's clock."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import connection

from config.platform.db import clock
from tests.integration.test_sql import new_session

DEFAULTS = {"DateStyle": "German, DMY", "IntervalStyle": "iso_8601", "default_transaction_isolation": "repeatable read"}


def set_defaults(*, action: str) -> None:
    with connection.cursor() as cursor:
        for name, value in DEFAULTS.items():
            cursor.execute(f"ALTER ROLE CURRENT_USER {action.format(name=name, value=value)}")
    new_session()


@pytest.fixture
def _unusual_defaults(transactional_db: None) -> Iterator[None]:
    set_defaults(action="SET {name} = '{value}'")
    yield
    set_defaults(action="RESET {name}")


@pytest.mark.usefixtures("_unusual_defaults")
def test_settings_of_the_role_do_not_change_values() -> None:
    user = User.objects.create(username="alice", last_login=datetime(2026, 2, 3, 4, 5, tzinfo=UTC))
    assert User.objects.get(pk=user.pk).last_login == datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT interval '90 minutes', current_setting('transaction_isolation')")
        assert cursor.fetchone() == (timedelta(minutes=90), "read committed")


def test_sessions_have_an_application_name(transactional_db: None) -> None:
    new_session()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        assert cursor.fetchone() == ("sluice",)


def test_it_uses_the_clock_of_the_database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    new_session()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (at,) = cast("Any", cursor.fetchone())
    assert abs(clock.now() - at) < timedelta(seconds=5)

    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert abs(clock.now() - at - timedelta(seconds=60)) < timedelta(seconds=5)


def test_the_clock_is_read_again_with_each_connection_of_the_pool(transactional_db: None) -> None:
    """Otherwise, a host would date URLs wrongly for an hour after a suspension or a change of its clock."""
    new_session()
    User.objects.exists()
    connection.close()  # returns it to the pool
    clock.reading[:] = [(datetime(2026, 1, 1, tzinfo=UTC), time.monotonic())]
    User.objects.exists()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
