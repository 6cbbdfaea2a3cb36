"""Reading requests that a file comes with: in bounded space, whatever they say of its length."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, TemporaryFileUploadHandler

from config.api.bodies import Files
from config.api.problems import NoRoom, is_full
from etl.refusals import FileTooLarge

# What multipart/form-data may hold besides the file: boundaries, headers, other fields.
FRAMING_BYTES = 64 * 1024
# Where files are sent to; everywhere else bodies are small.
PATHS = {
    "/api/v1/etl/submit": Files(most=settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=FileTooLarge),
    # The plain form of the page. What is a little too large is refused by the page itself, in HTML.
    "/app/documents/submit": Files(
        most=2 * settings.SLUICE.etl_max_file_bytes + FRAMING_BYTES, problem=FileTooLarge, page="/app/documents"
    ),
}


class BoundedFile(TemporaryFileUploadHandler):
    """Writes a file of the request to disk, and stops at the first byte too many, however long it claims to be."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        """Name the file on disk ourselves: Django takes the end of the client's name, which may be longer than a file
        system bears."""
        FileUploadHandler.new_file(self, *args, **kwargs)
        with room():
            self.file = TemporaryUploadedFile("document", self.content_type, 0, self.charset, self.content_type_extra)
        self.file.name = self.file_name

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        with self.closed_unless_whole():
            if start + len(raw_data) > settings.SLUICE.etl_max_file_bytes:
                raise FileTooLarge
            super().receive_data_chunk(raw_data, start)

    def file_complete(self, file_size: int) -> UploadedFile | None:
        with self.closed_unless_whole():
            return super().file_complete(file_size)

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
