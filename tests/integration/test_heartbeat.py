"""What keeps a lease, and what stops the work that has lost it. A11, A13."""

import threading
import time

import pytest
from django.conf import LazySettings
from django.db import OperationalError

from exports.core.errors import LeaseLost
from exports.worker.heartbeat import Heartbeat
from tests.waiting import wait_until


def lose() -> None:
    raise LeaseLost


def fail() -> None:
    raise OperationalError


def lease_of(seconds: float, settings: LazySettings) -> None:
    settings.SLUICE = settings.SLUICE.model_copy(update={"export_lease_seconds": seconds})


def raises(heartbeat: Heartbeat) -> bool:
    try:
        heartbeat.check()
    except LeaseLost:
        return True
    return False


def test_a_lease_that_was_lost_is_noticed_at_the_next_check(settings: LazySettings) -> None:
    """Long before the next beat: whoever stood still until then must not write on."""
    lease_of(600, settings)
    with Heartbeat(lose, on_loss=lambda: None) as heartbeat:
        wait_until(lambda: raises(heartbeat))


def test_what_is_under_way_is_stopped_when_the_lease_is_lost(settings: LazySettings) -> None:
    lease_of(0.3, settings)
    stopped = threading.Event()
    with Heartbeat(lose, on_loss=stopped.set) as heartbeat:
        assert stopped.wait(30)
        with pytest.raises(LeaseLost):
            heartbeat.check()


def test_a_database_that_is_away_for_less_than_the_lease_costs_nothing(settings: LazySettings) -> None:
    lease_of(12, settings)
    beats: list[float] = []

    def away_once() -> None:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise OperationalError

    with Heartbeat(away_once, on_loss=lambda: None) as heartbeat:
        wait_until(lambda: len(beats) > 1)
        heartbeat.check()


def test_work_is_stopped_when_the_lease_could_not_be_renewed_for_its_whole_length(settings: LazySettings) -> None:
    """Another worker may have it by then."""
    lease_of(1, settings)
    stopped = threading.Event()
    began = time.monotonic()
    with Heartbeat(fail, on_loss=stopped.set):
        assert stopped.wait(30)
    assert time.monotonic() - began > 1
