"""The connection pool after a restart of the main database."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from rest_framework.test import APIClient

from tests.waiting import expect_within

IDLE = 8


def leave_idle_connections() -> None:
    """Fill the pool with IDLE idle connections, as after a peak of requests."""
    barrier = Barrier(IDLE)

    def use(_: int) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                barrier.wait(60)
        finally:
            connection.close()

    with ThreadPoolExecutor(IDLE) as threads:
        list(threads.map(use, range(IDLE)))
    connection.close()


def end_all_connections() -> None:
    name = connection.settings_dict["NAME"]
    with psycopg.connect(settings.SLUICE.database_url.get_secret_value(), autocommit=True) as elsewhere:
        ended = elsewhere.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchone()
    assert ended is not None
    assert ended[0] >= IDLE


@pytest.mark.slow
def test_requests_succeed_immediately_after_a_database_restart(api: APIClient, alice: User) -> None:
    """All connections of the pool are dead. If it discovered them one after the other, requests would be delayed."""

    def request_after_restart() -> None:
        leave_idle_connections()
        end_all_connections()
        assert api.get("/exports").status_code == 200

    expect_within(3, request_after_restart)
