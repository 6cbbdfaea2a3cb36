"""The progress of a job in API responses."""

from django.utils import timezone

from exports.jobs import representation
from exports.models import Job


def test_the_percentage_is_100_only_when_every_chunk_has_ended() -> None:
    """A25."""
    job = Job(total=10_000, done=9_996, failed=3)
    job.running = 1
    almost = representation.progress(job, timezone.now())
    job.done, job.running = 9_997, 0
    ended = representation.progress(job, timezone.now())

    assert (almost["running"], almost["percent"]) == (1, 99.9)
    assert (ended["running"], ended["percent"]) == (0, 100.0)
