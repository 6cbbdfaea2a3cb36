"""Packs: a few objects with the concatenated small files of a manifest's delivery.

Copying each file would take thousands of requests, although few of the files may ever be downloaded. The first request
for a file extracts it from its pack: `exports.delivery.chunk_files`.

A worker that runs a batch of chunks has their bytes in memory, and packs them before it records their end. Each file is
a zstd frame in that pack, because an object storage stores fewer bytes faster. The completion packs the other files,
unchanged.
"""

import hashlib
from collections.abc import Sequence
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

# The folder of delivered objects. No dataset overlaps with it: a base path never begins with an underscore.
PREFIX = "_receipts"

# With `key_of`, a storage format: packs of live receipts were made with these values.
PACKED_BYTES = 1024 * 1024  # the largest file in a pack
FILES = 1000  # chunks of a pack of the completion

CONTENT_TYPE = "application/octet-stream"


# ---- Packs of batches -----------------------------------------------------------------------------------------------

BATCH_BYTES = 8 * 1024 * 1024  # the largest pack of a batch: one request
# A completion packs the files of older batches again: the sweep deletes packs without a receipt after an hour, and the
# bucket's lifecycle rule may delete objects an hour after the longest lifetime of a delivery.
BATCH_KEPT = timedelta(minutes=30)


def folder_of_batches(job_id: UUID | None) -> str:
    return f"{PREFIX}/{job_id}/batches"


def is_of_batch(key: str) -> bool:
    return key.split("/")[2:3] == ["batches"]


def key_of_batch(job_id: UUID, token: int) -> str:
    return f"{folder_of_batches(job_id)}/{token}"


def keep(job_id: UUID, token: int, contents: Sequence[bytes | None]) -> list[int | None]:
    """Store the files of a batch in a pack, and return the offset of each, or None for a file that was not packed.

    That is no failure, because the completion packs the remaining files. The leases of the chunks are not renewed
    meanwhile, so this makes one request of a few seconds at most, and none while the storage is suspected.
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
    """Return the maximum length of a frame with this number of bytes: `ZSTD_compressBound`, rounded up."""
    return size + size // 256 + 64


def read_from_batch(chunk: Chunk) -> bytes:
    """Return the bytes of a file, or b"" if its frame has another size. Raises storage.Missing and
    zstandard.ZstdError."""
    span = longest_frame(chunk.bytes or 0)
    frame = storage.read_span(key_of_batch(chunk.job_id, chunk.pack or 0), start=chunk.pack_offset or 0, size=span)
    # Checked before memory is allocated for it.
    return zstandard.decompress(frame) if zstandard.frame_content_size(frame) == chunk.bytes else b""


def unset_lost(job_id: UUID, token: int) -> None:
    """Let the completion with this token pack the files whose pack is old or gone. Raises StorageError.

    Packs are gone after a restore of the database, or of the bucket. Their age is by the storage's clock, as for
    the sweep and the lifecycle rule.
    """
    since = storage.now() - BATCH_KEPT
    found = storage.list_objects(f"{folder_of_batches(job_id)}/")
    there = [int(each.key.rpartition("/")[2]) for each in found if each.last_modified > since]
    lost = Chunk.objects.filter(job_id=job_id, pack__isnull=False).exclude(pack__in=there)
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
    """Return the bytes of a file, whose offset is the size of the packed files before it. Raises
    storage.Missing."""
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
    """Return a chunk's file from the pack of its batch or of the delivery, or None if no pack has bytes with its
    checksum."""
    if not is_packed(chunk):
        return None
    try:
        content = read_from_batch(chunk) if chunk.pack is not None else read_from_completion(folder, chunk)
    except (storage.Missing, zstandard.ZstdError):
        return None
    return content if hashlib.sha256(content).hexdigest() == chunk.sha256 else None
