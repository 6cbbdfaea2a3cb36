"""ZIP archives of Office documents, with limits. Nothing is extracted to files. Nested archives are not opened."""

import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from posixpath import dirname, join, normpath
from typing import IO, Any, BinaryIO

from etl.core.errors import FileCorrupt, FileEncrypted, FileTooLarge, TooManyParts
from etl.providers.local.office.bounds import MAX_ARCHIVE, MAX_ENTRIES, MAX_TREE
from etl.providers.local.office.xml import attribute, local_name, parse

ENCRYPTED_OFFICE = b"\xd0\xcf\x11\xe0"  # Office stores an encrypted document in an OLE file
BLOCK = 65_536
ENCRYPTED = 0x1  # a flag of an entry
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError)


class Archive:
    """The parts of a document. Limits the number of decompressed bytes, because declared sizes are untrusted."""

    def __init__(self, file: BinaryIO) -> None:
        if file.read(4) == ENCRYPTED_OFFICE:
            raise FileEncrypted
        file.seek(0)
        try:
            self.zip = zipfile.ZipFile(file)
        except ZIP_ERRORS:
            raise FileCorrupt from None
        if len(self.zip.infolist()) > MAX_ENTRIES:
            raise TooManyParts.of(len(self.zip.infolist()), MAX_ENTRIES)
        self.entries = {entry.filename: entry for entry in self.zip.infolist()}
        self.remaining = MAX_ARCHIVE

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str, *, limit: int = MAX_TREE) -> bytes:
        """Return the bytes of a part. Raises FileCorrupt (also for a missing part), FileEncrypted, and FileTooLarge."""
        parts = BytesIO()
        for block in self.blocks(name):
            parts.write(block)
            if parts.tell() > limit:
                raise FileTooLarge.of(parts.tell(), limit)
        return parts.getvalue()

    def blocks(self, name: str) -> Iterator[bytes]:
        if (entry := self.entries.get(name)) is None:
            raise FileCorrupt
        if entry.flag_bits & ENCRYPTED:
            raise FileEncrypted
        try:
            with self.zip.open(entry) as part:
                while block := part.read(BLOCK):
                    self.remaining -= len(block)
                    if self.remaining < 0:
                        raise FileTooLarge.of(MAX_ARCHIVE - self.remaining, MAX_ARCHIVE)
                    yield block
        except ZIP_ERRORS:
            raise FileCorrupt from None

    def stream(self, name: str) -> IO[bytes]:
        """Return a part as a file that decompresses while it is read."""
        return BlockFile(self.blocks(name))  # type: ignore[return-value]

    def tree(self, name: str) -> Any:
        """Return the root element of a part. Raises the errors of `read`."""
        return parse(self.read(name))

    def optional(self, name: str) -> Any:
        return self.tree(name) if name in self else None

    # ---- Relationships of Office documents --------------------------------------------------------------------------
    def main_part(self) -> str:
        """Return the name of the main document part."""
        targets = [target for kind, target in self.related("").values() if kind == "officeDocument"]
        if not targets:
            raise FileCorrupt
        return targets[0]

    def related(self, part: str) -> dict[str, tuple[str, str]]:
        """Return the kinds and names of the parts that a part refers to, by relationship ID. Omit external ones."""
        folder, _, name = part.rpartition("/")
        root = self.optional(join(folder, "_rels", f"{name}.rels"))
        found = {}
        for each in root if root is not None else ():
            target = attribute(each, "Target")
            if local_name(each) == "Relationship" and attribute(each, "TargetMode") != "External":
                path = target.lstrip("/") if target.startswith("/") else normpath(join(dirname(part), target))
                found[attribute(each, "Id")] = (attribute(each, "Type").rpartition("/")[2], path)
        return found

    def parts_of_kind(self, part: str, kind: str) -> list[str]:
        return [name for each, name in self.related(part).values() if each == kind and name in self]


class BlockFile:
    """File object that reads from an iterator of blocks, for a streaming parser."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.rest = blocks, b""

    def read(self, size: int) -> bytes:
        while len(self.rest) < size and (block := next(self.blocks, b"")):
            self.rest += block
        part, self.rest = self.rest[:size], self.rest[size:]
        return part
