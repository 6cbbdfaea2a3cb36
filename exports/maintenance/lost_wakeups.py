"""Replacement of lost wake-up messages, for chunks and completions that are ready to run."""

from typing import NamedTuple

from django.conf import settings

from config.platform.db import sql
from exports.core import wakeups
from exports.worker import completion


class WaitingWork(NamedTuple):
    ready: int  # at most the number of slots
    reusable: int  # at most 1,000
    free_slots: int


WAITING = """
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM exports_dataset d CROSS JOIN LATERAL (
                (SELECT 1 FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
                 LIMIT %(slots)s)
                UNION ALL
                (SELECT 1 FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'retrying'
                     AND c.available_at <= statement_timestamp() LIMIT %(slots)s)
            ) chunk LIMIT %(slots)s) ready) AS ready,
       (SELECT count(*) FROM (
            SELECT 1 FROM exports_chunk WHERE status = 'pending' AND reusable LIMIT 1000) reusable) AS reusable,
       (SELECT count(*) FROM exports_slot WHERE dataset_id IS NULL AND number <= %(slots)s AND token IS NULL)
           AS free_slots
"""


def waiting_work() -> WaitingWork:
    """Count the chunks that can run now, up to the limits of `WaitingWork`."""
    return WaitingWork(**sql.rows(WAITING, slots=settings.SLUICE.export_db_slots)[0])


def wake_workers() -> None:
    """Wake workers for chunks that can run now."""
    waiting = waiting_work()
    wakeups.chunks(waiting=min(waiting.ready, waiting.free_slots), again=True)
    wakeups.reusable(waiting=waiting.reusable, again=True)


def wake_completions() -> None:
    """Wake workers for jobs whose chunks are all done and whose completion has not been claimed."""
    wakeups.completion(*completion.unclaimed_jobs(), again=True)
