"""Celery's entrance: translate, one call. Keyword arguments, and room for later ones, so that old and new workers can
run side by side during a deploy."""

from uuid import UUID

from celery import shared_task
from django.conf import settings

from exports import completion, courier, deliveries, dispatch, execution, sweeper


@shared_task(name=dispatch.RUN_CHUNKS)
def run_chunks(**_later: object) -> None:
    execution.drain()


@shared_task(name=dispatch.REUSE_FILES)
def reuse_files(**_later: object) -> None:
    """A hint of another kind, for as many workers as it takes; whoever wakes does both in turns."""
    execution.drain()


@shared_task(name=dispatch.COMPLETE_JOB)
def complete_job(*, job_id: str, **_later: object) -> None:
    completion.complete(UUID(job_id))


@shared_task(name=dispatch.DELIVER)
def deliver(**_later: object) -> None:
    deliveries.fan_out()
    courier.drain()


@shared_task(name="exports.reap")
def reap(**_later: object) -> None:
    sweeper.once("reap", every=settings.SLUICE.export_reaper_seconds, run=sweeper.reap)


@shared_task(name="exports.sweep")
def sweep(**_later: object) -> None:
    sweeper.once("sweep", every=3600, run=sweeper.sweep)


@shared_task(name="exports.purge")
def purge(**_later: object) -> None:
    sweeper.once("purge", every=86400, run=sweeper.purge)
