"""Adoption of files that other jobs have stored at a chunk's path.

A file is adopted during an upload, after a failure of the source, or during a completion.

All jobs with the same dataset, key, date, and shape write to the same path. A newer file of the same schema version is
equally valid, so a chunk whose file was replaced adopts the newer file, and neither fails nor calls the source again.
If the base path of a dataset was changed, another dataset may write to the old paths. Files of other datasets are not
adopted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog
from django.db.models import QuerySet

from config.platform import storage
from config.platform.db import sql
from config.platform.heartbeat import LeaseLost
from exports.core import events
from exports.core.errors import FileGone, UploadConflict
from exports.jobs import quotas
from exports.models import Chunk, File
from exports.worker.leases import FILE_FIELDS, Claim, KnownFile

log = structlog.get_logger(__name__)


# ---- During an upload -----------------------------------------------------------------------------------------------

# The number of conflicts with objects of other workers after which an upload fails.
REPLACEMENTS = 50


@dataclass(frozen=True, slots=True)
class Committed:
    """A new object and its number.

    Each number is taken from the sequence of tokens, after the object that this one replaced was stored. So the numbers
    at a path grow, and show which of two objects is newer, even if their workers record them in another order.
    """

    stored: storage.StoredObject
    number: int


# The known file is not expected to be replaced twice within this time after the claim. Querying a new number for each
# small chunk would cost more than a tenth of its export.
RECENT_SECONDS = 1.0


def upload_number(claim: Claim, since: float) -> int:
    """Return the number for the object that the chunk's upload will store. Called when the call has ended.

    The token is greater than the number of the known file. But if the call took long, other jobs may have replaced that
    file and then stored its bytes again: their numbers are greater than the token, and the condition on the ETag still
    holds. `since` is the value of `time.monotonic()` before the claim.
    """
    is_recent = time.monotonic() - since < RECENT_SECONDS
    return claim.token if claim.known_file is None or is_recent else next_number()


def commit_or_adopt(claim: Claim, upload: storage.Upload, number: int) -> Committed | KnownFile:
    """Commit the upload. If another job has stored a file at the path in the meantime, return that file or replace it.

    If many jobs export the same key and date, the object may be replaced again before each request. A new attempt would
    only call the source again, and have the same conflicts. Raises UploadConflict after REPLACEMENTS conflicts.
    """
    send: Callable[[], storage.StoredObject] = upload.commit
    for _ in range(REPLACEMENTS):
        try:
            return Committed(send(), number)
        except storage.Conflict as conflict:
            if file := fresh_enough(claim, conflict):
                return file
            number = next_number()
            send = partial(upload.replace, conflict)
    raise UploadConflict


def next_number() -> int:
    return int(sql.scalar("SELECT nextval('exports_fence_seq')"))


def fresh_enough(claim: Claim, conflict: storage.Conflict) -> KnownFile | None:
    """Return the file that another job has stored at the path, if a row references it and it is fresh enough.

    When this chunk was claimed, the file's rows must have been no older than the dataset's limit for reuse. A job that
    does not allow reuse only accepts a file whose rows were read after the claim. An unreferenced object is replaced: a
    worker uploaded it, and then crashed or was fenced off.
    """
    if conflict.head is None:
        return None
    file = files_at(claim).filter(etag=conflict.head.etag).select_related("dataset").first()
    if file is None:
        return None
    max_age = file.dataset.reuse_max_age if claim.may_adopt else 0
    if max_age is not None and file.data_as_of < claim.claimed_at - timedelta(seconds=max_age):
        return None
    return as_known(file)


def files_at(claim: Claim) -> QuerySet[File]:
    """Return the row of the file at the chunk's path, if it has the job's dataset and schema version."""
    return File.objects.filter(path=claim.path, dataset__name=claim.dataset, schema_version=claim.schema_version)


def as_known(file: File) -> KnownFile:
    return KnownFile(**{field: getattr(file, field) for field in FILE_FIELDS})


# ---- After a failure of the source ----------------------------------------------------------------------------------

# Another worker records its file some milliseconds after it has replaced the object.
ADOPT_TIMEOUT_SECONDS = 2.0
ADOPT_POLL_SECONDS = 0.02


def recorded_file(claim: Claim) -> KnownFile | None:
    """Return the file at the chunk's path, if a row references it.

    The claim's file may be outdated: during the call, another job may have replaced it, or staff may have excluded it.
    Waits up to ADOPT_TIMEOUT_SECONDS for a replacement to be recorded. Raises StorageError.
    """
    until = time.monotonic() + ADOPT_TIMEOUT_SECONDS
    while True:
        file = files_at(claim).first()
        head = storage.head(claim.path) if file else None
        if file is None or head is None:
            return None
        if head.etag == file.etag:
            return as_known(file)
        if time.monotonic() > until:
            return None
        time.sleep(ADOPT_POLL_SECONDS)


# ---- During a completion --------------------------------------------------------------------------------------------

# Another job replaced a file between the end of the chunk and the bundle, and no usable pack has the old one. The chunk
# adopts the newer file, the job's sums change accordingly, and clients receive `chunk` and `progress` events. An export
# that read earlier may write last: a job adopts no file whose rows, when the job started, were older than the dataset's
# limit for reuse, and a job that does not allow reuse adopts none that was read before its start. The job's row is
# locked before the chunk, which only the holder of the completion does. This cannot deadlock with the end of a chunk,
# because all chunks are done.
# Each file that may be adopted could have been reused, so a snapshot becomes a reused chunk, which is refunded.
ADOPT = (
    """
