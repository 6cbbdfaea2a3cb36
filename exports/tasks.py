"""Celery tasks.

They ignore unknown keyword arguments (`_later`), so that a worker can run tasks that a newer release sent.
"""

from uuid import UUID

from celery import shared_task
from django.conf import settings

from config.platform.db import clock
from config.platform.webhooks import sender
from config.platform.webhooks.wakeups import DELIVER
from exports.api.serializers import ExportRequestSerializer
from exports.core import wakeups
from exports.jobs import webhook_events
from exports.maintenance import periodic
from exports.schedules import runs
from exports.worker import completion, execution


@shared_task(name=wakeups.RUN_CHUNKS)
def run_chunks(**_later: object) -> None:
    execution.drain()


@shared_task(name=wakeups.REUSE_FILES)
def reuse_files(**_later: object) -> None:
    """Run the same loop as `run_chunks`. The queue is separate to limit the number of workers that reuse files."""
    execution.drain()


@shared_task(name=wakeups.COMPLETE_JOB)
def complete_job(*, job_id: str, **_later: object) -> None:
    completion.drain(UUID(job_id))


@shared_task(name=DELIVER)
def deliver(**_later: object) -> None:
    webhook_events.fan_out()
    sender.drain()


@shared_task(name="exports.reap")
def reap(**_later: object) -> None:
    periodic.run_if_due("reap", every=settings.SLUICE.export_reaper_seconds, run=periodic.reap)


@shared_task(name="exports.run_schedules")
def run_schedules(**_later: object) -> None:
    periodic.run_if_due(
        "schedules",
        every=runs.EVERY_SECONDS,
        run=lambda: runs.run_due(ExportRequestSerializer.read, now=clock.now()),
    )


@shared_task(name="exports.sweep")
def sweep(**_later: object) -> None:
    periodic.run_if_due("sweep", every=3600, run=periodic.sweep)


@shared_task(name="exports.purge")
def purge(**_later: object) -> None:
    periodic.run_if_due("purge", every=86400, run=periodic.purge)
