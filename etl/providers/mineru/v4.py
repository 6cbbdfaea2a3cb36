"""MinerU 4.0, self-hosted: `mineru-api` 4.0.x.

It takes the bytes, has tiers, of which one is always named (without one it refuses PDF where it has no models), and
can be told to cancel. Its JSON has all images in it, its archive has them beside, so the archive is asked for; both
are read.
"""

from http import HTTPStatus
from typing import Any, BinaryIO

from etl.core.errors import EtlError, OcrFailed, OcrRefused, ProviderForbidden
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import Answer, Garbage, refuse
from etl.providers.mineru.protocol import Failed, Gone, Protocol, Standing, WrongProtocol, count, job_id

WORKING = {"queued", "running"}
OVER = {"completed", "partial"}
TIERS = ("flash", "basic", "standard", "advanced")
DEFAULT_TIER = "standard"  # the server's own
FORMATS = ["markdown", "structured_content", "zip"]


class V4(Protocol):
    name = "v4"
    can_cancel = True

    def submit(self, document: Document) -> str:
        options = {"tier": self.tier or DEFAULT_TIER, "output_formats": FORMATS}
        answer = self.door.send("v1", "tasks", document=document.path, name=document.name, params=options)
        check(answer)
        return job_id(answer.json().get("task_id"))

    def look(self, job: str) -> Standing:
        answer = self.door.get("v1", "tasks", job)
        if answer.status == HTTPStatus.NOT_FOUND:
            raise Gone
        check(answer)
        return self._standing(answer.json())

    def fetch(self, job: str, standing: Standing, *, into: BinaryIO) -> None:
        answer = self.door.fetch("v1", "tasks", job, "result", into=into, params={"response_format": "zip"})
        if answer.status == HTTPStatus.NOT_FOUND:
            raise Gone
        if answer.status == HTTPStatus.CONFLICT:
            self._standing(answer.json())
        check(answer)
        if answer.status != HTTPStatus.OK:
            raise Garbage

    def cancel(self, job: str) -> None:
        self.door.ask("DELETE", "v1", "tasks", job)

    def _standing(self, body: dict[str, Any]) -> Standing:
        status = body.get("status")
        if status == "canceled":
            raise Gone
        if status in WORKING:
            return Standing(is_over=False)
        file = first(body)
        if status == "failed" or file.get("status") == "failed":
            raise Failed(failure(file))
        if status not in OVER or file.get("status") != "completed":
            raise Garbage
        return Standing(is_over=True, is_partial=status == "partial", facts=facts(body, file))


def first(body: dict[str, Any]) -> dict[str, Any]:
    files = body.get("files")
    if not isinstance(files, list) or not files or not isinstance(files[0], dict):
        raise Garbage
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


def best(answer: Answer) -> str:
    """Return the best of the tiers that a server offers, by `GET /v1/tiers`."""
    refuse(answer)
    if answer.status != HTTPStatus.OK:
        return DEFAULT_TIER
    listed = answer.json().get("data")
    offered = [tier.get("id") for tier in listed if isinstance(tier, dict)] if isinstance(listed, list) else []
    return max(filter(offered.__contains__, TIERS), key=TIERS.index, default=DEFAULT_TIER)


def check(answer: Answer) -> None:
    """Raise what `{"error": {"type", "code", "message", "param"}}` and its status mean."""
    code = answer.text("error", "code")
    if code == "quota_exceeded":
        raise ProviderForbidden
    refuse(answer)
    if answer.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}:
        raise WrongProtocol
    if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        raise error_codes.explain("file_too_large", "")
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise error_codes.explain(code, answer.text("error", "message"), otherwise=OcrRefused)
