"""MinerU 4.0, self-hosted: `mineru-api` 4.0.x.

It accepts the document in the request, has tiers of quality, and can cancel jobs. A tier is always sent, because a
server without models refuses a PDF without one. The archive is requested, because the JSON includes all images. Both
can be read.
"""

from http import HTTPStatus
from typing import Any, ClassVar

from etl.core.errors import EtlError, OcrFailed, OcrRefused, ProviderForbidden
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import InvalidOcrResponse, MinerUResponse, raise_for_status, short_text, within
from etl.providers.mineru.protocol import JobFailed, JobLost, JobState, SelfHosted, WrongProtocol, count

WORKING = {"queued", "running"}
OVER = {"completed", "partial"}
TIERS = ("flash", "basic", "standard", "advanced")
DEFAULT_TIER = "standard"  # the server's default
FORMATS = ["markdown", "structured_content", "zip"]


class V4(SelfHosted):
    name = "v4"
    can_cancel = True
    tasks = ("v1", "tasks")
    result_options: ClassVar = {"params": {"response_format": "zip"}}

    def submit(self, document: Document) -> str:
        return self.upload(document, params={"tier": self.tier or DEFAULT_TIER, "output_formats": FORMATS})

    def cancel(self, job: str) -> None:
        self.client.request("DELETE", *self.tasks, job)

    def check(self, response: MinerUResponse) -> None:
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

    def state(self, body: dict[str, Any]) -> JobState:
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
    if not isinstance(error := file.get("error"), dict):
        return OcrFailed()
    return error_codes.explain(str(error.get("code") or ""), str(error.get("message") or ""))


def facts(body: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    parsed = {
        "version": short_text(file, "parse", "parser_version"),
        "duration_ms": count(within(file, "parse", "duration_ms")),
    }
    return {"tier": short_text(body, "tier")} | {name: value for name, value in parsed.items() if value}


def best(response: MinerUResponse) -> str:
    """Return a server's best tier, from `GET /v1/tiers`."""
    raise_for_status(response)
    if response.status != HTTPStatus.OK:
        return DEFAULT_TIER
    listed = response.json().get("data")
    offered = [tier.get("id") for tier in listed if isinstance(tier, dict)] if isinstance(listed, list) else []
    return max(filter(offered.__contains__, TIERS), key=TIERS.index, default=DEFAULT_TIER)
