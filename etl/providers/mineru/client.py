"""HTTP client for a MinerU server, which is untrusted.

Each call has a deadline, in addition to the deadline of the stage. The size of responses is limited. Redirects are only
followed to hosts where results may be stored. Credentials are only sent to the configured server, never to the URL of a
result, because the server chooses it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx2
import orjson
import structlog
from django.conf import settings

from config.platform.http import outbound
from config.platform.http.outbound import Deadline, ResponseTooLarge, failures, retry_after
from etl.core.errors import OcrFailed, OcrRefused, ProviderForbidden, ProviderUnavailable
from etl.core.stage_context import StageContext

log = structlog.get_logger(__name__)

STALL_SECONDS = 60.0  # without any data in either direction
CALL_SECONDS = 30.0  # for small requests; uploads and downloads may take as long as the stage
MAX_RESPONSE_BYTES = 1024**2
MAX_RESULT_BYTES = 512 * 1024**2
MAX_RETRY_AFTER = 3600
MAX_REDIRECTS = 3
MAX_PORT = 65535


class InvalidOcrResponse(OcrFailed):
    """An invalid response of the server.

    It is retried, because its cause may be the error page of a proxy, or an update of the server. A retry is cheap,
    because a job that was started is resumed.
    """

    detail = "The OCR provider sent an invalid response."


class UnsafeResult(OcrRefused):
    """An unsafe result. It is not retried, because the result of a job does not change."""

    detail = "The OCR provider's result is not safe to open."


class ResultMissing(Exception):
    """The result does not exist at its URL, or no longer exists."""


class ResultHostNotAllowed(OcrRefused):
    retryable = True  # after the operator has added the host
    detail = "The OCR provider's result is on a host that ETL_MINERU_RESULT_HOSTS does not list."


@dataclass(frozen=True, slots=True, kw_only=True)
class MinerUResponse:
    status: int
    headers: httpx2.Headers
    body: bytes = b""

    def json(self) -> dict[str, Any]:
        """Return the object in the body. Raises InvalidOcrResponse."""
        return parse_object(self.body)

    def text(self, *path: str) -> str:
        """Return the string at a path of the object in the body, or ""."""
        try:
            value = value_at(self.json(), *path)
        except InvalidOcrResponse:
            return ""
        return value if isinstance(value, str) else ""


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidOcrResponse from None
    if not isinstance(parsed, dict):
        raise InvalidOcrResponse
    return parsed


def value_at(body: Any, *path: str) -> Any:
    """Return the value at a path in nested objects, or None."""
    for step in path:
        body = body.get(step) if isinstance(body, dict) else None
    return body


def short_text(body: Any, *path: str) -> str:
    """Return the first 64 characters of the string at a path in nested objects, or ""."""
    value = value_at(body, *path)
    return value[:64] if isinstance(value, str) else ""


class MinerUClient:
    """Client for one document.

    Calls raise ProviderUnavailable, InvalidOcrResponse, UnsafeResult, and the errors of `context.check()`.
    """

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._deadline = Deadline(remaining=context.remaining)
        self._client = outbound.Client(self._deadline, stall_seconds=STALL_SECONDS)
        self._base_url = str(settings.SLUICE.etl_mineru_url).rstrip("/")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.close()

    # -- The configured server ----------------------------------------------------------------------------------------
    def get(self, *path: str) -> MinerUResponse:
        return self.request("GET", *path)

    def post(self, *path: str, **options: Any) -> MinerUResponse:
        return self.request("POST", *path, **options)

    def request(self, method: str, *path: str, seconds: float = CALL_SECONDS, **content: Any) -> MinerUResponse:
        """Send a request to the server. `path`: unquoted segments. `content`: arguments of httpx2.Request."""
        with self._send(method, self._url(path), seconds, headers=credentials(), **content) as response:
            return self._read_response(response)

    def upload(self, *path: str, document: Path, name: str, **content: Any) -> MinerUResponse:
        """Post a form with the document. The document is streamed from its file."""
        with document.open("rb") as file:
            files = {"files": (name, file, "application/octet-stream")}
            return self.post(*path, seconds=math.inf, files=files, **content)

    def fetch(self, *path: str, into: BinaryIO, **content: Any) -> MinerUResponse:
        """Request a result. With status 200, write the body to the file. Otherwise, return it in the response."""
        with self._send("GET", self._url(path), math.inf, headers=credentials(), **content) as response:
            if response.status_code != HTTPStatus.OK:
                return self._read_response(response)
            self._save_body(response, into)
            return MinerUResponse(status=response.status_code, headers=response.headers)

    # -- Results ------------------------------------------------------------------------------------------------------
    def download(self, url: str, *, into: BinaryIO) -> None:
        """Download the result from a URL to a file. Raises ResultMissing and ResultHostNotAllowed."""
        location = self._result_url(url)
        for _ in range(MAX_REDIRECTS + 1):
            with self._send("GET", location, math.inf) as response:
                if response.has_redirect_location:
                    location = self._result_url(response.headers["Location"], base=location)
                    continue
                if response.status_code in MISSING_STATUSES:
                    raise ResultMissing
                raise_for_status(MinerUResponse(status=response.status_code, headers=response.headers))
                if response.status_code != HTTPStatus.OK:
                    raise InvalidOcrResponse
                self._save_body(response, into)
                return
        raise UnsafeResult

    def _result_url(self, url: str, *, base: httpx2.URL | None = None) -> httpx2.URL:
        """Return a permitted URL. `base`: the URL that redirects to it. Raises UnsafeResult or ResultHostNotAllowed."""
        try:
            location = httpx2.URL(url) if base is None else base.join(url)
        except (httpx2.InvalidURL, ValueError):
            raise UnsafeResult from None
        if location.port is not None and not 0 < location.port <= MAX_PORT:
            raise UnsafeResult
        is_own_server = origin(location) == origin(httpx2.URL(self._base_url))
        is_allowed = location.scheme == "https" and location.host in allowed_hosts()
        if location.userinfo or not (is_own_server or is_allowed):
            log.warning("mineru_result_elsewhere", host=location.host[:255])
            raise ResultHostNotAllowed
        return location

    # -- One call -----------------------------------------------------------------------------------------------------
    def _url(self, path: tuple[str, ...]) -> str:
        return "/".join((self._base_url, *(quote(segment, safe="") for segment in path)))

    @contextmanager
    def _send(self, method: str, url: str | httpx2.URL, seconds: float, **content: Any) -> Iterator[httpx2.Response]:
        """Send a request. Raises ProviderUnavailable for network failures, and the errors of `context.check()`."""
        self._context.check()
        self._deadline.restart(seconds)
        try:
            with self._client.send(method, url, **content) as response:
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise InvalidOcrResponse
                yield response
        except httpx2.TransportError as error:
            self._context.check()
            log.warning("mineru_unavailable", **failures.log_fields(error, url=str(url)))
            raise ProviderUnavailable from None
        except ResponseTooLarge:
            raise UnsafeResult from None

    def _read_response(self, response: httpx2.Response) -> MinerUResponse:
        body = outbound.read_body(response, limit=MAX_RESPONSE_BYTES)
        return MinerUResponse(status=response.status_code, headers=response.headers, body=body)

    def _save_body(self, response: httpx2.Response, into: BinaryIO) -> None:
        into.seek(0)
        into.truncate()
        into.writelines(outbound.read_chunks(response, limit=MAX_RESULT_BYTES))


def credentials() -> dict[str, bytes]:
    key = settings.SLUICE.etl_mineru_api_key
    return {"Authorization": b"Bearer " + key.get_secret_value().encode()} if key else {}


def allowed_hosts() -> set[str]:
    return {host.lower() for host in settings.SLUICE.etl_mineru_result_hosts}


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or failures.PORTS.get(url.scheme)


# ---- Statuses with the same meaning in all protocols ----------------------------------------------------------------
# Statuses of a result's URL, which is requested without credentials. Object stores also send 403 for expired links.
MISSING_STATUSES = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
BUSY_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


def raise_for_status(response: MinerUResponse) -> None:
    """Raise an error if the server rejects our credentials, is busy, fails, or redirects."""
    if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}:
        raise ProviderForbidden
    if response.status in BUSY_STATUSES or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ProviderUnavailable(retry_after=requested_delay(response.headers))
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        raise ProviderUnavailable("The OCR provider redirects requests. Set ETL_MINERU_URL to its final URL.")


def requested_delay(headers: httpx2.Headers) -> float | None:
    return retry_after.seconds(headers.get("Retry-After"), limit=MAX_RETRY_AFTER)
