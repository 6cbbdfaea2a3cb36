"""MinerU 4.0, self-hosted: `mineru-api` 4.0.x.

It takes the bytes, has tiers, of which one is always named (without one it refuses PDF where it has no models), and
can cancel a job. Its JSON includes all images; its archive has them as files, so the archive is requested. Both can be
read.
"""

from http import HTTPStatus
from typing import Any, BinaryIO

from etl.core.errors import EtlError, OcrFailed, OcrRefused, ProviderForbidden
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import InvalidOcrResponse, MinerUResponse, raise_for_status
from etl.providers.mineru.protocol import JobFailed, JobLost, JobState, Protocol, WrongProtocol, count, job_id

WORKING = {"queued", "running"}
OVER = {"completed", "partial"}
TIERS = ("flash", "basic", "standard", "advanced")
DEFAULT_TIER = "standard"  # the server's default
FORMATS = ["markdown", "structured_content", "zip"]


class V4(Protocol):
    name = "v4"
    can_cancel = True

    def submit(self, document: Document) -> str:
        options = {"tier": self.tier or DEFAULT_TIER, "output_formats": FORMATS}
        response = self.client.upload("v1", "tasks", document=document.path, name=document.name, params=options)
        check(response)
        return job_id(response.json().get("task_id"))

    def poll(self, job: str) -> JobState:
        response = self.client.get("v1", "tasks", job)
        if response.status == HTTPStatus.NOT_FOUND:
            raise JobLost
        check(response)
        return self._state(response.json())

    def fetch(self, job: str, state: JobState, *, into: BinaryIO) -> None:
        response = self.client.fetch("v1", "tasks", job, "result", into=into, params={"response_format": "zip"})
        if response.status == HTTPStatus.NOT_FOUND:
            raise JobLost
        if response.status == HTTPStatus.CONFLICT:
            self._state(response.json())
        check(response)
        if response.status != HTTPStatus.OK:
            raise InvalidOcrResponse

    def cancel(self, job: str) -> None:
        self.client.request("DELETE", "v1", "tasks", job)

    def _state(self, body: dict[str, Any]) -> JobState:
        status = body.get("status")
        if status == "canceled":
            raise JobLost
        if status in WORKING:
            return JobState(is_over=False)
        file = first(body)
        if status == "failed" or file.get("status") == "failed":
            raise JobFailed(failure(file))
        if status not in OVER or file.get("status") != "completed":
            raise InvalidOcrResponse
        return JobState(is_over=True, is_partial=status == "partial", facts=facts(body, file))


def first(body: dict[str, Any]) -> dict[str, Any]:
    files = body.get("files")
    if not isinstance(files, list) or not files or not isinstance(files[0], dict):
        raise InvalidOcrResponse
    return files[0]


def failure(file: dict[str, Any]) -> EtlError:
    error = file.get("error")
    if not isinstance(error, dict):
        return OcrFailed()
    return error_codes.explain(str(error.get("code") or ""), str(error.get("message") or ""))


def facts(body: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    parse = file.get("parse") if isinstance(file.get("parse"), dict) else {}
    known: dict[str, Any] = {"tier": str(body.get("tier") or "")[:64]}
    if isinstance(parse, dict) and isinstance(parse.get("parser_version"), str):
        known["version"] = parse["parser_version"][:64]
    if isinstance(parse, dict) and count(parse.get("duration_ms")):
        known["duration_ms"] = parse["duration_ms"]
    return known


def best(response: MinerUResponse) -> str:
    """Return a server's best tier, from `GET /v1/tiers`."""
    raise_for_status(response)
    if response.status != HTTPStatus.OK:
        return DEFAULT_TIER
    listed = response.json().get("data")
    offered = [tier.get("id") for tier in listed if isinstance(tier, dict)] if isinstance(listed, list) else []
    return max(filter(offered.__contains__, TIERS), key=TIERS.index, default=DEFAULT_TIER)


def check(response: MinerUResponse) -> None:
    """Raise the error of `{"error": {"type", "code", "message", "param"}}` and its status."""
    code = response.text("error", "code")
    if code == "quota_exceeded":
        raise ProviderForbidden
    raise_for_status(response)
    if response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}:
        raise WrongProtocol
    if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        raise error_codes.explain("file_too_large", "")
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise error_codes.explain(code, response.text("error", "message"), otherwise=OcrRefused)
