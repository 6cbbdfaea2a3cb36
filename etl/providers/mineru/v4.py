"""Protocol of self-hosted MinerU 4.0: `mineru-api` 4.0.x.

The server accepts the document in the request, has quality tiers, and can cancel jobs. Requests always contain a tier,
because a server without models rejects a PDF if the tier is omitted. The result is requested as an archive, because
JSON results include all images. Both can be read.
"""

from http import HTTPStatus
from typing import Any, ClassVar

from etl.core.errors import EtlError, OcrFailed, OcrRefused, ProviderForbidden
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import InvalidOcrResponse, MinerUResponse, raise_for_status, short_text, value_at
from etl.providers.mineru.protocol import JobFailed, JobLost, JobState, SelfHosted, WrongProtocol, count

WORKING = {"queued", "running"}
FINISHED = {"completed", "partial"}
TIERS = ("flash", "basic", "standard", "advanced")  # best last
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
        """Raise the error for `{"error": {"type", "code", "message", "param"}}` and the HTTP status."""
        code = response.text("error", "code")
        if code == "quota_exceeded":
            raise ProviderForbidden
        raise_for_status(response)
        if response.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}:
            raise WrongProtocol
        if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise error_codes.error_for("file_too_large", "")
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise error_codes.error_for(code, response.text("error", "message"), otherwise=OcrRefused)

    def state(self, body: dict[str, Any]) -> JobState:
        status = body.get("status")
        if status == "canceled":
            raise JobLost
        if status in WORKING:
            return JobState(is_over=False)
        file = first_file(body)
        if status == "failed" or file.get("status") == "failed":
            raise JobFailed(failure(file))
        if status not in FINISHED or file.get("status") != "completed":
            raise InvalidOcrResponse
        return JobState(is_over=True, is_partial=status == "partial", facts=facts(body, file))


def first_file(body: dict[str, Any]) -> dict[str, Any]:
    files = body.get("files")
    if not isinstance(files, list) or not files or not isinstance(files[0], dict):
        raise InvalidOcrResponse
    return files[0]


def failure(file: dict[str, Any]) -> EtlError:
    if not isinstance(error := file.get("error"), dict):
        return OcrFailed()
    return error_codes.error_for(str(error.get("code") or ""), str(error.get("message") or ""))


def facts(body: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    parsed = {
        "version": short_text(file, "parse", "parser_version"),
        "duration_ms": count(value_at(file, "parse", "duration_ms")),
    }
    return {"tier": short_text(body, "tier")} | {name: value for name, value in parsed.items() if value}


def best_tier(response: MinerUResponse) -> str:
    """Return the best tier of a server, from the response to `GET /v1/tiers`."""
    raise_for_status(response)
    if response.status != HTTPStatus.OK:
        return DEFAULT_TIER
    listed = response.json().get("data")
    offered = [tier.get("id") for tier in listed if isinstance(tier, dict)] if isinstance(listed, list) else []
    return next((tier for tier in reversed(TIERS) if tier in offered), DEFAULT_TIER)
