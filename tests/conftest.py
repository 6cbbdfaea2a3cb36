"""What all tests share: users, a dataset with a function behind it, and a source database to put functions in."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import hypothesis
import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from knox.models import AuthToken
from rest_framework.test import APIClient

from exports.models import Dataset, Slot
from tests.cleaning import keep_what_is_there

# A busy machine takes longer over an example than hypothesis allows, which says nothing about our code.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

DAY = date(2024, 2, 29)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The test database; at the end it is dropped, also when a thread of some test still has a session there."""
    with django_db_blocker.unblock():
        keep_what_is_there()
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture
def source_db() -> Iterator[psycopg.Connection]:
    """The source database, with an empty schema `data` to put tables and functions in."""
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
    """A dataset whose function gives three rows: the key, a number and the date."""
    source_db.execute("""
        CREATE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
        LANGUAGE sql STABLE AS $$ SELECT key, n, effective_date FROM generate_series(1, 3) n ORDER BY n $$
    """)
    return Dataset.objects.create(name="things", function="data.rows_for", base_path="things")


@pytest.fixture
def alice(transactional_db: None) -> User:
    """The owner of whatever a test makes."""
    return User.objects.create_user("alice")


@pytest.fixture
def bob(transactional_db: None) -> User:
    """A stranger."""
    return User.objects.create_user("bob")


@pytest.fixture
def api(alice: User) -> APIClient:
    return client_of(alice)


def client_of(user: User) -> APIClient:
    client = APIClient()
    _, token = AuthToken.objects.create(user)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return client
