"""Protocol of self-hosted MinerU 3.x: `mineru-api` up to 3.4 (`protocol_version` 2).

The server has backends instead of tiers. It accepts the document in the request, returns an archive on request, and
cannot cancel jobs.
"""

from http import HTTPStatus
from typing import Any

from etl.core.errors import OcrRefused
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import InvalidOcrResponse, MinerUResponse, raise_for_status, short_text
from etl.providers.mineru.protocol import JobFailed, JobState, SelfHosted, WrongProtocol, milliseconds

WORKING = {"pending", "processing"}
# The backend for each tier of MinerU 4.0. Other values of the tier are names of backends. Without a backend in the
# request, the server uses its default, the best one.
BACKENDS = {
    "flash": "pipeline",
    "basic": "pipeline",
    "standard": "hybrid-engine",
    "advanced": "hybrid-engine",
}
# Form fields that request an archive without images. The content list has the text of pages, and the middle JSON lists
# all pages.
UPLOAD_FIELDS = {
    "return_md": "true",
    "return_content_list": "true",
    "return_middle_json": "true",
    "return_images": "false",
    "response_format_zip": "true",
}


class V3(SelfHosted):
    name = "v3"
    tasks = ("tasks",)

    def submit(self, document: Document) -> str:
        backend = BACKENDS.get(self.tier, self.tier)
        return self.upload(document, data=UPLOAD_FIELDS | ({"backend": backend} if backend else {}))

    def check(self, response: MinerUResponse) -> None:
        """Raise the error that the HTTP status and the body `{"detail": …}` report."""
        raise_for_status(response)
        if response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
            raise WrongProtocol
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise error_codes.error_for("", response.text("detail"), otherwise=OcrRefused)

    def state(self, body: dict[str, Any]) -> JobState:
        status = body.get("status")
        if status == "failed":
            raise JobFailed(error_codes.error_for("", str(body.get("error") or "")))
        if status == "completed":
            backend = short_text(body, "backend")
            times = milliseconds(body.get("started_at"), body.get("completed_at"))
            return JobState(is_over=True, facts={"backend": backend} | times)
        if status not in WORKING:
            raise InvalidOcrResponse
        return JobState(is_over=False)
