"""Bundles: the delivered objects of a job.

A bundle is a copy of a single file, all files joined into one, a zip, or a manifest with copies of all files. Later
exports replace the files of chunks, so a delivery consists of copies. Each attempt writes to a separate folder, whose
objects do not change until they are deleted. `exports.delivery.packs` combines small files into a few objects.

All bundles are streamed: memory grows by a name for each file, but not with the size of the files.
"""

import io
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
import structlog
from zipstream import ZIP_DEFLATED, ZipStream

from config.platform import storage
from config.platform.db import identity
from exports.core import planning
from exports.core.errors import FileGone
from exports.delivery import packs
from exports.models import Chunk, Job
from exports.models.dataset import Format
from exports.models.job import Compression, DeliveryKind
from exports.source import encoding

READERS = 8
# Number of newer files that a chunk may adopt before the bundle is started again.
ADOPTIONS = 20
# Files up to this size are prefetched, because a bundle of many small files would wait for each request otherwise.
SMALL_BYTES = 1024 * 1024

log = structlog.get_logger(__name__)

S = TypeVar("S")
T = TypeVar("T")
# Makes a chunk adopt the newer file at its path, and returns the chunk. Raises FileGone if no newer file is recorded.
Adopt = Callable[[Chunk], Chunk]


class FilesDiffer(Exception):
    detail = (
        "the files have different columns: the dataset's function changed, but its schema version did not. Export "
        'again with "reuse": "never"'
    )


class SizeDiffers(storage.StorageError):
    """A file has the recorded ETag, but not the recorded size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A delivered object with the properties that the receipt needs."""

    stored: storage.StoredObject
    content_type: str
    file_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt to bundle a job.

    `checkpoint` is called before each part and before each commit. It raises an exception to stop the work.
    """

    job: Job
    token: int
    checkpoint: Callable[[], None]
    adopt: Adopt
    mark: Mapping[str, str] = field(default_factory=identity.marker)  # read once, not by each copying thread

    @property
    def folder(self) -> str:
        return folder_of_attempt(self.job, self.token)

    @property
    def is_one_file(self) -> bool:
        return self.job.delivery == DeliveryKind.SINGLE and self.job.total == 1

    @property
    def metadata(self) -> dict[str, str]:
        return {"job": str(self.job.job_id), "token": str(self.token), **self.mark}


def make(attempt: Attempt) -> Bundle:
    """Create the delivered object and return it. On failure, delete the attempt's objects.

    Raises FilesDiffer, and FileGone if a chunk's object was deleted or replaced by an unreferenced one.
    """
    try:
        return copy_of_one(attempt) if attempt.is_one_file else bundled(attempt)
    except BaseException:
        discard(attempt.folder)
        raise


def folder_of_attempt(job: Job, token: int) -> str:
    """Return the folder of an attempt. Its name has the token, so that a stale attempt only leaves orphaned objects."""
    return f"{packs.PREFIX}/{job.job_id}/{token}"


def discard(folder: str) -> None:
    """Delete the objects of a failed attempt. If that fails, the sweep deletes them later."""
    try:
        delete_folder(folder)
    except storage.StorageError as error:
        log.warning("copies_not_deleted", error=str(error))


def delete_folder(folder: str) -> None:
    storage.delete_many(item.key for item in storage.list_objects(f"{folder}/"))


def bundled(attempt: Attempt) -> Bundle:
    file_name, content_type, blocks = MAKERS[attempt.job.delivery](attempt)
    upload = storage.Upload(
        f"{attempt.folder}/{file_name}",
        content_type=content_type,
        metadata=attempt.metadata,
        if_match=None,
        checkpoint=attempt.checkpoint,
    )
    # After an error of the upload, running copies end before the folder of the attempt is deleted.
    with upload, closing(blocks):
        for block in blocks:
            upload.write(block)
        return Bundle(stored=upload.commit(), content_type=content_type, file_name=file_name)


def copy_of_one(attempt: Attempt) -> Bundle:
    job = attempt.job
    chunk = job.chunks.get()
    file_name = planning.file_name(chunk.pair, job.shape).rpartition("/")[2]
    content_type = encoding.content_type(job.shape)

    def copied(chunk: Chunk) -> storage.StoredObject:
        return copy_file(chunk, f"{attempt.folder}/{file_name}", content_type, attempt.metadata, attempt.checkpoint)

    _, stored = adopting(chunk, partial(copied, chunk), copied, attempt.adopt)
    return Bundle(stored=stored, content_type=content_type, file_name=file_name)


def copy_file(
    chunk: Chunk,
    key: str,
    content_type: str,
    metadata: dict[str, str],
    checkpoint: Callable[[], None] = lambda: None,
) -> storage.StoredObject:
    """Copy a chunk's file within the bucket. Raises FileGone if it has changed since the chunk was done."""
    try:
        return storage.copy(
            chunk.path,
            key,
            if_match_source=chunk.etag,
            size=chunk.bytes or 0,
            content_type=content_type,
            sha256=chunk.sha256,
            metadata=metadata,
            checkpoint=checkpoint,
        )
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error


