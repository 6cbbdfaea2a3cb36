"""Protocol of the hosted service, API v4 (`…/api/v4`).

The service downloads the document from a presigned URL, and stores the result on a separate host. Every response is an
envelope, `{"code": 0, "data": …, "msg"}`. Responses of its gateway are `{"success": false, "msgCode", "msg"}`. Both may
have any HTTP status.
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
from etl.core.formats import IMAGES, DocumentFormat
from etl.providers.base import Document
from etl.providers.mineru import error_codes
from etl.providers.mineru.client import (
    InvalidOcrResponse,
    MinerUResponse,
    ResultMissing,
    raise_for_status,
    requested_delay,
    value_at,
)
from etl.providers.mineru.protocol import JobFailed, JobLost, JobState, Protocol, WrongProtocol, count, job_id

WORKING = {"waiting-file", "pending", "running", "converting"}
# The model for each tier of MinerU 4.0.
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
    "-60008": OcrFailed,  # the service could not download the document in time
    "-60009": ProviderUnavailable,  # its queue is full
    "-60010": OcrFailed,
    "-60011": OcrRefused,
    "-60013": ProviderForbidden,
    "-60014": OcrRefused,
    "-60015": OcrRefused,
    "-60016": OcrRefused,
    "-60017": OcrRefused,  # too many attempts
    "-60018": ProviderForbidden,  # daily quota
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
            return job_id(unwrap(self.client.post("extract", "task", json=order)).get("task_id"))
        except JobLost:
            raise WrongProtocol from None

    def poll(self, job: str) -> JobState:
        data = unwrap(self.client.get("extract", "task", job))
        state = data.get("state")
        if state == "failed":
            raise JobFailed(failure(data))
        if state == "done":
            url = data.get("full_zip_url")
            if not isinstance(url, str) or not url:
                raise InvalidOcrResponse
            return JobState(is_over=True, url=url)
        if state not in WORKING:
            raise InvalidOcrResponse
        done, total = (count(value_at(data, "extract_progress", name)) for name in ("extracted_pages", "total_pages"))
        return JobState(is_over=False, done=done, total=total)

    def fetch(self, job: str, state: JobState, *, into: BinaryIO) -> None:
        try:
            self.client.download(state.url, into=into)
        except ResultMissing:  # handled like a failed job: a resumed job is submitted again
            raise JobFailed(OcrFailed("The OCR provider's result was not found at its URL.")) from None


def failure(data: dict[str, Any]) -> EtlError:
    """Return the error of a failed job, by its code or message. Some messages contain the code."""
    message = str(data.get("err_msg") or "")
    code = str(data.get("err_code") or "") or next(iter(CODE.findall(message[: error_codes.MAX_MESSAGE])), "")
    return CODES[code]() if code in CODES else error_codes.error_for(code, message)


def unwrap(response: MinerUResponse) -> dict[str, Any]:
    """Return `data` of the envelope. Raises JobLost, and the errors for the code or the status."""
    code, gateway = envelope_code(response), response.text("msgCode")
    if gateway.startswith("A02"):
        raise ProviderForbidden
    if code in UNKNOWN_TASK:
        raise JobLost
    if code in CODES:
        raise CODES[code](retry_after=requested_delay(response.headers))
    raise_for_status(response)
    if response.status == HTTPStatus.NOT_FOUND:
        raise JobLost
    if gateway:
        raise ProviderUnavailable
    if code != "0" or response.status != HTTPStatus.OK:
        raise error_codes.error_for(code, response.text("msg")) if code else InvalidOcrResponse()
    data = response.json().get("data")
    if not isinstance(data, dict):
        raise InvalidOcrResponse
    return data


def envelope_code(response: MinerUResponse) -> str:
    try:
        code = response.json().get("code")
    except InvalidOcrResponse:
        return ""
    return str(code) if isinstance(code, int | str) else ""
