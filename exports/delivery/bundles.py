"""Bundles: the delivered object of a job, as a copy of one file, one joined file, a zip, or a manifest.

All are streamed: memory does not grow with the number or the size of the files.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from zipstream import ZIP_DEFLATED, ZIP_STORED, ZipStream

from config.platform import storage
from exports.core import planning
from exports.core.errors import FileGone
from exports.models import Chunk, Job
from exports.models.dataset import Format
from exports.models.job import Compression, DeliveryKind
from exports.source import encoding

# The folder of delivered objects. No dataset overlaps with it: a base path never begins with an underscore.
PREFIX = "_receipts"
READERS = 8
# Files up to this size are prefetched, so that a bundle of many small files does not wait for each.
SMALL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A delivered object, for the receipt."""

    stored: storage.StoredObject
    content_type: str
    file_name: str


def make(job: Job, token: int, checkpoint: Callable[[], None]) -> Bundle:
    """Create the delivered object. It is a copy, so that later exports never change it.

    `checkpoint` is called before each part and before the commit, and its exceptions end the work. Raises FileGone when
    a chunk's object was replaced or deleted.
    """
    if job.delivery == DeliveryKind.SINGLE and job.total == 1:
        return copy_of_one(job, token, checkpoint)
    file_name, content_type, blocks = MAKERS[job.delivery](job)
    with storage.Upload(
        key_of(job, token, file_name),
        content_type=content_type,
        metadata={"job": str(job.job_id), "token": str(token)},
        if_match=None,
        checkpoint=checkpoint,
    ) as upload:
        for block in blocks:
            upload.write(block)
        return Bundle(stored=upload.commit(), content_type=content_type, file_name=file_name)


def key_of(job: Job, token: int, file_name: str) -> str:
    """Return an object key with the token: a stale attempt can only leave an orphan."""
    return f"{PREFIX}/{job.job_id}/{token}/{file_name}"


def copy_of_one(job: Job, token: int, checkpoint: Callable[[], None]) -> Bundle:
    chunk = job.chunks.get()
    file_name = planning.file_name(chunk.pair, job.shape).rpartition("/")[2]
    content_type = encoding.content_type(job.shape)
    try:
        stored = storage.copy(
            chunk.path,
            key_of(job, token, file_name),
            if_match_source=chunk.etag,
            content_type=content_type,
            sha256=chunk.sha256,
            checkpoint=checkpoint,
        )
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error
    return Bundle(stored=stored, content_type=content_type, file_name=file_name)


# ---- The kinds ------------------------------------------------------------------------------------------------------


def as_zip(job: Job) -> tuple[str, str, Iterable[bytes]]:
    return f"{base_name(job)}.zip", "application/zip", zipped(job)


def zipped(job: Job) -> Iterator[bytes]:
    """Yield a zip of the files under YYYY/MM/DD/, and a manifest.json that describes exactly these files."""
    is_packed = job.compression == Compression.GZIP
    archive = ZipStream(
        compress_type=ZIP_STORED if is_packed else ZIP_DEFLATED,
        compress_level=None if is_packed else encoding.GZIP_LEVEL,
    )
    entries = []
    for chunk, blocks in contents(job):
        entries.append(entry_of(job, chunk))
        archive.add(blocks, planning.file_name(chunk.pair, job.shape))
        yield from archive.file()
    archive.add(b"".join(manifest_of(job, entries)), "manifest.json")
    yield from archive.finalize()


def as_manifest(job: Job) -> tuple[str, str, Iterable[bytes]]:
    chunks = job.chunks.in_request_order().iterator(chunk_size=1000)
    blocks = manifest_of(job, (entry_of(job, chunk) for chunk in chunks))
    return f"{base_name(job)}.manifest.json", "application/json", blocks


def as_single(job: Job) -> tuple[str, str, Iterable[bytes]]:
    """Join all files: one header, then the rows of every file. JSON documents become one array."""
    blocks = json_array(job) if job.format == Format.JSON else with_one_header(job)
    return f"{base_name(job)}{job.shape.extension}", encoding.content_type(job.shape), blocks