WITH ours AS MATERIALIZED (
    SELECT j.job_id, j.schema_version, coalesce(
        j.started_at - CASE j.reuse WHEN 'never' THEN 0 ELSE d.reuse_max_age END * interval '1 second', '-infinity'
    ) AS not_before
    FROM exports_jobs j JOIN exports_dataset d ON d.id = j.dataset_id
    WHERE j.job_id = %(job)s AND j.completion_token = %(token)s AND j.status IN ('running', 'retrying') FOR UPDATE OF j
), before AS MATERIALIZED (
    SELECT c.id, c.rows, c.bytes, c.source = 'snapshot' AS is_snapshot
    FROM exports_chunk c JOIN ours ON ours.job_id = c.job_id WHERE c.id = %(chunk)s
), newer AS (
    UPDATE exports_chunk c
    SET etag = f.etag, sha256 = f.sha256, rows = f.rows, bytes = f.bytes, header_bytes = f.header_bytes,
        data_as_of = f.data_as_of, source = CASE c.source WHEN 'snapshot' THEN 'reused' ELSE c.source END,
        error_code = '', error_detail = '', source_message = '', pack = NULL, pack_offset = NULL
    FROM exports_file f, ours
    WHERE c.id = %(chunk)s AND c.job_id = ours.job_id AND c.status = 'done' AND f.path = c.path
      AND f.dataset_id = c.dataset_id AND f.schema_version = ours.schema_version AND f.etag <> c.etag
      AND f.data_as_of >= ours.not_before
    RETURNING c.id, c.job_id, c.status, c.rows, c.bytes, c.source, c.charged, c.charged_on
), ended AS (
    SELECT n.* FROM newer n JOIN before b ON b.id = n.id WHERE b.is_snapshot
), numbered AS (
    SELECT job_id, id, status, 1 AS nth FROM newer
), settled AS (
    UPDATE exports_jobs j
    SET rows = j.rows + n.rows - b.rows, bytes = j.bytes + n.bytes - b.bytes, event_seq = j.event_seq + 3,
        reused = j.reused + b.is_snapshot::int, degraded = j.degraded - b.is_snapshot::int
    FROM newer n JOIN before b ON b.id = n.id WHERE j.job_id = (SELECT job_id FROM ours)
    RETURNING j.job_id, j.user_id, j.charged_on, j.event_seq, j.status, j.status AS was, 1 AS chunks
)
"""
    + quotas.REFUND
    + events.INSERT_CHUNK_EVENTS
    + """
SELECT EXISTS (SELECT 1 FROM ours) AS ours, EXISTS (SELECT 1 FROM newer) AS adopted, EXISTS (
    SELECT 1 FROM ours JOIN exports_chunk c ON c.id = %(chunk)s
    JOIN exports_file f ON f.path = c.path
                       AND (f.dataset_id, f.schema_version) <> (c.dataset_id, ours.schema_version)
) AS is_other_version
"""
)


def adopt(token: int, chunk: Chunk) -> Chunk:
    """Assign the newer file at the chunk's path to the chunk, and return the chunk. Waits until that file is recorded.

    Raises LeaseLost. Raises FileGone if that file has another dataset or schema version, or if no file that is fresh
    enough is recorded within ADOPT_TIMEOUT_SECONDS.
    """
    until = time.monotonic() + ADOPT_TIMEOUT_SECONDS
    while True:
        row = sql.one(ADOPT, job=chunk.job_id, token=token, chunk=chunk.pk)
        if not row or not row["ours"]:
            raise LeaseLost
        if row["adopted"]:
            log.info("newer_file_adopted", chunk_id=chunk.pk)
            return Chunk.objects.get(pk=chunk.pk)
        if row["is_other_version"] or time.monotonic() > until:
            raise FileGone
        time.sleep(ADOPT_POLL_SECONDS)
