"""Uploads by multipart/form-data, with limited disk space regardless of the declared length."""

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

# Allowance for boundaries, headers, and other fields of a form.
FRAMING_BYTES = 64 * 1024
# Allowance for boundaries and headers of each file of a batch.
FRAMING_OF_FILE = 1024
BATCH_BYTES = settings.SLUICE.etl_max_batch_bytes + FRAMING_OF_FILE * settings.SLUICE.etl_max_batch + FRAMING_BYTES
MAX_FILES = 100  # files of a form that is meant for one file
# The paths that accept files, as patterns. All other paths have a small body limit.
FILES = {
    "/api/v1/etl/submit": Files(limit=settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge),
    "/api/v1/etl/rules/[0-9]+/samples": Files(
        limit=settings.SLUICE.etl_max_file_bytes + MAX_EXPECTED_BYTES + FRAMING_BYTES, problem=UploadTooLarge
    ),
    "/api/v1/etl/batches": Files(limit=BATCH_BYTES, problem=BatchTooLarge),
    "/app/documents/batches/submit": Files(limit=BATCH_BYTES, problem=BatchTooLarge, page="/app/documents/batches"),
    # The form on the page. If a file is slightly too large, the view rejects it with an HTML page.
    "/app/documents/submit": Files(
        limit=2 * settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge, page="/app/documents"
    ),
}


class BoundedFile(FileUploadHandler):
    """Upload handler that writes a file to an unnamed temporary file, and stops at the size limit.

    The kernel deletes the file when the process ends, even after a crash.
    """

    files = 0

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.files += 1
        if self.files > MAX_FILES:
            raise TooManyFilesSent
        with translate_disk_full():
            unnamed = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - Django closes it
        self.file = UploadedFile(unnamed, self.file_name, self.content_type, 0, self.charset, self.content_type_extra)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with self.close_on_error():
            if start + len(raw_data) > settings.SLUICE.etl_max_file_bytes:
                raise UploadTooLarge
            self.file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        with self.close_on_error():
            self.file.seek(0)
        self.file.size = file_size
        return self.file

    def upload_interrupted(self) -> None:
        if hasattr(self, "file"):
            self.file.close()

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Close and thereby delete the file on errors, because Django closes only files that were read completely."""
        try:
            with translate_disk_full():
                yield
        except BaseException:
            with suppress(OSError):
                self.file.close()
            raise


class FilesInOne(FileUploadHandler):
    """Upload handler that writes all files of a request into one unnamed temporary file.

    A file for each of a thousand documents would exceed the limit of open files of a process. The size of the body is
    limited by its path, and the size of each document is checked later. The file is closed when this handler, which
    belongs to the request, is deleted.
    """

    begin = 0

    @cached_property
    def shared_file(self) -> IO[bytes]:
        with translate_disk_full():
            file = tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - closed in the next line
        weakref.finalize(self, file.close)
        return file

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.begin = self.shared_file.tell()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with translate_disk_full():
            self.shared_file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        with translate_disk_full():
            self.shared_file.flush()
        part: Any = PartOfFile(self.shared_file, begin=self.begin, size=file_size)
        return UploadedFile(part, self.file_name, self.content_type, file_size, self.charset, self.content_type_extra)


class PartOfFile(io.RawIOBase):
    """A readable part of a file. Each part has its own position, so threads can read parts of the same file."""

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
            raise OSError(errno.EINVAL, "a position before the start")  # like a file, as zipfile expects
        self.position = origin + offset
        return self.position

    def tell(self) -> int:
        return self.position


@contextmanager
def translate_disk_full() -> Iterator[None]:
    """Translate the error of a full disk to DiskFull."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull from None
        raise
