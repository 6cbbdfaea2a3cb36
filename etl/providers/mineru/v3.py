"""MinerU 3.x, self-hosted: `mineru-api` up to 3.4 (its `protocol_version` 2).

It has no tiers but backends, takes the bytes, cannot be stopped, and answers with an archive when asked to.
"""

from http import HTTPStatus
from typing import Any, BinaryIO

from etl.core.errors import OcrRefused
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import Answer, Garbage, refuse
from etl.providers.mineru.protocol import Failed, Gone, Protocol, Standing, WrongProtocol, job_id, milliseconds

WORKING = {"pending", "processing"}
# What the tiers of 4.0 run on here. Without one the server's own default is taken, which is its best.
BACKENDS = {
    "flash": "pipeline",
    "basic": "pipeline",
    "standard": "hybrid-engine",
    "advanced": "hybrid-engine",
}
# The archive without images: pages come from the content list, and from the middle JSON which of them there are.
WANTED = {
    "return_md": "true",
    "return_content_list": "true",
    "return_middle_json": "true",
    "return_images": "false",
    "response_format_zip": "true",
}


class V3(Protocol):
    name = "v3"

    def submit(self, document: Document) -> str:
        backend = BACKENDS.get(self.tier, self.tier)
        form = WANTED | ({"backend": backend} if backend else {})
        answer = self.door.send("tasks", document=document.path, name=document.name, data=form)
        check(answer)
        return job_id(answer.json().get("task_id"))

    def look(self, job: str) -> Standing:
        answer = self.door.get("tasks", job)
        if answer.status == HTTPStatus.NOT_FOUND:
            raise Gone
        check(answer)
        return self._standing(answer.json())

    def fetch(self, job: str, standing: Standing, *, into: BinaryIO) -> None:
        answer = self.door.fetch("tasks", job, "result", into=into)
        if answer.status == HTTPStatus.NOT_FOUND:
            raise Gone
        if answer.status == HTTPStatus.CONFLICT:
            self._standing(answer.json())
        check(answer)
        if answer.status != HTTPStatus.OK:
            raise Garbage

    def _standing(self, body: dict[str, Any]) -> Standing:
        status = body.get("status")
        if status == "failed":
            raise Failed(error_codes.explain("", str(body.get("error") or "")))
        if status == "completed":
            backend = str(body.get("backend") or "")[:64]
            times = milliseconds(body.get("started_at"), body.get("completed_at"))
            return Standing(is_over=True, facts={"backend": backend} | times)
        if status not in WORKING:
            raise Garbage
        return Standing(is_over=False)


def check(answer: Answer) -> None:
    """Raise what `{"detail": …}` and its status mean."""
    refuse(answer)
    if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
        raise WrongProtocol
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise error_codes.explain("", answer.text("detail"), otherwise=OcrRefused)
