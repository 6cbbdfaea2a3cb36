"""A strict sequential reader of zips, with the rules of Java's ZipInputStream. It ignores the central directory."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

LOCAL, DESCRIPTOR, CENTRAL = b"PK\x03\x04", b"PK\x07\x08", b"PK\x01\x02"
HAS_DESCRIPTOR = 1 << 3
STORED, DEFLATED = 0, 8
MAX_SIZE = 0xFFFFFFFF
ZIP64 = 1  # the ID of the extra field


class LocalHeader(NamedTuple):
    """The fields of a local file header that a reader needs. The CRC and the sizes are those recorded."""

    version: int
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    name: str
    extra: bytes

    @property
    def is_zip64(self) -> bool:
        return self.extra[:2] == struct.pack("<H", ZIP64)


class Refused(Exception):
    """A zip for which Java's ZipInputStream would raise a ZipException."""


def read_header(stream: BytesIO) -> LocalHeader:
    """Read a local header after its signature."""
    version, flags, method, _time, crc, compressed, size, name, extra = struct.unpack("<HHHIIIIHH", stream.read(26))
    return LocalHeader(version, flags, method, crc, compressed, size, stream.read(name).decode(), stream.read(extra))


def entries(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each entry. Raises Refused."""
    stream = BytesIO(archive)
    while (signature := stream.read(4)) == LOCAL:
        header = read_header(stream)
        yield header.name, content_of(stream, header)
    if signature != CENTRAL:
        raise Refused(f"no header, but {signature!r}")


def content_of(stream: BytesIO, header: LocalHeader) -> bytes:
    if header.method == STORED:
        if header.flags & HAS_DESCRIPTOR:
            raise Refused("only DEFLATED entries can have EXT descriptor")
        content = stream.read(header.size)
        verify(header.name, (zlib.crc32(content), len(content), len(content)), header[3:6])
        return content
    assert header.method == DEFLATED
    decompressor, start = zlib.decompressobj(-15), stream.tell()
    content = decompressor.decompress(stream.read())
    if not decompressor.eof:
        raise Refused("unexpected end of the compressed bytes")
    end = len(stream.getvalue()) - len(decompressor.unused_data)
    stream.seek(end)
    recorded = read_descriptor(stream, end - start, len(content)) if header.flags & HAS_DESCRIPTOR else header[3:6]
    verify(header.name, (zlib.crc32(content), end - start, len(content)), recorded)
    return content


def read_descriptor(stream: BytesIO, compressed: int, size: int) -> tuple[int, ...]:
    """Read a descriptor with or without its signature. Its sizes have 8 bytes only if the actual sizes need them."""
    if stream.read(4) != DESCRIPTOR:
        stream.seek(-4, 1)
    form = "<IQQ" if max(compressed, size) > MAX_SIZE else "<III"
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def verify(name: str, actual: tuple[int, ...], recorded: tuple[int, ...]) -> None:
    if actual != recorded:
        raise Refused(f"{name}: invalid entry: CRC and sizes are {actual}, but recorded are {recorded}")
