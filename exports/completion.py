"""The end of a job whose chunks are all done: one delivered object, one receipt, exactly once.

Completion is leased like a chunk, and repeatable: an attempt that dies leaves an object under its own token, which
no receipt names and the sweep deletes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import orjson
import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now
from structlog.contextvars import bound_contextvars
from zipstream import ZIP_DEFLATED, ZIP_STORED, ZipStream

from config import storage
from exports import dispatch, encoding, leases, planning, receipts
from exports.errors import BundleFailed, LeaseLost
from exports.heartbeat import Heartbeat
from exports.models import Chunk, Job
from exports.planning import Pair
from exports.states import JobStatus

log = structlog.get_logger(__name__)

# Delivered objects live here, apart from every dataset: a base path never begins with an underscore.
PREFIX = "_receipts"
READERS = 8
# Files up to this size are fetched ahead of their turn, so that a bundle of many small ones does not wait for each.
SMALL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The object that a receipt will name."""

    stored: storage.StoredObject
    content_type: str
    file_name: str


def complete(job_id: UUID) -> None:
    """Bundle a job's files and issue its receipt, if that is to be done and nobody else is at it."""
    token = claim(job_id)
    if token is None:
        return
    job = Job.objects.select_related("dataset").get(pk=job_id)
    with bound_contextvars(job_id=str(job_id)):
        try:
            with Heartbeat(partial(renew, job_id, token), on_loss=lambda: None) as heartbeat:
                delivery = bundle(job, token, heartbeat)
            issue(job, token, delivery)
        except LeaseLost:
            log.warning("completion_lost")
        except BundleFailed:
            adopt_newer_files(job)
            fail(job, token, "a file was replaced or deleted")
        except storage.StorageError:
            fail(job, token, "the object store did not answer")
        except Exception:
            fail(job, token, "unexpected error")
            raise


def due() -> list[UUID]:
    """Return the jobs whose chunks are all done and whose receipt nobody is working on."""
    free = Q(completion_lease_until=None) | Q(completion_lease_until__lt=Now())
    return list(Job.objects.ready_to_complete().filter(free).values_list("pk", flat=True)[:100])


# ---- Lease ----------------------------------------------------------------------------------------------------------

CLAIM = """
UPDATE exports_jobs
SET completion_token = nextval('exports_fence_seq'), completion_attempts = completion_attempts + 1,
    completion_lease_until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE job_id = %(job)s AND status IN ('running', 'retrying') AND done = total
  AND (completion_lease_until IS NULL OR completion_lease_until < clock_timestamp())
RETURNING completion_token
"""

RENEW = """
UPDATE exports_jobs SET completion_lease_until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
RETURNING job_id
"""

SUCCEED = """
UPDATE exports_jobs
SET status = 'success', finished_at = clock_timestamp(), completion_token = NULL, completion_lease_until = NULL,
    error_code = '', error_detail = ''
WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
RETURNING job_id
"""

# Not yet the last attempt: the lease's end is when the reaper hints the next one.
FAIL = """
UPDATE exports_jobs
SET status = CASE WHEN completion_attempts >= %(attempts)s THEN 'failed' ELSE status END,
    finished_at = CASE WHEN completion_attempts >= %(attempts)s THEN clock_timestamp() END,
    error_code = 'EXPORT_BUNDLE_FAILED', error_detail = %(detail)s, completion_token = NULL,
    completion_lease_until = clock_timestamp() + %(delay)s * interval '1 second'
WHERE job_id = %(job)s AND completion_token = %(token)s AND status IN ('running', 'retrying')
RETURNING status
"""


def claim(job_id: UUID) -> int | None:
    """Take the completion of a job whose chunks are all done. None: not due, ended, or somebody has it."""
    token: int | None = _scalar(CLAIM, job=job_id, lease=settings.SLUICE.export_lease_seconds)
    return token


def renew(job_id: UUID, token: int) -> None:
    if not _scalar(RENEW, job=job_id, token=token, lease=settings.SLUICE.export_lease_seconds):
        raise LeaseLost


