"""Our own database comes back, and requests with it."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from rest_framework.test import APIClient

IDLE = 8


@pytest.fixture
def idle(transactional_db: None) -> None:
    """As many idle connections in the pool as a busy process leaves there."""
    barrier = Barrier(IDLE)

    def use(_: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            barrier.wait(10)
        connection.close()

    with ThreadPoolExecutor(IDLE) as threads:
        list(threads.map(use, range(IDLE)))
    connection.close()


def test_requests_are_answered_at_once_after_the_database_was_restarted(
    api: APIClient, alice: User, idle: None
) -> None:
    """All connections died: the pool must not find that out one by one."""
    name = connection.settings_dict["NAME"]
    with psycopg.connect(settings.SLUICE.database_url.get_secret_value(), autocommit=True) as elsewhere:
        ended = elsewhere.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = %s", [name]
        ).fetchone()
    assert ended is not None
    assert ended[0] >= IDLE

    started_at = time.monotonic()
    assert api.get("/exports").status_code == 200
    assert time.monotonic() - started_at < 3
