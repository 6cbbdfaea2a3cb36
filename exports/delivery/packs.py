"""Packs: a few objects with the concatenated small files of a job.

There are two kinds of packs. A worker that runs a batch of chunks still has their bytes in memory, and stores them in a
pack of the batch before it finishes the chunks. Each file is a zstd frame in this pack, because smaller uploads are
faster. Zips and joined files are made from these packs as far as possible, because one request reads many files.

A manifest refers to the files in packs. Copying each file would take thousands of requests, although few of the files
may ever be downloaded. When a file is requested for the first time, `exports.delivery.chunk_files` extracts it from its
pack. The completion stores the small files that no batch has packed in its own packs, without compressing them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

import structlog
import zstandard
from django.db import transaction
from django.db.models import Sum

from config.platform import storage
from config.platform.db import identity
from exports.models import Chunk, Job

log = structlog.get_logger(__name__)

# The folder of delivered objects. No dataset can write to it: a base path never begins with an underscore.
PREFIX = "_receipts"

# These values and `key_of` are a storage format: existing packs depend on them, so they must not change.
PACKED_BYTES = 1024 * 1024  # the largest file in a pack
FILES = 1000  # chunks per pack of a completion

CONTENT_TYPE = "application/octet-stream"


# ---- Packs of batches -----------------------------------------------------------------------------------------------

BATCH_BYTES = 8 * 1024 * 1024  # the largest pack of a batch, which is stored by one request
# A completion uses no older packs: the sweep deletes packs without a receipt after an hour, and the
# bucket's lifecycle rule may delete objects an hour after the longest lifetime of a delivery.
MAX_BATCH_AGE = timedelta(minutes=30)


def folder_of_batches(job_id: UUID | None) -> str:
    return f"{PREFIX}/{job_id}/batches"


def is_of_batch(key: str) -> bool:
    return key.split("/")[2:3] == ["batches"]


def key_of_batch(job_id: UUID, token: int) -> str:
    return f"{folder_of_batches(job_id)}/{token}"


def store_batch(job_id: UUID, token: int, contents: Sequence[bytes | None]) -> list[int | None]:
    """Store the files of a batch in a pack. Return the offset of each file, or None for a file that was not packed.

    A file that was not packed is not an error: the completion of a manifest packs the remaining files, and other
    deliveries read them from their paths. The leases of the chunks are not renewed meanwhile, so this sends a single
    request that takes a few seconds at most, and none if an outage of the storage is suspected.
    """
    none_packed: list[int | None] = [None] * len(contents)
    if storage.is_suspected():
        return none_packed
    offsets, pack, compressor = none_packed.copy(), bytearray(), zstandard.ZstdCompressor(level=1)
    for number, content in enumerate(contents):
        if content is not None and len(pack) + longest_frame(len(content)) <= BATCH_BYTES:
            offsets[number] = len(pack)
            pack += compressor.compress(content)
    if not pack:
        return none_packed
    metadata = {"job": str(job_id), "token": str(token), **identity.marker()}
    try:
        storage.put_once(key_of_batch(job_id, token), bytes(pack), content_type=CONTENT_TYPE, metadata=metadata)
    except storage.StorageError as error:
        log.warning("pack_not_stored", error=str(error))
        if error.is_outage:
            storage.suspect()
        return none_packed
    return offsets


def longest_frame(size: int) -> int:
    """Return the maximum length of the frame of a file with this size: `ZSTD_compressBound`, rounded up."""
    return size + size // 256 + 64


def grouped(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group consecutive chunks whose files one request can read from the pack of a batch. Other chunks are alone.

    The files of a group have at most PACKED_BYTES, and so has their part of the pack, except for the last frame.
    """
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        size += chunk.bytes or 0
        if group and not (size <= PACKED_BYTES and follows(chunk, group[0])):
            yield group
            group, size = [], chunk.bytes or 0
        group.append(chunk)
    if group:
        yield group