def issue(job: Job, token: int, delivery: Delivery) -> None:
    """Success and receipt in one transaction, under the token. Raises LeaseLost when somebody else issued it."""
    with transaction.atomic():
        if not _scalar(SUCCEED, job=job.job_id, token=token):
            raise LeaseLost
        job.refresh_from_db()
        receipts.issue(job, delivery.stored, content_type=delivery.content_type, file_name=delivery.file_name)
    log.info("job_succeeded", chunks=job.total, rows=job.rows, bytes=job.bytes)


def fail(job: Job, token: int, detail: str) -> None:
    delay = leases.backoff(job.completion_attempts)
    status = _scalar(
        FAIL, job=job.job_id, token=token, detail=detail, attempts=settings.SLUICE.export_max_attempts, delay=delay
    )
    log.error("completion_failed", detail=detail, status=status)
    if status != JobStatus.FAILED:
        dispatch.completion(job.job_id, delay=delay)


# Another job replaced a file between our chunk's end and our bundle. What lies there now is as good: the same slice,
# read later. The chunks take it over, and the job's sums follow.
ADOPT = """
WITH newer AS (
    UPDATE exports_chunk c
    SET etag = f.etag, sha256 = f.sha256, rows = f.rows, bytes = f.bytes, header_bytes = f.header_bytes,
        data_as_of = f.data_as_of
    FROM exports_file f
    WHERE c.job_id = %(job)s AND c.status = 'done' AND f.path = c.path AND f.schema_version = %(version)s
      AND f.etag <> c.etag
    RETURNING c.id, f.rows, f.bytes
), gain AS (
    SELECT sum(n.rows - c.rows) AS rows, sum(n.bytes - c.bytes) AS bytes, count(*) AS files
    FROM newer n JOIN exports_chunk c ON c.id = n.id
)
UPDATE exports_jobs j SET rows = j.rows + gain.rows, bytes = j.bytes + gain.bytes
FROM gain WHERE j.job_id = %(job)s AND gain.files > 0 RETURNING j.job_id
"""


def adopt_newer_files(job: Job) -> None:
    _scalar(ADOPT, job=job.job_id, version=job.schema_version)


