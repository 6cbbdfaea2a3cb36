"""Reading requests that a file comes with: in bounded space, whatever they say of its length."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from config.platform.http.body_limits import Files
from config.platform.http.problems import NoRoom, is_full
from etl.ingest.acceptance import UploadTooLarge

# What multipart/form-data may hold besides the file: boundaries, headers, other fields.
FRAMING_BYTES = 64 * 1024
# Where files are sent to; everywhere else bodies are small.
FILES = {
    "/api/v1/etl/submit": Files(most=settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge),
    # The plain form of the page. What is a little too large is refused by the page itself, in HTML.
    "/app/documents/submit": Files(
        most=2 * settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=UploadTooLarge, page="/app/documents"
    ),
}


class BoundedFile(FileUploadHandler):
    """Writes a file of the request to disk, and stops at the first byte too many, however long it claims to be.

    The file has no name there: it is gone with this process, however that ends.
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
        """Django closes, and with it deletes, only the files that were read to their end."""
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
            raise NoRoom from None
        raise