def follows(chunk: Chunk, first: Chunk) -> bool:
    """Return whether the chunk's file is at most PACKED_BYTES behind the first one, in the same pack of a batch."""
    if chunk.pack is None or chunk.pack != first.pack:
        return False
    return 0 <= (chunk.pack_offset or 0) - (first.pack_offset or 0) <= PACKED_BYTES


def read_group(chunks: Sequence[Chunk]) -> list[bytes | None]:
    """Return the files of a group in a pack. None stands for a file that is missing or has another checksum."""
    first = chunks[0]
    start = first.pack_offset or 0
    end = max((chunk.pack_offset or 0) + longest_frame(chunk.bytes or 0) for chunk in chunks)
    try:
        span = memoryview(storage.read_span(key_of_batch(first.job_id, first.pack or 0), start=start, size=end - start))
    except storage.Missing:
        return [None] * len(chunks)
    return [first_file(span[(chunk.pack_offset or 0) - start :], chunk) for chunk in chunks]


def first_file(frames: memoryview, chunk: Chunk) -> bytes | None:
    """Return the file in the first frame, which must be the chunk's file."""
    try:
        # The size is checked before memory is allocated for it.
        content = zstandard.decompress(frames) if zstandard.frame_content_size(frames) == chunk.bytes else b""
    except zstandard.ZstdError:
        return None
    return checked(content, chunk)


def unset_lost_packs(job_id: UUID, token: int) -> None:
    """Make the completion with this token ignore packs that are missing or too old. Raises StorageError.

    Packs can be missing after a restore of the database or the bucket. Their age is measured by the storage's clock, as
    the sweep and the lifecycle rule measure it.
    """
    packed = Chunk.objects.filter(job_id=job_id, pack__isnull=False)
    if not packed.exists():
        return
    since = storage.now() - MAX_BATCH_AGE
    found = storage.list_objects(f"{folder_of_batches(job_id)}/")
    usable = [int(each.key.rpartition("/")[2]) for each in found if each.last_modified > since]
    lost = packed.exclude(pack__in=usable)
    with transaction.atomic():
        if Job.objects.select_for_update().filter(pk=job_id, completion_token=token).exists():
            lost.update(pack=None, pack_offset=None)


# ---- Packs of completions -------------------------------------------------------------------------------------------


def is_packed(chunk: Chunk) -> bool:
    return (chunk.bytes or 0) <= PACKED_BYTES


def number_of(chunk: Chunk) -> int:
    return chunk.seq // FILES


def key_of(folder: str, number: int) -> str:
    return f"{folder}/packs/{number}"


def read_from_completion(folder: str, chunk: Chunk) -> bytes:
    """Return the bytes of a file. Raises storage.Missing.

    The file's offset is the total size of the files before it in the pack.
    """
    if not chunk.bytes:
        return b""
    before = Chunk.objects.filter(
        job_id=chunk.job_id,
        seq__gte=number_of(chunk) * FILES,
        seq__lt=chunk.seq,
        bytes__lte=PACKED_BYTES,
        pack__isnull=True,
    )
    start = before.aggregate(bytes=Sum("bytes"))["bytes"] or 0
    return storage.read_span(key_of(folder, number_of(chunk)), start=start, size=chunk.bytes)


# ---- Reading --------------------------------------------------------------------------------------------------------


def read(folder: str, chunk: Chunk) -> bytes | None:
    """Return a chunk's file from the pack of its batch or of the delivery.

    Return None if the file is too large for a pack, or if the pack does not contain bytes with its checksum.
    """
    if not is_packed(chunk):
        return None
    if chunk.pack is not None:
        return read_group([chunk])[0]
    try:
        return checked(read_from_completion(folder, chunk), chunk)
    except storage.Missing:
        return None


def checked(content: bytes, chunk: Chunk) -> bytes | None:
    """Return the content if it has the chunk's checksum."""
    return content if hashlib.sha256(content).hexdigest() == chunk.sha256 else None
