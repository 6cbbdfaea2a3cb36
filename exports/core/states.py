"""The states of jobs and chunks, and which of them are final. `docs/lifecycle.md` draws the arrows."""

from django.db.models import TextChoices


class JobStatus(TextChoices):
    PENDING = "pending"  # accepted, no chunk was claimed yet; the API's contract calls it INIT, too
    RUNNING = "running"
    RETRYING = "retrying"  # running, and at least one chunk waits for its next attempt
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ChunkStatus(TextChoices):
    PENDING = "pending"
    RUNNING = "running"  # leased: exactly these carry a fencing token
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Source(TextChoices):
    """Where the bytes of a chunk that is done came from."""

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
