"""Packs: a few objects with the concatenated small files of a manifest's delivery.

Copying each file would take thousands of requests, although few of the files may ever be downloaded. When a file is
requested for the first time, `exports.delivery.chunk_files` extracts it from its pack.

There are two kinds of packs. A worker that runs a batch of chunks still has their bytes in memory, and stores them in a
pack of the batch before it finishes the chunks. Each file is a zstd frame in this pack, because smaller uploads are
faster. The completion stores all other files in its own packs, without compressing them.
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

# The folder of delivered objects. No dataset can write to it: a base path never begins with an underscore.
PREFIX = "_receipts"

# These values and `key_of` are a storage format: existing packs depend on them, so they must not change.
PACKED_BYTES = 1024 * 1024  # the largest file in a pack
FILES = 1000  # chunks per pack of a completion

CONTENT_TYPE = "application/octet-stream"


# ---- Packs of batches -----------------------------------------------------------------------------------------------

BATCH_BYTES = 8 * 1024 * 1024  # the largest pack of a batch, which is stored by one request
# A completion packs the files of older packs again: the sweep deletes packs without a receipt after an hour, and the
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

    A file that was not packed is not an error: the completion packs the remaining files. The leases of the chunks
    are not renewed meanwhile, so this sends a single request that takes a few seconds at most, and none if an outage of
    the storage is suspected.
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


def read_from_batch(chunk: Chunk) -> bytes:
    """Return the bytes of a file, or b"" if the frame has the wrong size.

    Raises storage.Missing and zstandard.ZstdError.
    """
    span = longest_frame(chunk.bytes or 0)
    frame = storage.read_span(key_of_batch(chunk.job_id, chunk.pack or 0), start=chunk.pack_offset or 0, size=span)
    # The size is checked before memory is allocated for it.
    return zstandard.decompress(frame) if zstandard.frame_content_size(frame) == chunk.bytes else b""


def unset_lost_packs(job_id: UUID, token: int) -> None:
    """Make the completion with this token pack the files whose pack is missing or too old. Raises StorageError.

    Packs can be missing after a restore of the database or the bucket. Their age is measured by the storage's clock, as
    the sweep and the lifecycle rule measure it.
    """
    since = storage.now() - MAX_BATCH_AGE
    found = storage.list_objects(f"{folder_of_batches(job_id)}/")
    usable = [int(each.key.rpartition("/")[2]) for each in found if each.last_modified > since]
    lost = Chunk.objects.filter(job_id=job_id, pack__isnull=False).exclude(pack__in=usable)
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
    try:
        content = read_from_batch(chunk) if chunk.pack is not None else read_from_completion(folder, chunk)
    except (storage.Missing, zstandard.ZstdError):
        return None
    return content if hashlib.sha256(content).hexdigest() == chunk.sha256 else None
