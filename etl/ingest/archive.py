"""ZIP archives of documents, read within limits.

Nothing is extracted to the file system, and file names are only displayed. Declared sizes are not trusted: an entry is
decompressed up to its declared size at most, and its checksum must match.
"""

import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from posixpath import basename
from typing import IO, Any, cast

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile

from config.platform.http.problems import BadInput, InputError
from etl.core.formats import HEAD_BYTES, DocumentFormat
from etl.ingest.acceptance import accepted_format, check_count
from etl.ingest.uploads import StoredDocument, display_name, store_blocks

BLOCK = 65_536
SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
ENCRYPTED = 0x1  # a flag of an entry
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # other methods decompress without a memory limit
# Size limit of the list of entries, which is read into memory: bytes for each document of a batch, plus a fixed number.
ENTRY_BYTES, LIST_BYTES = 1_024, 65_536
# An entry with a higher compression ratio is a decompression bomb, unless it is small.
MAX_RATIO, SMALL = 200, 1024**2
MAX_EXPANSION = 10  # maximum size of all documents, as a multiple of the maximum size of a request
UNSAFE = re.compile(r"^/|^[A-Za-z]:|\\|(^|/)\.\.(/|$)")
IGNORED = re.compile(r"(^|/)(__MACOSX/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)|/$")
# OverflowError: a ZIP64 offset that is larger than any file.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, OverflowError, RuntimeError, ValueError)


def is_archive(head: bytes) -> bool:
    return head.startswith(SIGNATURES)


def refusal(code: str, detail: str) -> BadInput:
    return BadInput(InputError(pointer="/file", code=code, detail=detail))


def documents_in(file: UploadedFile) -> list["ArchivedDocument"]:
    """Return the documents in the order of the archive, without folders and hidden files of macOS and Windows.

    Raises BadInput if the archive is damaged, has no documents, or exceeds a limit.
    """
    zipped = open_archive(cast("IO[bytes]", file.file))
    lock = threading.Lock()
    entries = [entry for entry in zipped.infolist() if not IGNORED.search(entry.filename)]
    if not entries:
        raise refusal("no_documents", "The archive contains no documents.")
    check_count(len(entries), pointer="/file")
    size, limit = sum(entry.file_size for entry in entries), MAX_EXPANSION * settings.SLUICE.etl_max_batch_bytes
    if size > limit:
        raise refusal("archive_too_large", f"The files of the archive have {size:,} bytes; the limit is {limit:,}.")
    return [ArchivedDocument(zipped, entry, lock) for entry in entries]


def open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        # ZipFile reads the whole list of entries into memory, so check its size first.
        end: Any = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        limit = LIST_BYTES + ENTRY_BYTES * settings.SLUICE.etl_max_batch
        if end and end[zipfile._ECD_SIZE] > limit:  # type: ignore[attr-defined]
            raise refusal("too_many_entries", f"The list of files of the archive is larger than {limit:,} bytes.")
        return zipfile.ZipFile(file)
    except ZIP_ERRORS:
        raise refusal("archive_corrupt", "The archive is damaged, or is not a ZIP file.") from None


class ArchivedDocument:
    """A document in an archive."""

    upload = ""

    def __init__(self, zipped: zipfile.ZipFile, entry: zipfile.ZipInfo, lock: threading.Lock) -> None:
        self.zipped, self.entry, self.lock = zipped, entry, lock

    @property
    def name(self) -> str:
        return self.entry.filename

    @property
    def size(self) -> int:
        return self.entry.file_size

    @cached_property
    def kind(self) -> DocumentFormat:
        self.check_entry()
        head = b""
        if 0 < self.size <= settings.SLUICE.etl_max_file_bytes:
            head = next(self.blocks(HEAD_BYTES), b"")
        return accepted_format(head, size=self.size, name=basename(self.name), pointer="/file")

    def check(self) -> None:
        """Raise a problem if the document is not accepted."""
        _ = self.kind

    def check_entry(self) -> None:
        entry = self.entry
        if UNSAFE.search(entry.filename) or stat.S_ISLNK(entry.external_attr >> 16):
            raise refusal("unsafe_path", "The path points outside of the archive.")
        if entry.flag_bits & ENCRYPTED:
            raise refusal("file_encrypted", "The file is encrypted.")
        if entry.compress_type not in METHODS:
            raise refusal("unsupported_compression", "The file is compressed with a method other than deflate.")
        if entry.file_size > SMALL and entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
            raise refusal("compression_ratio", f"The file is more than {MAX_RATIO} times its compressed size.")

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """Yield the content. Raises BadInput if it is damaged. Safe to call from several threads."""
        try:
            with self.lock:  # ZipFile counts its open entries without a lock
                part = self.zipped.open(self.entry)
            try:
                while block := part.read(size):
                    yield block
            finally:
                with self.lock:
                    part.close()
        except ZIP_ERRORS:
            raise refusal("file_corrupt", "The file is damaged.") from None

    def store(self, mark: Mapping[str, str]) -> StoredDocument:
        """Store the document. Raises StorageUnavailable, and BadInput if it is damaged."""
        filename = display_name(basename(self.name), default=f"document.{self.kind.value}")
        return store_blocks(self.blocks(), mark, kind=self.kind, size=self.size, filename=filename)
