"""Scheduler of the periodic tasks, independent of the system clock.

Celery's schedulers compare times of the system clock and store them in a file. After the clock was an hour ahead, they
send nothing for an hour, even if the clock is corrected and the scheduler restarted. This scheduler measures intervals
with the monotonic clock, and sends every task once when it starts. The database decides whether a task is due.
"""

import time
from pathlib import Path
from typing import Any

import structlog
from celery import beat

from config.platform.observability import logs

log = structlog.get_logger(__name__)

RETRY_SECONDS = 5
MAX_PAUSE_SECONDS = 30  # between ticks; a health check reads the age of the file that each tick touches


class Scheduler(beat.Scheduler):
    """Scheduler that touches the file of `celery beat -s` at each tick. Its age shows whether the scheduler runs."""

    def __init__(self, *args: Any, schedule_filename: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.file = Path(schedule_filename)
        self.due: dict[str, float] = {}

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Send the tasks that are due. Return the seconds until the next call."""
        for name, entry in self.schedule.items():
            if self.due.get(name, 0) <= time.monotonic():
                self.due[name] = time.monotonic() + self.send(entry)
        self.file.touch()
        return min(MAX_PAUSE_SECONDS, max(0, min(self.due.values()) - time.monotonic()))

    def send(self, entry: beat.ScheduleEntry) -> float:
        """Send a task. Return the seconds until it is due again."""
        try:
            self.apply_async(entry, producer=self.producer, advance=False)
        except beat.SchedulingError as error:
            log.warning("task_not_sent", task=entry.task, error=logs.describe(error.__context__ or error))
            return RETRY_SECONDS
        interval: Any = entry.schedule  # all of ours are intervals
        return float(interval.run_every.total_seconds())
