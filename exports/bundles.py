"""What a finished job delivers: a file's copy, all files joined, a zip, or a manifest.

Everything is streamed: memory does not grow with the number or the size of the files.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from zipstream import ZIP_DEFLATED, ZIP_STORED, ZipStream

from config import storage
from exports import encoding, planning
from exports.errors import FileGone
from exports.models import Chunk, Job
from exports.models.job import Compression, Delivery, Format
from exports.planning import Pair

# Delivered objects live here, apart from every dataset: a base path never begins with an underscore.
PREFIX = "_receipts"
READERS = 8
# Files up to this size are fetched ahead of their turn, so that a bundle of many small ones does not wait for each.
SMALL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The object that a receipt will name."""

    stored: storage.StoredObject
    content_type: str
    file_name: str


def make(job: Job, token: int, checkpoint: Callable[[], None]) -> Bundle:
    """Make the delivered object: its own copy, so that later runs never change promised bytes.

    `checkpoint` is called before each part and before the commit; what it raises ends the work. Raises FileGone when
    a chunk's object is no longer the one that the chunk ended with.
    """
    if job.delivery == Delivery.SINGLE and job.total == 1:
        return _copy_of_one(job, token, checkpoint)
    file_name, content_type, blocks = MAKERS[job.delivery](job)
    with storage.Upload(
        _object_key(job, token, file_name),
        content_type=content_type,
        metadata={"job": str(job.job_id), "token": str(token)},
        if_match=None,
        checkpoint=checkpoint,
    ) as upload:
        for block in blocks:
            upload.write(block)
        return Bundle(stored=upload.commit(), content_type=content_type, file_name=file_name)


def _object_key(job: Job, token: int, file_name: str) -> str:
    """The token keeps two attempts apart: a stale one can only leave an orphan."""
    return f"{PREFIX}/{job.job_id}/{token}/{file_name}"


def _copy_of_one(job: Job, token: int, checkpoint: Callable[[], None]) -> Bundle:
    chunk = job.chunks.get()
    file_name = planning.file_name(_pair(chunk), job.shape).rpartition("/")[2]
    content_type = encoding.content_type(job.shape)
    try:
        stored = storage.copy(
            chunk.path,
            _object_key(job, token, file_name),
            if_match_source=chunk.etag,
            content_type=content_type,
            sha256=chunk.sha256,
            checkpoint=checkpoint,
        )
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error
    return Bundle(stored=stored, content_type=content_type, file_name=file_name)


# ---- The kinds ------------------------------------------------------------------------------------------------------


def _zip(job: Job) -> tuple[str, str, Iterable[bytes]]:
    return f"{_base_name(job)}.zip", "application/zip", _zipped(job)


def _zipped(job: Job) -> Iterator[bytes]:
    """The files under YYYY/MM/DD/, and manifest.json, which tells of the very bytes that were packed."""
    packed = job.compression == Compression.GZIP
    archive = ZipStream(
        compress_type=ZIP_STORED if packed else ZIP_DEFLATED, compress_level=None if packed else encoding.GZIP_LEVEL
    )
    entries = []
    for chunk, blocks in _contents(job):
        entries.append(_entry(job, chunk))
        archive.add(blocks, planning.file_name(_pair(chunk), job.shape))
        yield from archive.file()
    archive.add(b"".join(_manifest_of(job, entries)), "manifest.json")
    yield from archive.finalize()


def _manifest(job: Job) -> tuple[str, str, Iterable[bytes]]:
    chunks = job.chunks.in_request_order().iterator(chunk_size=1000)
    blocks = _manifest_of(job, (_entry(job, chunk) for chunk in chunks))
    return f"{_base_name(job)}.manifest.json", "application/json", blocks


def _single(job: Job) -> tuple[str, str, Iterable[bytes]]:
    """One file of all: one header, then every file's rows. JSON documents become one array."""
    blocks = _json_array(job) if job.format == Format.JSON else _one_header(job)
    return f"{_base_name(job)}{job.shape.extension}", encoding.content_type(job.shape), blocks


def _one_header(job: Job) -> Iterator[bytes]:
    for _, blocks in _contents(job, without_header=True):
        yield from blocks


def _json_array(job: Job) -> Iterator[bytes]:
    for chunk, blocks in _contents(job):
        yield _packed(job, b"[\n" if chunk.seq == 0 else b",\n")
        yield from blocks
    yield _packed(job, b"]\n")


def _packed(job: Job, text: bytes) -> bytes:
    return b"".join(encoding.gzip([text])) if job.compression == Compression.GZIP else text


MAKERS: dict[str, Callable[[Job], tuple[str, str, Iterable[bytes]]]] = {
    Delivery.ZIP: _zip,
    Delivery.MANIFEST: _manifest,
    Delivery.SINGLE: _single,
}


def _base_name(job: Job) -> str:
    return f"{job.dataset.name}-{job.job_id}"


def _pair(chunk: Chunk) -> Pair:
    return Pair(chunk.key, chunk.effective_date)


def _manifest_of(job: Job, entries: Iterable[dict[str, Any]]) -> Iterator[bytes]:
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


def _entry(job: Job, chunk: Chunk) -> dict[str, Any]:
    return {
        "key": chunk.key,
        "effectiveDate": chunk.effective_date,
        "fileName": planning.file_name(_pair(chunk), job.shape),
        "rows": chunk.rows,
        "bytes": chunk.bytes,
        "sha256": chunk.sha256,
        "source": chunk.source,
        "dataAsOf": chunk.data_as_of,
        "url": f"/exports/{job.job_id}/files/{quote(chunk.key, safe='')}/{chunk.effective_date}",
    }


# ---- Reading the files ----------------------------------------------------------------------------------------------


def _contents(job: Job, *, without_header: bool = False) -> Iterator[tuple[Chunk, Iterable[bytes]]]:
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
        raise FileGone from error


def gone(job: Job) -> list[int]:
    """Return the ids of the chunks whose object is not the one that they ended with."""
    with ThreadPoolExecutor(READERS) as pool:
        chunks = list(job.chunks.all())
        heads = pool.map(storage.head, [chunk.path for chunk in chunks])
        return [chunk.pk for chunk, head in zip(chunks, heads, strict=True) if not head or head.etag != chunk.etag]