# ---- The kinds ------------------------------------------------------------------------------------------------------


def as_zip(attempt: Attempt) -> tuple[str, str, Generator[bytes]]:
    return f"{base_name(attempt.job)}.zip", "application/zip", zipped(attempt.job, attempt.adopt)


def zipped(job: Job, adopt: Adopt) -> Generator[bytes]:
    """Yield a zip of the files in folders YYYY/MM/DD/, and a manifest.json that describes exactly these files.

    Readers of streams, such as Java's ZipInputStream, can read it. They find the end of an entry only if it is
    deflated, so compressed files are deflated with level 0, which does not compress. And they expect sizes of 4 bytes
    after the entry, which the archive writes only if the size of the file is known in advance.
    """
    is_compressed = job.compression != Compression.NONE
    archive = ZipStream(compress_type=ZIP_DEFLATED, compress_level=0 if is_compressed else encoding.GZIP_LEVEL)
    entries = []
    names: Counter[str] = Counter()
    for chunk, blocks in contents(job, adopt):
        entry = entry_of(job, chunk, names)
        entries.append(entry)
        archive.add(blocks, entry["fileName"], size=chunk.bytes)
        yield from archive.file()
    archive.add(b"".join(manifest_of(job, entries)), "manifest.json")
    yield from archive.finalize()


def as_manifest(attempt: Attempt) -> tuple[str, str, Generator[bytes]]:
    """Copy all files, and list them."""
    job = attempt.job
    names: Counter[str] = Counter()
    entries = (entry_of(job, chunk, names) for chunk in copied_files(attempt))
    return f"{base_name(job)}.manifest.json", "application/json", manifest_of(job, entries)


def copied_files(attempt: Attempt) -> Iterator[Chunk]:
    """Copy all files, the small ones into packs, and yield their chunks in request order."""
    # After an error, the running copies end before the folder of the attempt is deleted.
    with closing(each_file(attempt.job, partial(copy_unless_packed, attempt), attempt.adopt)) as files:
        for number, group in groupby(files, key=lambda file: packs.number_of(file[0])):
            yield from fill_pack(attempt, packs.key_of(attempt.folder, number), group)


def fill_pack(attempt: Attempt, key: str, files: Iterable[tuple[Chunk, bytes]]) -> Iterator[Chunk]:
    """Write these files to a pack, and yield their chunks. A pack without bytes is not created."""
    is_empty = True
    with storage.Upload(
        key,
        content_type=packs.CONTENT_TYPE,
        metadata=attempt.metadata,
        if_match=None,
        checkpoint=attempt.checkpoint,
    ) as pack:
        for chunk, content in files:
            pack.write(content)
            is_empty = is_empty and not content
            yield chunk
        if not is_empty:
            pack.commit()


def copy_unless_packed(attempt: Attempt, chunk: Chunk) -> bytes:
    """Return the bytes of a small file for the pack. Copy a large file to a separate object, and return b""."""
    attempt.checkpoint()
    if chunk.pack is not None:
        return b""  # it is in the pack of its batch
    if packs.is_packed(chunk):
        return whole_file(chunk)
    key = key_of_file(attempt.folder, attempt.job, chunk)
    copy_file(chunk, key, encoding.content_type(attempt.job.shape), attempt.metadata, attempt.checkpoint)
    return b""


def folder_of(key: str) -> str:
    """Return the folder of a delivery from the key of an object in it."""
    return "/".join(key.split("/", 3)[:3])


def folder_of_job(key: str) -> str:
    """Return the folder with a job's deliveries and packs of batches, from the key of an object in it."""
    return "/".join(key.split("/", 2)[:2])


def key_of_file(folder: str, job: Job, chunk: Chunk) -> str:
    """Return the key of the copy of a chunk's file in the folder of a delivery."""
    return f"{folder}/files/{planning.file_name(chunk.pair, job.shape)}"


