import uuid
from datetime import date

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import Case, Count, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Coalesce, Upper

from config.platform.db import clock
from config.platform.db.search import begins_with
from exports.core.planning import Dialect, Shape
from exports.core.states import JOB_ACTIVE, JOB_ENDED, ChunkStatus, JobStatus
from exports.models.chunk import Chunk
from exports.models.dataset import Format


class Compression(models.TextChoices):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class DeliveryKind(models.TextChoices):
    SINGLE = "single"
    ZIP = "zip"
    MANIFEST = "manifest"


class Reuse(models.TextChoices):
    IF_PRESENT = "if-present"
    NEVER = "never"


MAX_NAME = 200  # characters
TRIGRAM_LENGTH = 3
UNSUCCESSFUL = Q(status__in=[JobStatus.CANCELLED, JobStatus.FAILED])


class JobQuerySet(models.QuerySet["Job"]):
    def active(self) -> "JobQuerySet":
        return self.filter(status__in=JOB_ACTIVE)

    def ended(self) -> "JobQuerySet":
        return self.filter(status__in=JOB_ENDED)

    def found_by(self, text: str) -> "JobQuerySet":
        """Filter by a part of the name, or by the beginning of the ID."""
        return self.filter(Job.matches(text))

    def ready_to_complete(self) -> "JobQuerySet":
        """Return the active jobs whose chunks are all done."""
        return self.active().filter(done=F("total"))

    def with_running(self) -> "JobQuerySet":
        """Annotate `running`, the number of running chunks. The query uses the index on job and status.

        Defers `filters`, which can be a megabyte long and is part of no response.
        """
        chunks = Chunk.objects.filter(job=OuterRef("pk"), status=ChunkStatus.RUNNING).order_by().values("job")
        return self.defer("filters").annotate(
            running=Coalesce(Subquery(chunks.annotate(n=Count("pk")).values("n")), Value(0))
        )

    def with_span(self) -> "JobQuerySet":
        """Annotate the first and the last chunk in request order: `first_key`, `first_day`, `last_key`, `last_day`."""
        first = Chunk.objects.filter(job_id=OuterRef("pk"), seq=0)
        last = Chunk.objects.filter(job_id=OuterRef("pk"), seq=OuterRef("total") - 1)
        return self.annotate(
            first_key=Subquery(first.values("key")),
            first_day=Subquery(first.values("effective_date")),
            last_key=Subquery(last.values("key")),
            last_day=Subquery(last.values("effective_date")),
        )

    def with_queue_position(self) -> "JobQuerySet":
        """Annotate `queue_position`: the number of pending jobs that start before this one; 0 once it has started."""
        before = Q(rank__lt=OuterRef("rank")) | Q(rank=OuterRef("rank"), created_at__lt=OuterRef("created_at"))
        earlier = Job.objects.filter(before, status=JobStatus.PENDING).order_by().annotate(one=Value(1)).values("one")
        waiting = Coalesce(Subquery(earlier.annotate(n=Count("pk")).values("n")), Value(0))
        return self.annotate(queue_position=Case(When(status=JobStatus.PENDING, then=waiting), default=Value(0)))


