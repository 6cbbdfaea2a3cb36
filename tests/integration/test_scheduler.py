"""The scheduler of periodic tasks, with a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.beat import Service

from config.celery import app
from config.scheduler import RETRY_SECONDS, Scheduler
from tests.broker import lose_messages, queued


@pytest.fixture
def schedule(tmp_path: Path) -> Iterator[Scheduler]:
    lose_messages()
    file = str(tmp_path / "schedule")
    scheduler = Service(app, scheduler_cls=app.conf.beat_scheduler, schedule_filename=file).scheduler
    assert isinstance(scheduler, Scheduler)
    yield scheduler
    scheduler.close()
    lose_messages()


def test_every_task_is_sent_at_the_start_and_not_again_before_its_interval(schedule: Scheduler) -> None:
    tasks = len(app.conf.beat_schedule)
    pause = schedule.tick()
    assert queued("maintenance") == tasks
    assert 0 < pause <= min(entry["schedule"] for entry in app.conf.beat_schedule.values())
    assert schedule.file.exists()

    schedule.tick()
    assert queued("maintenance") == tasks


def test_a_task_is_sent_when_it_is_due(schedule: Scheduler) -> None:
    schedule.tick()
    lose_messages()
    schedule.due["exports.purge"] = 0
    schedule.tick()
    assert queued("maintenance") == 1


def test_a_task_that_could_not_be_sent_is_tried_again_soon(
    schedule: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schedule.schedule["exports.purge"], "options", {"serializer": "unknown"})
        assert schedule.tick() <= RETRY_SECONDS
    assert queued("maintenance") == len(app.conf.beat_schedule) - 1