def as_single(attempt: Attempt) -> tuple[str, str, Generator[bytes]]:
    """Join all files: one header and all rows of text formats, an array of JSON documents, or one Parquet file."""
    job = attempt.job
    blocks = JOINERS.get(job.format, with_one_header)(job, attempt.adopt)
    return f"{base_name(job)}{job.shape.extension}", encoding.content_type(job.shape), blocks


def with_one_header(job: Job, adopt: Adopt) -> Generator[bytes]:
    """Yield one header and the rows of all files. Raises FilesDiffer if the headers differ."""
    header = None
    for chunk, blocks in contents(job, adopt):
        head, rows = split_at(blocks, chunk.header_bytes)
        # Different versions of the library may compress equal headers to different bytes.
        text = encoding.decompress(head, job.shape)
        if header is None:
            header = text
            yield head
        elif text != header:
            raise FilesDiffer
        yield from rows


def split_at(blocks: Iterable[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first `size` bytes, and the blocks after them."""
    remaining = iter(blocks)
    head = b""
    while len(head) < size and (block := next(remaining, None)) is not None:
        head += block
    return head[:size], chain([head[size:]], remaining)


def json_array(job: Job, adopt: Adopt) -> Generator[bytes]:
    for chunk, blocks in contents(job, adopt):
        yield encoding.compress(b"[\n" if chunk.seq == 0 else b",\n", job.shape)
        yield from blocks
    yield encoding.compress(b"]\n", job.shape)


def one_parquet(job: Job, adopt: Adopt) -> Generator[bytes]:
    """Yield a Parquet file with the row groups of all files. Raises FilesDiffer if the columns differ."""
    from exports.source import parquet

    def opened(chunk: Chunk) -> Any:
        return parquet.opened(SeekableFile(chunk))

    def files() -> Iterator[Any]:
        for chunk, ahead in small_files(job, adopt):
            if ahead is None:
                yield adopting(chunk, partial(opened, chunk), opened, adopt)[1]
            else:
                yield parquet.opened(ahead)

    try:
        yield from parquet.join(files(), job.compression)
    except parquet.SchemasDiffer:
        raise FilesDiffer from None


JOINERS: dict[str, Callable[[Job, Adopt], Generator[bytes]]] = {Format.JSON: json_array, Format.PARQUET: one_parquet}


MAKERS: dict[str, Callable[[Attempt], tuple[str, str, Generator[bytes]]]] = {
    DeliveryKind.ZIP: as_zip,
    DeliveryKind.MANIFEST: as_manifest,
    DeliveryKind.SINGLE: as_single,
}


def base_name(job: Job) -> str:
    return f"{job.dataset.name}-{job.job_id}"


def manifest_of(job: Job, entries: Iterable[dict[str, Any]]) -> Generator[bytes]:
    properties = {
        "jobId": job.job_id,
        "dataset": job.dataset.name,
        "schemaVersion": job.schema_version,
        "format": job.format,
        "compression": job.compression,
        "csv": job.shape.dialect.as_json(),
        "columns": job.columns,
    }
    yield orjson.dumps(properties)[:-1] + b',"files":['
    for number, entry in enumerate(entries):
        yield (b",\n" if number else b"\n") + orjson.dumps(entry, option=orjson.OPT_UTC_Z)
    yield b"\n]}\n"


def entry_of(job: Job, chunk: Chunk, names: Counter[str]) -> dict[str, Any]:
    """Return the description of a file. `names`: the names of the earlier files, to which its name is added."""
    return {
        "key": chunk.key,
        "effectiveDate": chunk.effective_date,
        "fileName": planning.distinct_file_name(chunk.pair, job.shape, names),
        "rows": chunk.rows,
        "bytes": chunk.bytes,
        "sha256": chunk.sha256,
        "source": chunk.source,
        "dataAsOf": chunk.data_as_of,
        "url": f"/exports/{job.job_id}/files/{quote(chunk.key, safe='')}/{chunk.effective_date}",
    }


# ---- Reading the files ----------------------------------------------------------------------------------------------


def contents(job: Job, adopt: Adopt) -> Iterator[tuple[Chunk, Iterable[bytes]]]:
    """Yield every chunk, in request order, with the bytes of its file.

    Threads prefetch small files, which takes at most about 3 x READERS x SMALL_BYTES of memory.
    """
    for chunk, ahead in small_files(job, adopt):
        yield (chunk, [ahead]) if ahead is not None else adopting(chunk, partial(large_file, chunk), large_file, adopt)


def small_files(job: Job, adopt: Adopt) -> Generator[tuple[Chunk, bytes | None]]:
    """Yield every chunk, in request order, with the bytes of a small file, or None for a large one."""
    groups = packs.grouped(job.chunks.in_request_order().iterator(chunk_size=1000))
    with closing(in_advance(groups, small_files_of)) as results:
        for group, files in results:
            for number, chunk in enumerate(group):
                yield adopting(chunk, partial(small_file_in, files, number, chunk), small_file, adopt)


def small_files_of(group: list[Chunk]) -> list[bytes | None]:
    """Return the small files of a group from the pack of their batch, or a single file from its path."""
    return packs.read_group(group) if group[0].pack is not None else [small_file(group[0])]


def small_file_in(files: Callable[[], list[bytes | None]], number: int, chunk: Chunk) -> bytes | None:
    """Return a file of a group, or read it from its path if the pack did not contain it. Raises FileGone."""
    return files()[number] or small_file(chunk)


def small_file(chunk: Chunk) -> bytes | None:
    """Return a small file, or None for a large one. Raises FileGone."""
    return whole_file(chunk) if (chunk.bytes or 0) <= SMALL_BYTES else None


def whole_file(chunk: Chunk) -> bytes:
    """Return the bytes of a small file. Raises FileGone if it has changed since the chunk was done."""
    if not chunk.bytes:
        return b""
    try:
        return storage.read_small(chunk.path, size=chunk.bytes, if_match=chunk.etag)
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error


def large_file(chunk: Chunk) -> Iterator[bytes]:
    """Return the blocks of a file. Raises FileGone, because it reads the first block."""
    blocks = blocks_of(chunk)
    return chain([next(blocks, b"")], blocks)


def each_file(job: Job, work: Callable[[Chunk], T], adopt: Adopt) -> Generator[tuple[Chunk, T]]:
    """Yield every chunk, in request order, with the result of `work`, which threads compute in advance."""
    with closing(in_advance(job.chunks.in_request_order().iterator(chunk_size=1000), work)) as results:
        for chunk, result in results:
            yield adopting(chunk, result, work, adopt)


def in_advance(items: Iterable[S], work: Callable[[S], T]) -> Generator[tuple[S, Callable[[], T]]]:
    """Yield every item, with a function that returns the result of `work`, which threads compute in advance."""
    waiting: deque[tuple[S, Future[T]]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) >= READERS:
                first, result = waiting.popleft()
                yield first, result.result
        for each, result in waiting:
            yield each, result.result


def adopting(chunk: Chunk, first: Callable[[], T], work: Callable[[Chunk], T], adopt: Adopt) -> tuple[Chunk, T]:
    """Return the chunk with the result of `first`. Raises FileGone.

    If its file was replaced, make the chunk adopt the newer file, and return the chunk with the result of `work`.
    """
    for _ in range(ADOPTIONS):
        try:
            return chunk, first()
        except FileGone:
            chunk = adopt(chunk)
            first = partial(work, chunk)
    raise FileGone


def blocks_of(chunk: Chunk) -> Iterator[bytes]:
    """Yield the file's bytes. Raises SizeDiffers, and FileGone if it has changed since the chunk was done."""
    if not chunk.bytes:
        return
    size = 0
    try:
        for block in storage.read(chunk.path, if_match=chunk.etag):
            size += len(block)
            yield block
    except (storage.Missing, storage.Changed) as error:
        raise FileGone from error
    if size != chunk.bytes:
        raise SizeDiffers(f"a file has {size} bytes, but {chunk.bytes} are recorded")


class SeekableFile(io.RawIOBase):
    """Random access to a chunk's file. `read` raises FileGone if the file has changed since the chunk was done."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._size = chunk.bytes or 0
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._position, 0)
        size = left if size < 0 else min(size, left)
        if not size:
            return b""
        try:
            content = storage.read_span(self._chunk.path, start=self._position, size=size, if_match=self._chunk.etag)
        except (storage.Missing, storage.Changed) as error:
            raise FileGone from error
        self._position += len(content)
        return content


def chunks_without_file(job: Job) -> list[int]:
    """Return the IDs of the chunks whose object was replaced or deleted, and whose file isn't in a pack either."""

    def has_bytes(chunk: Chunk) -> bool:
        if chunk.pack is not None and packs.read_group([chunk])[0] is not None:
            return True
        return (head := storage.head(chunk.path)) is not None and head.etag == chunk.etag

    return [chunk.pk for chunk, exists in each_file(job, has_bytes, lambda chunk: chunk) if not exists]
