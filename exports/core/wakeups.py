"""Wake-up messages for the workers of exports.

The reaper passes `again`, which fills the queue up to the limit instead of adding to it.
"""

from uuid import UUID

from django.conf import settings

from config.platform.wakeups import send

RUN_CHUNKS = "exports.run_chunks"
REUSE_FILES = "exports.reuse_files"
COMPLETE_JOB = "exports.complete_job"
MAX_REUSERS = 4  # workers that check files at the same time; slots do not limit them


def chunks(*, waiting: int, delay: float = 0, again: bool = False) -> None:
    """Wake workers for waiting chunks: at most as many as there are slots."""
    workers = min(waiting, settings.SLUICE.export_db_slots)
    send(RUN_CHUNKS, *[{}] * workers, countdown=delay, fill_to=workers if again else None)


def reusable(*, waiting: int, again: bool = False) -> None:
    """Wake a few workers to check reusable files."""
    workers = min(-(-waiting // 200), MAX_REUSERS)
    send(REUSE_FILES, *[{}] * workers, fill_to=workers if again else None)


def completion(*job_ids: UUID, delay: float = 0, again: bool = False) -> None:
    """Wake a worker for each of these jobs. The worker builds the job's delivery, and then those of other jobs."""
    messages = [{"job_id": str(job_id)} for job_id in job_ids]
    send(COMPLETE_JOB, *messages, countdown=delay, fill_to=settings.SLUICE.export_db_slots if again else None)