def _scalar(statement: str, **values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row = cursor.fetchone()
    return row[0] if row else None


# ---- Bundle ---------------------------------------------------------------------------------------------------------


def bundle(job: Job, token: int, heartbeat: Heartbeat) -> Delivery:
    """Make the delivered object: its own copy, so that later runs never change promised bytes."""
    if job.delivery == "single" and job.total == 1:
        return copy_of_one(job, token)
    file_name, content_type, blocks = BUNDLES[job.delivery](job)
    with storage.Upload(
        object_key(job, token, file_name),
        content_type=content_type,
        metadata={"job": str(job.job_id), "token": str(token)},
        if_match=None,
        checkpoint=heartbeat.check,
    ) as upload:
        for block in blocks:
            upload.write(block)
        return Delivery(stored=upload.commit(), content_type=content_type, file_name=file_name)


def object_key(job: Job, token: int, file_name: str) -> str:
    """The token keeps two attempts apart: a stale one can only leave an orphan."""
    return f"{PREFIX}/{job.job_id}/{token}/{file_name}"


def copy_of_one(job: Job, token: int) -> Delivery:
    chunk = job.chunks.get()
    file_name = planning.file_name(pair_of(chunk), job.shape).rpartition("/")[2]
    content_type = encoding.content_type(job.shape)
    try:
        stored = storage.copy(
            chunk.path,
            object_key(job, token, file_name),
            if_match_source=chunk.etag,
            content_type=content_type,
            sha256=chunk.sha256,
        )
    except (storage.Missing, storage.Changed) as error:
        raise BundleFailed from error
    return Delivery(stored=stored, content_type=content_type, file_name=file_name)


def zip_of_files(job: Job) -> tuple[str, str, Iterable[bytes]]:
    """The files under YYYY/MM/DD/, and manifest.json."""
    archive = ZipStream(
        compress_type=ZIP_STORED if job.compression == "gzip" else ZIP_DEFLATED,
        compress_level=None if job.compression == "gzip" else encoding.GZIP_LEVEL,
    )
    return f"{base_name(job)}.zip", "application/zip", _zipped(job, archive)


def _zipped(job: Job, archive: ZipStream) -> Iterator[bytes]:
    for chunk, blocks in contents(job):
        archive.add(blocks, planning.file_name(pair_of(chunk), job.shape))
        yield from archive.file()
    archive.add(b"".join(manifest_blocks(job)), "manifest.json")
    yield from archive.finalize()


def manifest_of_files(job: Job) -> tuple[str, str, Iterable[bytes]]:
    return f"{base_name(job)}.manifest.json", "application/json", manifest_blocks(job)


def joined_files(job: Job) -> tuple[str, str, Iterable[bytes]]:
    """One file of all: one header, then every file's rows. JSON documents become one array."""
    blocks = _json_array(job) if job.format == "json" else _one_header(job)
    return f"{base_name(job)}{job.shape.extension}", encoding.content_type(job.shape), blocks


def _one_header(job: Job) -> Iterator[bytes]:
    for _, blocks in contents(job, without_header=True):
        yield from blocks


def _json_array(job: Job) -> Iterator[bytes]:
    for chunk, blocks in contents(job):
        yield _packed(job, b"[\n" if chunk.seq == 0 else b",\n")
        yield from blocks
    yield _packed(job, b"]\n")


def _packed(job: Job, text: bytes) -> bytes:
    return b"".join(encoding.gzip([text])) if job.compression == "gzip" else text


BUNDLES = {"zip": zip_of_files, "manifest": manifest_of_files, "single": joined_files}


def base_name(job: Job) -> str:
    return f"{job.dataset.name}-{job.job_id}"


def pair_of(chunk: Chunk) -> Pair:
    return Pair(chunk.key, chunk.effective_date)


def manifest_blocks(job: Job) -> Iterator[bytes]:
    """The manifest as JSON, a line a file, never all of it in memory."""
    facts = {
        "jobId": job.job_id,
        "dataset": job.dataset.name,
        "schemaVersion": job.schema_version,
        "format": job.format,
        "compression": job.compression,
        "csv": job.shape.dialect.as_json(),
    }
    yield orjson.dumps(facts)[:-1] + b',"files":['
    for chunk in job.chunks.in_request_order().iterator(chunk_size=1000):
        yield (b",\n" if chunk.seq else b"\n") + orjson.dumps(manifest_entry(job, chunk), option=orjson.OPT_UTC_Z)
    yield b"\n]}\n"


def manifest_entry(job: Job, chunk: Chunk) -> dict[str, Any]:
    return {
        "key": chunk.key,
        "effectiveDate": chunk.effective_date,
        "fileName": planning.file_name(pair_of(chunk), job.shape),
        "rows": chunk.rows,
        "bytes": chunk.bytes,
        "sha256": chunk.sha256,
        "source": chunk.source,
        "dataAsOf": chunk.data_as_of,
        "url": f"/exports/{job.job_id}/files/{chunk.key}/{chunk.effective_date}",
    }


# ---- Reading the files ----------------------------------------------------------------------------------------------


def contents(job: Job, *, without_header: bool = False) -> Iterator[tuple[Chunk, Iterable[bytes]]]:
    """Yield every chunk with its file's bytes, in request order; without_header: only the first keeps its header.

    Small files are fetched ahead by a few threads; memory is bounded by READERS x SMALL_BYTES.
    """
    waiting: deque[tuple[Chunk, int, Future[bytes] | None]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for chunk in job.chunks.in_request_order().iterator(chunk_size=1000):
            start = chunk.header_bytes if without_header and chunk.seq else 0
            small = (chunk.bytes or 0) <= SMALL_BYTES
            waiting.append((chunk, start, pool.submit(_whole, chunk, start) if small else None))
            if len(waiting) >= READERS:
                yield _next(*waiting.popleft())
        for each in waiting:
            yield _next(*each)


def _next(chunk: Chunk, start: int, ahead: Future[bytes] | None) -> tuple[Chunk, Iterable[bytes]]:
    return chunk, [ahead.result()] if ahead else _blocks(chunk, start)


def _whole(chunk: Chunk, start: int) -> bytes:
    return b"".join(_blocks(chunk, start))


def _blocks(chunk: Chunk, start: int) -> Iterator[bytes]:
    """The file's bytes, and only those that the chunk ended with: a file that changed since is an error."""
    if start == chunk.bytes:
        return
    try:
        yield from storage.read(chunk.path, if_match=chunk.etag, start=start)
    except (storage.Missing, storage.Changed) as error:
        raise BundleFailed from error
