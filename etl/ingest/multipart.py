"""Uploads by multipart/form-data, in bounded space whatever length they declare."""

import errno
import io
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import TooManyFilesSent
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from config.platform.http.body_limits import Files
from config.platform.http.problems import DiskFull, is_full
from etl.ingest.acceptance import BatchTooLarge, UploadTooLarge
from etl.models.evaluation import MAX_EXPECTED_BYTES

# The allowance for boundaries, headers, and other fields.
FRAMING_BYTES = 64 * 1024
# The same for each file of a batch.
FRAMING_OF_FILE = 1024
MAX_FILES = 100  # of a form for one file
# The paths that accept files, as patterns. All other paths have a small body limit.
FILES = {
    "/api/v1/etl/submit": Files(limit=settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge),
    "/api/v1/etl/rules/[0-9]+/samples": Files(
        limit=settings.SLUICE.etl_max_file_bytes + MAX_EXPECTED_BYTES + FRAMING_BYTES, problem=UploadTooLarge
    ),
    "/api/v1/etl/batches": Files(
        limit=settings.SLUICE.etl_max_batch_bytes + FRAMING_OF_FILE * settings.SLUICE.etl_max_batch + FRAMING_BYTES,
        problem=BatchTooLarge,
    ),
    "/app/documents/batches/submit": Files(
        limit=settings.SLUICE.etl_max_batch_bytes + FRAMING_OF_FILE * settings.SLUICE.etl_max_batch + FRAMING_BYTES,
        problem=BatchTooLarge,
        page="/app/documents/batches",
    ),
    # The form on the page. The view itself rejects slightly too large files, with an HTML page.
    "/app/documents/submit": Files(
        limit=2 * settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge, page="/app/documents"
    ),
}


class BoundedFile(FileUploadHandler):
    """Upload handler that writes to an unnamed temporary file, and stops at the size limit.

    The kernel deletes the file with the process, even after a crash.
    """

    files = 0

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.files += 1
        if self.files > MAX_FILES:
            raise TooManyFilesSent
        with room():
            nameless = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - Django closes it
        self.file = UploadedFile(nameless, self.file_name, self.content_type, 0, self.charset, self.content_type_extra)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with self.closed_unless_whole():
            if start + len(raw_data) > settings.SLUICE.etl_max_file_bytes:
                raise UploadTooLarge
            self.file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        with self.closed_unless_whole():
            self.file.seek(0)
        self.file.size = file_size
        return self.file

    def upload_interrupted(self) -> None:
        if hasattr(self, "file"):
            self.file.close()

    @contextmanager
    def closed_unless_whole(self) -> Iterator[None]:
        """Close, and so delete, the file on errors: Django closes only files that were read completely."""
        try:
            with room():
                yield
        except BaseException:
            with suppress(OSError):
                self.file.close()
            raise


class FilesInOne(FileUploadHandler):
    """Upload handler that writes all files into one unnamed temporary file: a process may not open a thousand.

    The size of the body is limited by its path, and that of each document is checked later. The file is closed with
    this handler, which the request holds.
    """

    begin = 0

    @cached_property
    def together(self) -> IO[bytes]:
        with room():
            file = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - closed in the next line
        weakref.finalize(self, file.close)
        return file

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.begin = self.together.tell()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with room():
            self.together.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        with room():
            self.together.flush()
        part: Any = PartOfFile(self.together, begin=self.begin, size=file_size)
        return UploadedFile(part, self.file_name, self.content_type, file_size, self.charset, self.content_type_extra)


class PartOfFile(io.RawIOBase):
    """A part of a file, to read. It has a position of its own, so that threads can read parts of the same file."""

    def __init__(self, file: IO[bytes], *, begin: int, size: int) -> None:
        self.file, self.begin, self.size = file, begin, size
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.size - self.position)
        block = os.pread(self.file.fileno(), max(wanted, 0), self.begin + self.position)
        buffer[: len(block)] = block
        self.position += len(block)
        return len(block)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        if origin + offset < 0:
            raise OSError(errno.EINVAL, "a position before the start")  # as of a file, which zipfile expects
        self.position = origin + offset
        return self.position

    def tell(self) -> int:
        return self.position


@contextmanager
def room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull from None
        raise
