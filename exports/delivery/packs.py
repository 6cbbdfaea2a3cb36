"""Packs: the small files of a manifest's delivery, which lie one after the other in a few objects.

A copy of each would take thousands of requests for files of which few may ever be downloaded. A pack keeps their bytes
as well. The first request for a file takes it out of its pack: `exports.delivery.chunk_files`.
"""

import hashlib

from django.db.models import Sum

from config.platform import storage
from exports.models import Chunk

# These two and `key_of` are a format: packs of live receipts were made with them.
PACKED_BYTES = 1024 * 1024  # the largest file in a pack
FILES = 1000  # chunks of a pack

CONTENT_TYPE = "application/octet-stream"


def is_packed(chunk: Chunk) -> bool:
    return (chunk.bytes or 0) <= PACKED_BYTES


def number_of(chunk: Chunk) -> int:
    return chunk.seq // FILES


def key_of(folder: str, number: int) -> str:
    return f"{folder}/packs/{number}"


def read(folder: str, chunk: Chunk) -> bytes | None:
    """Return a chunk's file from its pack in the folder of a delivery, or None if it is not there.

    Its place follows from the sizes of the files before it, and its checksum decides.
    """
    if not is_packed(chunk):
        return None
    number = number_of(chunk)
    before = Chunk.objects.filter(
        job_id=chunk.job_id, seq__gte=number * FILES, seq__lt=chunk.seq, bytes__lte=PACKED_BYTES
    )
    start = before.aggregate(bytes=Sum("bytes"))["bytes"] or 0
    try:
        content = storage.read_span(key_of(folder, number), start=start, size=chunk.bytes) if chunk.bytes else b""
    except storage.Missing:
        return None
    return content if hashlib.sha256(content).hexdigest() == chunk.sha256 else None