def with_one_header(job: Job) -> Iterator[bytes]:
    for _, blocks in contents(job, without_header=True):
        yield from blocks


def json_array(job: Job) -> Iterator[bytes]:
    for chunk, blocks in contents(job):
        yield packed(job, b"[\n" if chunk.seq == 0 else b",\n")
        yield from blocks
    yield packed(job, b"]\n")


def packed(job: Job, text: bytes) -> bytes:
    return b"".join(encoding.gzip([text])) if job.compression == Compression.GZIP else text


MAKERS: dict[str, Callable[[Job], tuple[str, str, Iterable[bytes]]]] = {
    DeliveryKind.ZIP: as_zip,
    DeliveryKind.MANIFEST: as_manifest,
    DeliveryKind.SINGLE: as_single,
}


def base_name(job: Job) -> str:
    return f"{job.dataset.name}-{job.job_id}"


def manifest_of(job: Job, entries: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    facts = {
        "jobId": job.job_id,
        "dataset": job.dataset.name,
        "schemaVersion": job.schema_version,
        "format": job.format,
        "compression": job.compression,
        "csv": job.shape.dialect.as_json(),
    }
    yield orjson.dumps(facts)[:-1] + b',"files":['
    for number, entry in enumerate(entries):
        yield (b",\n" if number else b"\n") + orjson.dumps(entry, option=orjson.OPT_UTC_Z)
    yield b"\n]}\n"


def entry_of(job: Job, chunk: Chunk) -> dict[str, Any]:
    return {
        "key": chunk.key,
        "effectiveDate": chunk.effective_date,
        "fileName": planning.file_name(chunk.pair, job.shape),
        "rows": chunk.rows,
        "bytes": chunk.bytes,
        "sha256": chunk.sha256,
        "source": chunk.source,
        "dataAsOf": chunk.data_as_of,
        "url": f"/exports/{job.job_id}/files/{quote(chunk.key, safe='')}/{chunk.effective_date}",
    }


# ---- Reading the files ----------------------------------------------------------------------------------------------


def contents(job: Job, *, without_header: bool = False) -> Iterator[tuple[Chunk, Iterable[bytes]]]:
    """Yield every chunk with its file's bytes, in request order. `without_header`: only the first keeps its header.

    A few threads prefetch small files, which takes at most READERS x SMALL_BYTES of memory.
    """
    waiting: deque[tuple[Chunk, int, Future[bytes] | None]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for chunk in job.chunks.in_request_order().iterator(chunk_size=1000):
            start = chunk.header_bytes if without_header and chunk.seq else 0
            small = (chunk.bytes or 0) <= SMALL_BYTES
            waiting.append((chunk, start, pool.submit(whole, chunk, start) if small else None))
            if len(waiting) >= READERS:
                yield ready(*waiting.popleft())
        for each in waiting:
            yield ready(*each)


def ready(chunk: Chunk, start: int, ahead: Future[bytes] | None) -> tuple[Chunk, Iterable[bytes]]:
    return chunk, [ahead.result()] if ahead else blocks_of(chunk, start)


def whole(chunk: Chunk, start: int) -> bytes:
    return b"".join(blocks_of(chunk, start))


def blocks_of(chunk: Chunk, start: int) -> Iterator[bytes]:
    """Yield the file's bytes. Raises FileGone if it has changed since the chunk was done."""
    if start == chunk.bytes:
        return
    try:
        yield from storage.read(chunk.path, if_match=chunk.etag, start=start)
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error


def chunks_without_file(job: Job) -> list[int]:
    """Return the ids of the chunks whose object was replaced or deleted."""
    with ThreadPoolExecutor(READERS) as pool:
        chunks = list(job.chunks.all())
        heads = pool.map(storage.head, [chunk.path for chunk in chunks])
        return [chunk.pk for chunk, head in zip(chunks, heads, strict=True) if not head or head.etag != chunk.etag]
