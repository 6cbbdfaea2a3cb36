"""From a checked request to a job that is safe: quota, job and chunks in one transaction, then hints."""

from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction

from config.platform.db import sql
from config.platform.http.idempotency import Idempotency, KeyReused
from config.platform.observability import tracing
from exports.core import metrics, planning, wakeups
from exports.core.planning import Pair, Shape
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery.links import UNBOUND, Bound, Client, bound_to
from exports.jobs import quotas
from exports.models import Dataset, Job
from exports.models.job import Reuse

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What a client asked for, checked and complete."""

    dataset: Dataset
    pairs: list[Pair]
    duplicates: int
    shape: Shape
    delivery: str  # single | zip | manifest
    reuse: str
    allow_degraded: bool
    filters: dict[str, Any] | None = None


def submit(
    request: ExportRequest,
    *,
    user_id: int,
    request_id: str = "",
    client: Client | None = None,
    bound: Bound | None = None,
    idempotency: Idempotency | None = None,
) -> Job:
    """Write the job and its chunks, paid for, and wake workers once they are committed.

    Statements do not grow with the number of chunks. When the broker does not answer the job is safe all the same:
    the reaper sends the hints again. The `client` is who the job's link will be bound to; or `bound` says it, where
    somebody else asks in the owner's place.

    Raises QuotaExceeded; InFlight while another request with the same key is at this very place, and AlreadyMade when
    one has been here before. Then nothing is written.
    """
    paths = [planning.object_key(request.dataset.base_path, pair, request.shape) for pair in request.pairs]
    with transaction.atomic():
        if idempotency:
            idempotency.claim(scope=f"exports/{user_id}")
            if made := find(user_id, idempotency):
                raise AlreadyMade(made)
        day = quotas.debit(user_id=user_id, jobs=1, chunks=len(request.pairs))
        job = create_job(
            request,
            user_id=user_id,
            request_id=request_id,
            traceparent=tracing.parent(),
            charged_on=day,
            **(bound or (bound_to(client) if client else UNBOUND)),
            **({"idempotency_key": idempotency.key, "fingerprint": idempotency.fingerprint} if idempotency else {}),
        )
        reusable = paths_with_a_file(request, paths)
        copy_chunks(job, request.pairs, paths, reusable)
    metrics.job_moved(JobStatus.PENDING)
    log.info("job_accepted", job_id=str(job.job_id), chunks=job.total, maybe_reusable=len(reusable))
    transaction.on_commit(lambda: wake(total=job.total, reusable=len(reusable)))
    return job


class AlreadyMade(Exception):
    """A job was made under this Idempotency-Key while this request was read."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job


def find(user_id: int, idempotency: Idempotency) -> Job | None:
    """Return the job that this user has made under this key. Raises KeyReused when that was another request."""
    job = Job.objects.filter(user_id=user_id, idempotency_key=idempotency.key).first()
    if job and job.fingerprint != idempotency.fingerprint:
        raise KeyReused
    return job


def create_job(request: ExportRequest, **facts: Any) -> Job:
    dialect = request.shape.dialect
    return Job.objects.create(
        **facts,
        dataset=request.dataset,
        schema_version=request.dataset.schema_version,
        format=request.shape.format,
        compression=request.shape.compression,
        dialect={} if dialect.is_default else dialect.as_dict(),
        delivery=request.delivery,
        reuse=request.reuse,
        allow_degraded=request.allow_degraded,
        filters=request.filters,
        ttl=settings.SLUICE.export_link_ttl_seconds,
        total=len(request.pairs),
        duplicates=request.duplicates,
    )


# A guess that costs one look: whether the object is really there and unchanged is asked when the chunk's turn comes.
PATHS_WITH_A_FILE = """
SELECT f.path FROM exports_file f JOIN exports_dataset d ON d.id = %(dataset)s
WHERE f.path = ANY(%(paths)s) AND f.schema_version = %(version)s
  AND (d.reuse_max_age IS NULL OR f.data_as_of > clock_timestamp() - d.reuse_max_age * interval '1 second')
"""


def paths_with_a_file(request: ExportRequest, paths: list[str]) -> set[str]:
    """Return those of the paths where a file is known that the request would take."""
    if request.reuse != Reuse.IF_PRESENT:
        return set()
    dataset = request.dataset
    found = sql.rows(PATHS_WITH_A_FILE, dataset=dataset.pk, paths=paths, version=dataset.schema_version)
    return {row["path"] for row in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a request would do."""

    total_chunks: int
    duplicates: int
    reusable: int


def preview(request: ExportRequest) -> Preview:
    """Return what `submit` would do with this request, and change nothing.

    Reusable by the cache: that the objects are still there is looked at only when their turn comes.
    """
    paths = [planning.object_key(request.dataset.base_path, pair, request.shape) for pair in request.pairs]
    reusable = paths_with_a_file(request, paths)
    return Preview(total_chunks=len(paths), duplicates=request.duplicates, reusable=len(reusable))


# Where a new job starts in the queue: beside the chunk that is next now, as in start-time fair queueing. Its n-th
# chunk then competes with the n-th chunk from there of every job that waits: a small job is soon done behind a
# large one, and a stream of small ones cannot hold a large one back, as each starts where the large one has got to.
NEXT_RANK = """
SELECT coalesce(min(head.rank), 0) FROM exports_dataset d CROSS JOIN LATERAL (
    SELECT rank FROM exports_chunk c WHERE c.dataset_id = d.id AND c.status = 'pending' AND NOT c.reusable
    ORDER BY rank, id LIMIT 1
) head
"""


# What a chunk is by its plan, and what all begin with. COPY knows of no defaults that Django has.
PLANNED = ("job_id", "dataset_id", "seq", "key", "effective_date", "path", "rank", "reusable")
BEGINNING = {
    "status": ChunkStatus.PENDING.value,
    "attempts": 0,
    "source": "",
    "sha256": "",
    "etag": "",
    "header_bytes": 0,
    "error_code": "",
    "error_detail": "",
}
COPY_CHUNKS = f"COPY exports_chunk ({', '.join((*PLANNED, *BEGINNING))}) FROM STDIN"


def copy_chunks(job: Job, pairs: list[Pair], paths: list[str], reusable: set[str]) -> None:
    """Write the chunk rows by COPY: 10,000 take a tenth of a second, and one statement."""
    first_rank, beginning = sql.scalar(NEXT_RANK), tuple(BEGINNING.values())
    with connection.cursor() as cursor, cursor.copy(COPY_CHUNKS) as copy:
        for seq, (pair, path) in enumerate(zip(pairs, paths, strict=True)):
            planned = (job.job_id, job.dataset_id, seq, *pair, path, first_rank + seq, path in reusable)
            copy.write_row((*planned, *beginning))


def wake(*, total: int, reusable: int) -> None:
    if total > reusable:
        wakeups.chunks(waiting=total - reusable)
    if reusable:
        wakeups.reusable(waiting=reusable)
