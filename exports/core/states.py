"""The states of jobs and chunks. `docs/lifecycle.md` has their transitions."""

from django.db.models import TextChoices


class JobStatus(TextChoices):
    PENDING = "pending"  # accepted, but no chunk is claimed yet
    RUNNING = "running"
    RETRYING = "retrying"  # at least one chunk waits for its next attempt
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ChunkStatus(TextChoices):
    PENDING = "pending"
    RUNNING = "running"  # leased by a worker; only running chunks have a fencing token
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Source(TextChoices):
    """The origin of a finished chunk's bytes."""

    LIVE = "live"
    REUSED = "reused"
    SNAPSHOT = "snapshot"


class DownloadOutcome(TextChoices):
    """The result of one attempt to use a download link."""

    REDEEMED = "redeemed"
    INVALID = "link_invalid"
    EXPIRED = "link_expired"
    REVOKED = "link_revoked"
    MISMATCH = "link_mismatch"
    USED = "link_used"


JOB_ENDED = frozenset({JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.CANCELLED})
JOB_ACTIVE = frozenset(JobStatus) - JOB_ENDED
