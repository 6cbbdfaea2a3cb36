from django.db import models
from django.db.models import Q

from exports.core.planning import Pair
from exports.core.states import ChunkStatus, Source


class ChunkQuerySet(models.QuerySet["Chunk"]):
    def in_request_order(self) -> "ChunkQuerySet":
        return self.order_by("seq")


class Chunk(models.Model):
    """One (key, effective date) pair of a job, which is exported to one file.

    `rank` orders the queue across all jobs: see `exports.jobs.turns`. `token` is the fencing token of the lease. Only
    running chunks have a lease. docs/lifecycle.md lists the statements that change the status.
    """

    job = models.ForeignKey("exports.Job", models.CASCADE, related_name="chunks", db_index=False)
    dataset = models.ForeignKey("exports.Dataset", models.PROTECT, related_name="+", db_index=False)
    seq = models.PositiveIntegerField(help_text="Position in the request, from 0.")
    key = models.CharField(max_length=255)
    effective_date = models.DateField()
    path = models.CharField(max_length=1024, help_text="Object key in the bucket")

    status = models.CharField(max_length=12, choices=ChunkStatus, default=ChunkStatus.PENDING)
    rank = models.BigIntegerField()
    reusable = models.BooleanField(
        default=False, help_text="A file may exist at the path: check it before calling the source."
    )
    attempts = models.PositiveSmallIntegerField(
        default=0, help_text="Counted by the claim, so an attempt of a killed worker counts too."
    )
    token = models.BigIntegerField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    refused_at = models.DateTimeField(
        null=True, blank=True, help_text="When the object storage first refused the file."
    )
    backend = models.CharField(
        max_length=63, default="", db_default="", blank=True, help_text="The slot's, of the latest call for the chunk."
    )
    available_at = models.DateTimeField(null=True, blank=True, help_text="When the next attempt may start")

    charged = models.BooleanField(db_default=True, help_text="Whether the quota charge can still be refunded.")
    charged_on = models.DateField(
        null=True, blank=True, help_text="Day whose quota was charged. Null for chunks of earlier releases: the job's."
    )

    source = models.CharField(max_length=8, choices=Source, default="", blank=True)
    rows = models.BigIntegerField(null=True, blank=True)
    bytes = models.BigIntegerField(null=True, blank=True)
    header_bytes = models.PositiveIntegerField(default=0, help_text="Length of the file's header in bytes, as stored.")
    sha256 = models.CharField(max_length=64, default="", blank=True)
    etag = models.CharField(max_length=80, default="", blank=True)
    data_as_of = models.DateTimeField(null=True, blank=True, help_text="When the source database was read.")
    pack = models.BigIntegerField(
        null=True, blank=True, help_text="The pack of its batch that has the file's bytes, by the batch's token."
    )
    pack_offset = models.IntegerField(null=True, blank=True, help_text="Position in that pack, in bytes.")
    error_code = models.CharField(max_length=40, default="", blank=True)
    error_detail = models.CharField(max_length=200, default="", blank=True)
    source_message = models.TextField(
        default="",
        db_default="",
        blank=True,
        help_text="Message of the source for the latest error. It may quote data.",
    )
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = ChunkQuerySet.as_manager()

    class Meta:
        db_table = "exports_chunk"
        indexes = [
            # The queue. A claim reads only the first chunk that isn't locked, however long the queue is.
            models.Index(
                fields=["dataset", "rank", "id"],
                name="exports_chunk_ready",
                condition=Q(status=ChunkStatus.PENDING, reusable=False),
            ),
            models.Index(
                fields=["rank", "id"],
                name="exports_chunk_reusable",
                condition=Q(status=ChunkStatus.PENDING, reusable=True),
            ),
            # For the rest of a batch of reusable chunks, which all belong to one job.
            models.Index(
                fields=["job", "seq"],
                name="exports_chunk_reusable_of_job",
                condition=Q(status=ChunkStatus.PENDING, reusable=True),
            ),
            models.Index(
                fields=["dataset", "available_at"],
                name="exports_chunk_waiting",
                condition=Q(status=ChunkStatus.RETRYING),
            ),
            models.Index(fields=["lease_until"], name="exports_chunk_leased", condition=Q(status=ChunkStatus.RUNNING)),
            models.Index(fields=["job", "status", "seq"], name="exports_chunk_of_status"),
            # For searches by staff. Chunks that succeed at the first attempt are never in this index.
            models.Index(fields=["error_code", "id"], name="exports_chunk_errors", condition=~Q(error_code="")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "seq"], name="exports_chunk_seq"),
            models.CheckConstraint(
                name="exports_chunk_running_has_lease",
                condition=Q(status=ChunkStatus.RUNNING, token__isnull=False, lease_until__isnull=False)
                | (~Q(status=ChunkStatus.RUNNING) & Q(token__isnull=True, lease_until__isnull=True)),
            ),
            models.CheckConstraint(
                name="exports_chunk_done_has_file",
                condition=~Q(status=ChunkStatus.DONE)
                | (Q(rows__isnull=False, bytes__isnull=False) & ~Q(sha256="") & ~Q(etag="") & ~Q(source="")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key} {self.effective_date}"

    @property
    def pair(self) -> Pair:
        return Pair(self.key, self.effective_date)
