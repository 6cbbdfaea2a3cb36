"""Safe reader of untrusted zip files: results of servers, and Office files that are sent to them.

Nothing is extracted to files. Members are selected by the suffixes of their names and read into memory. Their sizes are
counted during decompression, because declared sizes may be false (decompression bomb). A result with a member outside
of its directory (path traversal) is rejected.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from etl.core.stage_context import StageContext

MAX_MEMBERS = 2_000
MAX_MEMBER_BYTES = 32 * 1024**2  # of a member that is read; parsed JSON takes many times as much memory
MAX_TOTAL_BYTES = 1024**3  # declared, of all members
MAX_RATIO = 200
# Smaller members may have any ratio, because harmless ones may compress very well.
MIN_BYTES_FOR_RATIO = 4 * 1024**2
BLOCK = 1024**2
ENCRYPTED = 0x1

# The end record of an archive, and the zip64 records before it (APPNOTE 4.3.14 to 4.3.16).
END = struct.Struct("<4s4H2LH")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64 = struct.Struct("<4sLQL")
END_SIGNATURE, LOCATOR_64_SIGNATURE = b"PK\x05\x06", b"PK\x06\x07"
MAX_COMMENT_BYTES = 2**16
# Python creates an object of half a kilobyte for each entry of 46 bytes and a name.
MAX_DIRECTORY_BYTES = 4 * 1024**2


class DamagedArchive(Exception):
    """The file is damaged, or not an archive."""


class UnsafeArchive(Exception):
    """The archive is malicious or exceeds a limit."""


class TooManyMembers(UnsafeArchive):
    def __init__(self, found: int) -> None:
        super().__init__()
        self.found = found


class Archive:
    """An open archive, checked as far as possible without decompression."""

    def __init__(self, file: BinaryIO, *, max_members: int = MAX_MEMBERS) -> None:
        """Open the archive. Raises DamagedArchive and UnsafeArchive."""
        check_directory(file)
        with translated_errors():
            self._zip = ZipFile(file)
        self._members = self._zip.infolist()
        if len(self._members) > max_members:
            raise TooManyMembers(len(self._members))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._zip.close()

    def check_members(self) -> None:
        """Raise UnsafeArchive for unsafe members or sizes."""
        if not all(is_safe(member) for member in self._members):
            raise UnsafeArchive
        if sum(member.file_size for member in self._members) > MAX_TOTAL_BYTES:
            raise UnsafeArchive

    @property
    def is_encrypted(self) -> bool:
        return any(member.flag_bits & ENCRYPTED for member in self._members)

    def find(self, *endings: str) -> ZipInfo | None:
        """Return the member with the first ending that any name has, in the topmost folder. None if there is none."""
        for ending in endings:
            found = [member for member in self._members if member.filename.endswith(ending)]
            if found:
                return min(found, key=lambda member: (member.filename.count("/"), member.filename))
        return None

    def read(self, member: ZipInfo) -> bytes:
        """Return a member's bytes. Raises DamagedArchive, and UnsafeArchive if there are too many bytes."""
        if member.file_size > MAX_MEMBER_BYTES or exceeds_ratio(member):
            raise UnsafeArchive
        blocks: list[bytes] = []
        remaining = MAX_MEMBER_BYTES
        for block in self._blocks(member):
            remaining -= len(block)
            if remaining < 0:
                raise UnsafeArchive
            blocks.append(block)
        return b"".join(blocks)

    def measure(self, *, limit: int, context: StageContext) -> int:
        """Decompress all members, and return their size. Raises DamagedArchive, and UnsafeArchive above `limit`."""
        total = 0
        for member in self._members:
            for block in self._blocks(member):
                context.check()
                total += len(block)
                if total > limit:
                    raise UnsafeArchive
        return total

    def _blocks(self, member: ZipInfo) -> Iterator[bytes]:
        if member.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
            raise DamagedArchive  # other methods may take unlimited memory
        with translated_errors(), self._zip.open(member) as file:
            while block := file.read(BLOCK):
                yield block


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate the errors of zipfile and zlib for damaged, encrypted, and unusual archives."""
    try:
        yield
    except (BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise DamagedArchive from error


def check_directory(file: BinaryIO) -> None:
    """Reject an archive whose directory would fill memory, before zipfile reads the directory."""
    size = file.seek(0, 2)
    file.seek(max(0, size - MAX_COMMENT_BYTES - END.size - LOCATOR_64.size - END_64.size))
    tail = file.read()
    at = find_end_record(tail)
    if at < 0 or len(tail) < at + END.size:
        raise DamagedArchive
    directory_bytes = END.unpack_from(tail, at)[5]
    at_locator = at - LOCATOR_64.size
    at_64 = at_locator - END_64.size
    if at_locator >= 0 and tail.startswith(LOCATOR_64_SIGNATURE, at_locator):
        # Newer versions of zipfile read the record at the locator's offset, which could be anywhere in the file.
        if at_64 < 0 or LOCATOR_64.unpack_from(tail, at_locator)[2] != size - len(tail) + at_64:
            raise DamagedArchive
        directory_bytes = max(directory_bytes, END_64.unpack_from(tail, at_64)[8])
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise UnsafeArchive


def find_end_record(tail: bytes) -> int:
    """Return the position of the end record. Searches like zipfile, so that both use the same record."""
    last = len(tail) - END.size
    if last >= 0 and tail.startswith(END_SIGNATURE, last) and tail.endswith(b"\0\0"):
        return last
    return tail.rfind(END_SIGNATURE, max(0, last - MAX_COMMENT_BYTES))


def is_safe(member: ZipInfo) -> bool:
    # Checks the original name, because zipfile replaces the system's separator with / and cuts names at a zero byte.
    name = member.orig_filename
    parts = name.split("/")
    is_inside = not name.startswith("/") and ".." not in parts and ":" not in parts[0] and not {"\\", "\0"} & set(name)
    return is_inside and stat.S_IFMT(member.external_attr >> 16) in {0, stat.S_IFREG, stat.S_IFDIR}


def exceeds_ratio(member: ZipInfo) -> bool:
    return member.file_size > max(MIN_BYTES_FOR_RATIO, MAX_RATIO * member.compress_size)
