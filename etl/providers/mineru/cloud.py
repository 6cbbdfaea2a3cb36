"""The hosted service, API v4 (`…/api/v4`): it downloads the document from a presigned URL, and leaves the result on a
host of its own.

Every answer is an envelope, `{"code": 0, "data": …, "msg"}`, except the gateway's,
`{"success": false, "msgCode", "msg"}`; either may come with any status.
"""

import re
from http import HTTPStatus
from typing import Any, BinaryIO

from etl.core.errors import (
    EmptyDocument,
    EtlError,
    FileCorrupt,
    FileTooLarge,
    OcrFailed,
    OcrRefused,
    ProviderForbidden,
    ProviderUnavailable,
    TooManyPages,
    UnsupportedFormat,
)
from etl.core.formats import DocumentFormat
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import Answer, Garbage, Missing, refuse, wish
from etl.providers.mineru.protocol import Failed, Gone, Protocol, Standing, WrongProtocol, count, job_id
from etl.providers.mineru.supported_formats import IMAGES

WORKING = {"waiting-file", "pending", "running", "converting"}
# What the tiers of 4.0 run on here.
MODELS = {"": "vlm", "flash": "pipeline", "basic": "pipeline", "standard": "vlm", "advanced": "vlm"}
HTML_MODEL = "MinerU-HTML"

UNKNOWN_TASK = {"-60012"}
CODES: dict[str, type[EtlError]] = {
    "-500": OcrRefused,
    "-10001": ProviderUnavailable,
    "-10002": OcrRefused,
    "-60001": ProviderUnavailable,  # no upload URL
    "-60002": UnsupportedFormat,
    "-60003": FileCorrupt,
    "-60004": EmptyDocument,
    "-60005": FileTooLarge,
    "-60006": TooManyPages,
    "-60007": ProviderUnavailable,  # no model
    "-60008": OcrFailed,  # it could not download the document in time
    "-60009": ProviderUnavailable,  # its queue is full
    "-60010": OcrFailed,
    "-60011": OcrRefused,
    "-60013": ProviderForbidden,
    "-60014": OcrRefused,
    "-60015": OcrRefused,
    "-60016": OcrRefused,
    "-60017": OcrRefused,  # tried too often
    "-60018": ProviderForbidden,  # the quotas of a day
    "-60019": ProviderForbidden,
    "-60020": OcrFailed,
    "-60021": OcrFailed,
    "-60022": OcrFailed,
}
CODE = re.compile(r"-\d{3,5}\b")


class CloudV4(Protocol):
    name = "cloud-v4"

    def submit(self, document: Document) -> str:
        order = {
            "url": document.url(),
            "model_version": HTML_MODEL if document.kind == DocumentFormat.HTML else MODELS.get(self.tier, self.tier),
            "is_ocr": document.kind in IMAGES,
            "enable_formula": True,
            "enable_table": True,
        }
        try:
            return job_id(unwrap(self.door.post("extract", "task", json=order)).get("task_id"))
        except Gone:
            raise WrongProtocol from None

    def look(self, job: str) -> Standing:
        data = unwrap(self.door.get("extract", "task", job))
        state = data.get("state")
        if state == "failed":
            raise Failed(failure(data))
        if state == "done":
            url = data.get("full_zip_url")
            if not isinstance(url, str) or not url:
                raise Garbage
            return Standing(is_over=True, url=url)
        if state not in WORKING:
            raise Garbage
        progress = data.get("extract_progress")
        pages = progress if isinstance(progress, dict) else {}
        return Standing(is_over=False, done=count(pages.get("extracted_pages")), total=count(pages.get("total_pages")))

    def fetch(self, job: str, standing: Standing, *, into: BinaryIO) -> None:
        try:
            self.door.download(standing.url, into=into)
        except Missing:  # as if the job had failed: one of long ago is begun anew, a new one by the next attempt
            raise Failed(OcrFailed("The OCR provider's result is not where it should be.")) from None


def failure(data: dict[str, Any]) -> EtlError:
    """Return the error of a job that failed: of its code, which may stand in the sentence alone, or of the sentence."""
    sentence = str(data.get("err_msg") or "")
    code = str(data.get("err_code") or "") or next(iter(CODE.findall(sentence[: error_codes.SENTENCE_CHARACTERS])), "")
    return CODES[code]() if code in CODES else error_codes.explain(code, sentence)


def unwrap(answer: Answer) -> dict[str, Any]:
    """Return `data` of the envelope. Raises Gone, and the error that its code or the status means."""
    code, gateway = envelope_code(answer), answer.text("msgCode")
    if gateway.startswith("A02"):
        raise ProviderForbidden
    if code in UNKNOWN_TASK:
        raise Gone
    if code in CODES:
        raise CODES[code](retry_after=wish(answer.headers))
    refuse(answer)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise Gone
    if gateway:
        raise ProviderUnavailable
    if code != "0" or answer.status != HTTPStatus.OK:
        raise error_codes.explain(code, answer.text("msg")) if code else Garbage()
    data = answer.json().get("data")
    if not isinstance(data, dict):
        raise Garbage
    return data


def envelope_code(answer: Answer) -> str:
    try:
        code = answer.json().get("code")
    except Garbage:
        return ""
    return str(code) if isinstance(code, int | str) else ""