class Job(models.Model):
    """An export. Its counters are changed only by the statements listed in docs/lifecycle.md."""

    job_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="export_jobs", db_index=False)
    name = models.CharField(max_length=MAX_NAME, default="", db_default="", blank=True)
    dataset = models.ForeignKey("exports.Dataset", models.PROTECT, related_name="jobs")
    # The dataset's settings when the job was accepted: later changes of the dataset do not apply to the job. A job that
    # was created before these columns existed has no function here, and uses the dataset's settings.
    schema_version = models.PositiveIntegerField(help_text="Schema version of the dataset at the time of the request.")
    function = models.CharField(max_length=255, db_default="", blank=True)
    statement_timeout = models.PositiveIntegerField(null=True, blank=True, help_text="Seconds")
    allow_writes = models.BooleanField(default=False, db_default=False)

    format = models.CharField(max_length=8, choices=Format)
    compression = models.CharField(max_length=8, choices=Compression, default=Compression.NONE)
    delivery = models.CharField(max_length=8, choices=DeliveryKind)
    dialect = models.JSONField(default=dict, blank=True, help_text="CSV options that differ from the default")
    columns = ArrayField(
        models.TextField(), null=True, blank=True, help_text="Selected columns, in their order. Empty: all columns."
    )
    reuse = models.CharField(max_length=12, choices=Reuse, default=Reuse.IF_PRESENT)
    allow_degraded = models.BooleanField(default=True)
    filters = models.JSONField(
        null=True, blank=True, help_text="Filters of the request. Null if the request listed items."
    )
    request_id = models.CharField(
        max_length=64, db_default="", blank=True, help_text="ID of the request that created the job."
    )
    traceparent = models.CharField(
        max_length=55, db_default="", blank=True, help_text="Traceparent of that request, if it was traced."
    )
    # Not a foreign key: a job keeps the ID of a deleted schedule.
    schedule_id = models.UUIDField(null=True, blank=True, help_text="Schedule that created the job.")
    planned_at = models.DateTimeField(null=True, blank=True, help_text="Planned time of the schedule.")
    ttl = models.PositiveIntegerField(help_text="Lifetime of the receipt in seconds.")
    idempotency_key = models.CharField(max_length=255, db_default="", blank=True)
    fingerprint = models.CharField(max_length=64, db_default="", blank=True, help_text="SHA-256 of the request body.")
    charged_on = models.DateField(null=True, blank=True, help_text="Day whose quota was charged and receives refunds.")
    network = models.CharField(
        max_length=49, db_default="", blank=True, help_text="Network that the first link is bound to."
    )
    agent = models.CharField(
        max_length=16, db_default="", blank=True, help_text="Digest of the User-Agent that the first link is bound to."
    )

    status = models.CharField(max_length=12, choices=JobStatus, default=JobStatus.PENDING)
    rank = models.BigIntegerField(default=0, db_default=0, help_text="Rank of its first chunk in the queue.")
    total = models.PositiveIntegerField()
    duplicates = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    retrying = models.PositiveIntegerField(default=0)
    reused = models.PositiveIntegerField(default=0)
    degraded = models.PositiveIntegerField(default=0)
    rows = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    error_code = models.CharField(max_length=40, default="", blank=True)
    error_detail = models.CharField(max_length=200, default="", blank=True)

    # From the database's clock, like the other times. A web server's clock may be wrong; durations would be negative.
    created_at = models.DateTimeField(default=clock.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # For the estimate of the remaining time, which uses the pace since the last retry.
    resumed_at = models.DateTimeField(null=True, blank=True, help_text="Time of the last retry.")
    resumed_ended = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Chunks that had ended at the last retry."
    )

    completion_token = models.BigIntegerField(null=True, blank=True)
    completion_lease_until = models.DateTimeField(null=True, blank=True)
    refused_at = models.DateTimeField(
        null=True, blank=True, help_text="When the object storage first refused the delivery."
    )
    completion_attempts = models.PositiveSmallIntegerField(default=0)
    event_seq = models.BigIntegerField(db_default=0, help_text="Number of the newest event.")

    objects = JobQuerySet.as_manager()

    running: int  # annotated by `with_running`
    queue_position: int  # annotated by `with_queue_position`
    first_key: str  # this and the next three: annotated by `with_span`
    first_day: date
    last_key: str
    last_day: date

    class Meta:
        db_table = "exports_jobs"
        verbose_name = "export"  # the name on pages and in the admin's menu
        indexes = [
            models.Index(fields=["user", "-created_at", "-job_id"], name="exports_jobs_of_user"),
            models.Index(fields=["-created_at", "-job_id"], name="exports_jobs_newest"),
            # For filtered lists. Without these indexes, finding a few old matches would scan all jobs of the user.
            models.Index(fields=["user", "status", "-created_at", "-job_id"], name="exports_jobs_of_status"),
            models.Index(fields=["user", "dataset", "-created_at", "-job_id"], name="exports_jobs_of_dataset"),
            # For the search by a part of the name, with the expression of `matches`. The index includes jobs without a
            # name: a partial index would have no statistics, so Postgres would use it even for frequent words.
            GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name="exports_jobs_name"),
            models.Index(
                fields=["status", "-created_at", "-job_id"], name="exports_jobs_not_success", condition=UNSUCCESSFUL
            ),
            models.Index(
                fields=["schedule_id", "-created_at", "-job_id"],
                name="exports_jobs_of_schedule",
                condition=Q(schedule_id__isnull=False),
            ),
            # For the reaper. Nearly all jobs have ended, so an index of active jobs is small.
            models.Index(fields=["status"], name="exports_jobs_active", condition=Q(status__in=sorted(JOB_ACTIVE))),
            models.Index(fields=["finished_at"], name="exports_jobs_finished"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "idempotency_key"],
                name="exports_jobs_idempotency",
                condition=~Q(idempotency_key=""),
            ),
            models.CheckConstraint(
                name="exports_jobs_counts_fit",
                condition=Q(total__gte=F("done") + F("failed") + F("cancelled") + F("retrying")),
            ),
            models.CheckConstraint(
                name="exports_jobs_cancelled_is_whole",
                condition=~Q(status=JobStatus.CANCELLED) | Q(total=F("done") + F("failed") + F("cancelled")),
            ),
            models.CheckConstraint(
                name="exports_jobs_success_is_whole",
                condition=~Q(status=JobStatus.SUCCESS) | Q(done=F("total")),
            ),
        ]

    def __str__(self) -> str:
        return str(self.job_id)

    @staticmethod
    def matches(text: str) -> Q:
        """Return the condition of `found_by`.

        The index contains trigrams. A text of fewer than three characters is searched only at the beginning of names.
        """
        name = Q(**{"name__icontains" if len(text) >= TRIGRAM_LENGTH else "name__istartswith": text})
        by_id = begins_with("job_id", text)
        return name | by_id if by_id else name

    @property
    def shape(self) -> Shape:
        return Shape(
            format=self.format,
            compression=self.compression,
            dialect=Dialect(**self.dialect),
            columns=tuple(self.columns or ()),
        )

    @property
    def milliseconds(self) -> float:
        """Milliseconds from submission to end, or 0 for an active job."""
        return (self.finished_at - self.created_at).total_seconds() * 1000 if self.finished_at else 0

    @property
    def has_ended(self) -> bool:
        return self.status in JOB_ENDED
