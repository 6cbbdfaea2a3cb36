"""Heartbeats: renewal of a lease, and stopping the work when the lease is lost. A11, A13."""

import threading
import time
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


def raises(beat: Heartbeat) -> bool:
    try:
        beat.check()
    except LeaseLost:
        return True
    return False


def test_a_lost_lease_is_detected_at_the_next_check() -> None:
    """The loss must be detected before the next heartbeat is due: a process that was suspended must not write."""
    with make_heartbeat(lose, lease=600) as beat:
        wait_until(lambda: raises(beat))


def test_work_stops_when_the_lease_is_lost() -> None:
    stopped = threading.Event()
    with make_heartbeat(lose, lease=0.3, on_loss=stopped.set) as beat:
        assert stopped.wait(30)
        with pytest.raises(LeaseLost):
            beat.check()


@pytest.mark.slow
def test_an_outage_shorter_than_the_lease_does_not_stop_work() -> None:
    beats: list[float] = []

    def fail_once() -> None:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise Unavailable

    with make_heartbeat(fail_once, lease=600) as beat:
        while len(beats) < 2:
            beat.check()


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
    beats: list[float] = []

    def fail_renewal() -> None:
        beats.append(time.monotonic())
        raise OperationalError

    with heartbeat(fail_renewal) as beat:
        while not beats:
            beat.check()


@pytest.mark.django_db(transaction=True)
def test_each_heartbeat_closes_its_connection(settings: LazySettings) -> None:
    """A thread that ends does not return its connection, so the pool would run out of connections."""
    change_settings(settings, export_lease_seconds=0.3)
    seen: list[bool] = []

    def query() -> None:
        seen.append(connection.connection is None)
        connection.ensure_connection()

    with heartbeat(query):
        wait_until(lambda: len(seen) > 1)
    assert all(seen)
