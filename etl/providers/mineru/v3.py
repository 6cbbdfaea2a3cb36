"""MinerU 3.x, self-hosted: `mineru-api` up to 3.4 (its `protocol_version` 2).

It has backends instead of tiers, accepts the bytes, cannot cancel a job, and returns an archive on request.
"""

from http import HTTPStatus
from typing import Any

from etl.core.errors import OcrRefused
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import InvalidOcrResponse, MinerUResponse, raise_for_status, short_text
from etl.providers.mineru.protocol import JobFailed, JobState, SelfHosted, WrongProtocol, milliseconds

WORKING = {"pending", "processing"}
# Backends for the tiers of 4.0. Without one, the server uses its default, which is its best.
BACKENDS = {
    "flash": "pipeline",
    "basic": "pipeline",
    "standard": "hybrid-engine",
    "advanced": "hybrid-engine",
}
# The archive without images: the content list has the text of pages, and the middle JSON lists all pages.
WANTED = {
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
        return self.upload(document, data=WANTED | ({"backend": backend} if backend else {}))

    def check(self, response: MinerUResponse) -> None:
        """Raise the error of `{"detail": …}` and its status."""
        raise_for_status(response)
        if response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
            raise WrongProtocol
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise error_codes.explain("", response.text("detail"), otherwise=OcrRefused)

    def state(self, body: dict[str, Any]) -> JobState:
        status = body.get("status")
        if status == "failed":
            raise JobFailed(error_codes.explain("", str(body.get("error") or "")))
        if status == "completed":
            backend = short_text(body, "backend")
            times = milliseconds(body.get("started_at"), body.get("completed_at"))
            return JobState(is_over=True, facts={"backend": backend} | times)
        if status not in WORKING:
            raise InvalidOcrResponse
        return JobState(is_over=False)
