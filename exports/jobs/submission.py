"""Submission of exports. One transaction charges the quota and creates the job and its chunks."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.db import connection, transaction

from config.platform.built_in_datasets import BuiltInDataset
from config.platform.db import clock, sql
from config.platform.http import audit
from config.platform.http.idempotency import Idempotency
from config.platform.http.problems import BadInput, InputError
from config.platform.observability import tracing
from exports.core import metrics, planning, wakeups
from exports.core.planning import Pair, Shape
from exports.core.states import ChunkStatus, JobStatus
from exports.delivery.links import UNBOUND, ClientBinding
from exports.jobs import quotas, schemas, turns
from exports.models import Dataset, Job
from exports.models.job import Reuse

log = structlog.get_logger(__name__)

CHUNKS_AT_ONCE = 10_000  # per statement, so that each takes less than a second


def parts(total: int) -> list[range]:
    """Split the positions of a job's chunks into ranges of at most CHUNKS_AT_ONCE, one for each statement."""
    return [range(first, min(first + CHUNKS_AT_ONCE, total)) for first in range(0, total, CHUNKS_AT_ONCE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A validated request, with all defaults filled in."""

    dataset: Dataset
    pairs: list[Pair]
    duplicates: int
    shape: Shape
    delivery: str  # single | zip | manifest
    reuse: str
    allow_degraded: bool
    delivery_ttl: int | None = None  # seconds; None: EXPORT_DELIVERY_TTL_SECONDS
    filters: dict[str, Any] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The user who submits a job, and the context of the request."""

    user_id: int
    request_id: str = ""
    binding: ClientBinding = field(default_factory=lambda: UNBOUND)  # for the job's link
    idempotency: Idempotency | None = None
    schedule_id: UUID | None = None  # the schedule that submits the job
    planned_at: datetime | None = None  # the planned time of the schedule


class DatasetDeleted(BadInput):
    """The dataset was deleted after the request was validated."""

    def __init__(self) -> None:
        super().__init__(InputError(pointer="/dataset", code="unknown_dataset", detail="Dataset not found."))


def submit(read: Callable[[], ExportRequest], caller: Caller) -> tuple[Job, bool]:
    """Create a job and its chunks, charge the quota, and wake workers after the commit.

    Return the job, and whether an earlier request with the same idempotency key created it. `read` returns the
    validated request. It is not called if the job exists already, because the same request may be invalid by now.

    Each statement processes at most CHUNKS_AT_ONCE chunks. If the broker does not respond, the reaper sends the wake-up
    messages later. Raises QuotaExceeded, KeyReused, InFlight, and DatasetDeleted, and writes nothing in these cases.
    """
    idempotency = caller.idempotency
    if idempotency and (job := idempotency.find(Job.objects.all(), user_id=caller.user_id)):
        return job, True
    request = read()
    paths = object_keys(request)
    with transaction.atomic():
        if idempotency and (job := idempotency.claim(Job.objects.all(), user_id=caller.user_id)):
            return job, True
        day = quotas.debit(user_id=caller.user_id, jobs=1, chunks=len(request.pairs))
        rank = turns.next_rank(user_id=caller.user_id, dataset_id=request.dataset.pk)
        if rank is None:
            raise DatasetDeleted
        job = create_job(request, caller, charged_on=day, rank=rank)
        reusable = reusable_paths(request, paths)
        copy_chunks(job, request.pairs, paths, reusable)
        audit.record_change(job_id=job.pk)
    metrics.count_job_status(JobStatus.PENDING)
    log.info("job_accepted", job_id=str(job.job_id), chunks=job.total, maybe_reusable=len(reusable))
    transaction.on_commit(lambda: wakeups.chunks(waiting=job.total - len(reusable)))
    transaction.on_commit(lambda: wakeups.reusable(waiting=len(reusable)))
    return job, False


def object_keys(request: ExportRequest) -> list[str]:
    """Return the object keys of the files. Jobs of built-in datasets share no files, because rows differ by user."""
    folder = request.dataset.base_path
    if request.dataset.built_in:
        folder += f"/{uuid4()}"
    return [planning.object_key(folder, pair, request.shape) for pair in request.pairs]


def built_in_pair(built_in: BuiltInDataset, filters: Mapping[str, Any]) -> Pair:
    """Return the key and date of the only chunk of a built-in dataset's export. Without `dateTo`, the date is today."""
    last = filters.get("dateTo")
    return Pair(built_in.key(filters), date.fromisoformat(last) if last else clock.now().date())


def create_job(request: ExportRequest, caller: Caller, *, charged_on: date, rank: int) -> Job:
    dialect = request.shape.dialect
    return Job.objects.create(
        user_id=caller.user_id,
        request_id=caller.request_id,
        schedule_id=caller.schedule_id,
        planned_at=caller.planned_at,
        traceparent=tracing.traceparent(),
        charged_on=charged_on,
        rank=rank,
        **caller.binding,
        **(caller.idempotency.columns if caller.idempotency else {}),
        name=request.name,
        dataset=request.dataset,
        schema_version=request.dataset.schema_version,
        function=request.dataset.function,
        statement_timeout=request.dataset.statement_timeout,
        allow_writes=request.dataset.allow_writes,
        format=request.shape.format,
        compression=request.shape.compression,
        dialect={} if dialect.is_default else asdict(dialect),
        columns=list(request.shape.columns) or None,
        delivery=request.delivery,
        reuse=request.reuse,
        allow_degraded=request.allow_degraded,
        filters=request.filters,
        ttl=request.delivery_ttl or settings.SLUICE.export_delivery_ttl_seconds,
        total=len(request.pairs),
        duplicates=request.duplicates,
    )


# An estimate: the worker that processes the chunk checks that the object exists and is unchanged.
REUSABLE_PATHS = """
SELECT f.path FROM exports_file f JOIN exports_dataset d ON d.id = %(dataset)s
WHERE f.path = ANY(%(paths)s) AND f.dataset_id IS NOT DISTINCT FROM d.id AND f.schema_version = %(version)s
  AND (d.reuse_max_age IS NULL OR f.data_as_of > clock_timestamp() - d.reuse_max_age * interval '1 second')
"""


def reusable_paths(request: ExportRequest, paths: list[str]) -> set[str]:
    """Return the paths with a file that this request may reuse."""
    if request.reuse != Reuse.IF_PRESENT:
        return set()
    dataset = request.dataset
    found: set[str] = set()
    for part in parts(len(paths)):
        some = paths[part.start : part.stop]
        rows = sql.rows(REUSABLE_PATHS, dataset=dataset.pk, paths=some, version=dataset.schema_version)
        found.update(row["path"] for row in rows)
    return found


def preview(request: ExportRequest) -> schemas.Preview:
    """Return the effect that `submit` would have for this request. `reusable` is an estimate, as in REUSABLE_PATHS."""
    paths = object_keys(request)
    reusable = reusable_paths(request, paths)
    return {
        "totalChunks": len(paths),
        "duplicates": request.duplicates,
        "reusable": len(reusable),
        "quotaCost": len(paths) - len(reusable),
    }


# Columns with values of the chunk, and the initial values of the other columns: COPY does not apply Django's defaults.
PLANNED = ("job_id", "dataset_id", "seq", "key", "effective_date", "path", "charged_on", "rank", "reusable")
INITIAL = {
    "status": ChunkStatus.PENDING.value,
    "attempts": 0,
    "source": "",
    "sha256": "",
    "etag": "",
    "header_bytes": 0,
    "error_code": "",
    "error_detail": "",
}
COPY_CHUNKS = f"COPY exports_chunk ({', '.join((*PLANNED, *INITIAL))}) FROM STDIN"


def copy_chunks(job: Job, pairs: list[Pair], paths: list[str], reusable: set[str]) -> None:
    """Insert the chunk rows by COPY, which takes a tenth of a second for 10,000 rows.

    For a large job, each COPY checks the foreign keys of its rows, so that the commit does not check them all at once.
    """
    initial = tuple(INITIAL.values())
    with connection.cursor() as cursor:
        if len(pairs) > CHUNKS_AT_ONCE:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for part in parts(len(pairs)):
            with cursor.copy(COPY_CHUNKS) as copy:
                for seq in part:
                    planned = (job.job_id, job.dataset_id, seq, *pairs[seq], paths[seq], job.charged_on, job.rank + seq)
                    copy.write_row((*planned, paths[seq] in reusable, *initial))
