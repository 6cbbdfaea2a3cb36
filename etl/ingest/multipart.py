"""Uploads by multipart/form-data, in bounded space whatever length they declare."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from config.platform.http.body_limits import Files
from config.platform.http.problems import DiskFull, is_full
from etl.ingest.acceptance import UploadTooLarge
from etl.models.evaluation import MAX_EXPECTED_BYTES

# The allowance for boundaries, headers, and other fields.
FRAMING_BYTES = 64 * 1024
# The paths that accept files, as patterns. All other paths have a small body limit.
FILES = {
    "/api/v1/etl/submit": Files(most=settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge),
    "/api/v1/etl/rules/[0-9]+/samples": Files(
        most=settings.SLUICE.etl_max_file_bytes + MAX_EXPECTED_BYTES + FRAMING_BYTES, problem=UploadTooLarge
    ),
    # The form on the page. The view itself rejects slightly too large files, with an HTML page.
    "/app/documents/submit": Files(
        most=2 * settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge, page="/app/documents"
    ),
}


class BoundedFile(FileUploadHandler):
    """Upload handler that writes to an unnamed temporary file, and stops at the size limit.

    The kernel deletes the file with the process, even after a crash.
    """

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
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


@contextmanager
def room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull from None
        raise
