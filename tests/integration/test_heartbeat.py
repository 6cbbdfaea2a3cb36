"""Heartbeats: renewal of a lease, and stopping the work when the lease is lost. A11, A13."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.conf import LazySettings
from django.db import OperationalError, connection

from config.platform.heartbeat import Heartbeat, LeaseLost, LeaseLostEvent
from exports.worker.heartbeat import heartbeat
from tests.conftest import change_settings
from tests.waiting import wait_until


class Unavailable(Exception):
    pass


make_heartbeat = partial(Heartbeat, unavailable=(Unavailable,))


def lose() -> None:
    raise LeaseLost


def fail() -> None:
    raise Unavailable


def two_seconds_ago() -> float:
    """Return a renewal time after which the next `check` renews the lease again, but the thread does not yet."""
    return time.monotonic() - 2


def test_a_lost_lease_is_detected_at_the_next_check() -> None:
    """The loss must be detected before the next heartbeat is due: a process that was suspended must not write."""
    with make_heartbeat(lose, lease=600, since=two_seconds_ago()) as beat, pytest.raises(LeaseLost):
        beat.check()


def test_work_stops_when_the_lease_is_lost() -> None:
    stopped = threading.Event()
    with make_heartbeat(lose, lease=0.3, on_loss=stopped.set) as beat:
        assert stopped.wait(30)
        with pytest.raises(LeaseLost):
            beat.check()


def test_an_outage_shorter_than_the_lease_does_not_stop_work() -> None:
    renewals: Iterator[Callable[[], object]] = iter([fail, lambda: None])

    def renew() -> None:
        next(renewals)()

    with make_heartbeat(renew, lease=600, since=two_seconds_ago()) as beat:
        beat.check()
        beat.check()
    assert not list(renewals)


@pytest.mark.slow
def test_work_stops_after_an_outage_of_the_length_of_the_lease() -> None:
    """By then, another worker may hold the lease."""
    stopped = threading.Event()
    began = time.monotonic()
    with make_heartbeat(fail, lease=1, on_loss=stopped.set):
        assert stopped.wait(30)
    assert time.monotonic() - began > 1


def test_an_expired_lease_is_lost_before_the_next_heartbeat() -> None:
    """A process that was suspended for longer than its lease may continue before its heartbeat runs."""
    assert LeaseLostEvent(3, since=time.monotonic() - 3).is_set()
    assert not LeaseLostEvent(3, since=time.monotonic()).is_set()


def test_an_expired_lease_that_can_be_renewed_is_not_lost() -> None:
    with make_heartbeat(lambda: None, lease=600, since=time.monotonic() - 600) as beat:
        beat.check()


def test_a_database_outage_does_not_lose_the_lease(settings: LazySettings) -> None:
    change_settings(settings, export_lease_seconds=600)
    calls: list[int] = []

    def fail_renewal() -> None:
        calls.append(1)
        raise OperationalError

    with heartbeat(fail_renewal, since=two_seconds_ago()) as beat:
        beat.check()
    assert calls


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_heartbeat_closes_its_connection(settings: LazySettings) -> None:
    """A thread that ends does not return its connection, so the pool would run out of connections."""
    change_settings(settings, export_lease_seconds=3)  # heartbeats end if the machine stalls for 3 s during one
    seen: list[bool] = []

    def query() -> None:
        seen.append(connection.connection is None)
        connection.ensure_connection()

    with heartbeat(query):
        wait_until(lambda: len(seen) > 1)
    assert all(seen)
