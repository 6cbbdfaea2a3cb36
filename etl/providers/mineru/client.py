"""The one way to a MinerU server, and what keeps it from harming us.

No call outlasts its own time or the stage's, however slowly bytes come. Answers are counted while they come in, are
taken uncompressed only, and redirects are followed nowhere but where results may lie. Credentials go to the configured
server alone, and never along with a result's URL, which the server chose. There are no cookies and no proxies.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx2
import orjson
import structlog
from django.conf import settings

from config.platform.http.outbound import failures, retry_after
from etl.core.errors import OcrFailed, OcrRefused, ProviderForbidden, ProviderUnavailable
from etl.core.stage_context import StageContext
from etl.providers.mineru.connections import STALL_SECONDS, Clock, Transport

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5
CALL_SECONDS = 30.0  # for a question and its answer; documents and results take as long as the stage may
MAX_ANSWER_BYTES = 1024**2
MAX_RESULT_BYTES = 512 * 1024**2
MAX_RETRY_AFTER = 3600
REDIRECTS = 3


class Garbage(OcrFailed):
    """The OCR provider answered with something that is no answer.

    Tried again: it is as often a proxy's error page, or a server that is just being replaced, as it is a real fault.
    What was begun there is not begun anew, so it costs nothing.
    """

    def __init__(self) -> None:
        super().__init__("The OCR provider answered with something that is no answer.")


class Hostile(OcrRefused):
    """The OCR provider's result is one that must not be opened.

    Not tried again: the same job has the same result, and a server that makes such things is not to be asked twice.
    """

    def __init__(self) -> None:
        super().__init__("The OCR provider's result is not one that may be opened.")


class Missing(Exception):
    """There is nothing, or nothing any more, where a result should be."""


class Elsewhere(OcrRefused):
    """The OCR provider's result lies on a host that ETL_MINERU_RESULT_HOSTS does not list."""

    retryable = True  # once it is listed

    def __init__(self) -> None:
        super().__init__("The OCR provider's result lies on a host that ETL_MINERU_RESULT_HOSTS does not list.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: httpx2.Headers
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the object in the body. Raises Garbage."""
        return parse(self.body)

    def text(self, *path: str) -> str:
        """Return a string in the body's object, "" where there is none; also where there is no object."""
        found: Any = None
        try:
            found = self.json()
        except Garbage:
            return ""
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        return found if isinstance(found, str) else ""


def parse(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Garbage from None
    if not isinstance(found, dict):
        raise Garbage
    return found


# ---- The door -------------------------------------------------------------------------------------------------------
class Door:
    """Calls of one document's work. Every call may raise ProviderUnavailable, and what `context.check()` raises."""

    def __init__(self, context: StageContext) -> None:
        self._work = context
        self._clock = Clock(context)
        self._transport = Transport(self._clock)
        self._base = str(settings.SLUICE.etl_mineru_url).rstrip("/")
        self._asked = self._base

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._transport.close()

    # -- The configured server ----------------------------------------------------------------------------------------
    def get(self, *path: str, **options: Any) -> Answer:
        return self.ask("GET", *path, **options)

    def post(self, *path: str, **options: Any) -> Answer:
        return self.ask("POST", *path, **options)

    def ask(self, method: str, *path: str, seconds: float | None = CALL_SECONDS, **content: Any) -> Answer:
        """Ask the server. `path`: its parts, which are quoted; `content`: what httpx2.Request takes."""
        request = self._request(method, self._address(path), headers=credentials(), **content)
        with closing(self._send(request, seconds)) as response:
            return self._whole(response)

    def send(self, *path: str, document: Path, name: str, **content: Any) -> Answer:
        """Post a form with the document, which is read while it is sent."""
        with document.open("rb") as file:
            files = {"files": (name, file, "application/octet-stream")}
            return self.post(*path, seconds=None, files=files, **content)

    def fetch(self, *path: str, into: BinaryIO, **content: Any) -> Answer:
        """Ask for a result. The body goes into the file when the status is 200, and comes with the answer otherwise."""
        request = self._request("GET", self._address(path), headers=credentials(), **content)
        with closing(self._send(request, None)) as response:
            if response.status_code != HTTPStatus.OK:
                return self._whole(response)
            self._keep(response, into)
            return Answer(status=response.status_code, headers=response.headers, body=b"")

    # -- Where its results lie ----------------------------------------------------------------------------------------
    def download(self, url: str, *, into: BinaryIO) -> None:
        """Store what a result's URL leads to. Raises Missing, and Elsewhere when it leads where results may not lie."""
        for _ in range(REDIRECTS + 1):
            place = self._result(url)
            with closing(self._send(self._request("GET", place), None)) as response:
                if response.has_redirect_location:
                    url = str(place.join(response.headers["Location"]))
                    continue
                if response.status_code in MISSING:
                    raise Missing
                refuse(Answer(status=response.status_code, headers=response.headers, body=b""))
                if response.status_code != HTTPStatus.OK:
                    raise Garbage
                self._keep(response, into)
                return
        raise Hostile

    def _result(self, url: str) -> httpx2.URL:
        try:
            place = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError):
            raise Hostile from None
        ours = httpx2.URL(self._base)
        is_ours = (place.host, port(place)) == (ours.host, port(ours)) and place.scheme == ours.scheme
        is_listed = place.scheme == "https" and place.host in hosts()
        if place.userinfo or not (is_ours or is_listed):
            log.warning("mineru_result_elsewhere", host=place.host[:255])
            raise Elsewhere
        return place

    # -- One call -----------------------------------------------------------------------------------------------------
    def _address(self, path: tuple[str, ...]) -> str:
        return "/".join((self._base, *(quote(part, safe="") for part in path)))

    def _request(self, method: str, url: str | httpx2.URL, **content: Any) -> httpx2.Request:
        # Decompressing would have to be bounded at each layer; archives are compressed as they are.
        headers = {"Accept-Encoding": "identity", "User-Agent": "Sluice", **content.pop("headers", {})}
        timeouts = {"connect": CONNECT_SECONDS, "read": STALL_SECONDS, "write": STALL_SECONDS, "pool": CONNECT_SECONDS}
        return httpx2.Request(method, url, headers=headers, extensions={"timeout": timeouts}, **content)

    def _send(self, request: httpx2.Request, seconds: float | None) -> httpx2.Response:
        self._clock.start(seconds)
        self._asked = str(request.url)
        with self._translating():
            response = self._transport.handle_request(request)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            response.close()
            raise Garbage
        return response

    def _whole(self, response: httpx2.Response) -> Answer:
        body = b"".join(self._blocks(response, MAX_ANSWER_BYTES))
        return Answer(status=response.status_code, headers=response.headers, body=body)

    def _keep(self, response: httpx2.Response, into: BinaryIO) -> None:
        into.seek(0)
        into.truncate()
        into.writelines(self._blocks(response, MAX_RESULT_BYTES))

    def _blocks(self, response: httpx2.Response, most: int) -> Iterable[bytes]:
        with self._translating():
            for block in response.iter_raw():
                most -= len(block)
                if most < 0:
                    raise Hostile
                yield block

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raise ProviderUnavailable for what can go wrong on the way; the end of our own time comes first."""
        self._work.check()
        try:
            yield
        except httpx2.TransportError as error:
            self._work.check()
            log.warning("mineru_unavailable", **failures.log_fields(error, url=self._asked))
            raise ProviderUnavailable from None


def credentials() -> dict[str, bytes]:
    key = settings.SLUICE.etl_mineru_api_key
    return {"Authorization": b"Bearer " + key.get_secret_value().encode()} if key else {}


def hosts() -> set[str]:
    return {host.lower() for host in settings.SLUICE.etl_mineru_result_hosts}


def port(url: httpx2.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


# ---- Statuses that mean the same everywhere -------------------------------------------------------------------------
# Of a result's URL, which no credentials go with: object stores also say so when a link is over.
MISSING = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


def refuse(answer: Answer) -> None:
    """Raise when the status says that the server does not want us, or cannot serve us now."""
    if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}:
        raise ProviderForbidden
    if answer.status in BUSY or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ProviderUnavailable(retry_after=wish(answer.headers))
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        raise ProviderUnavailable("The OCR provider sends our requests elsewhere, where they may not go.")


def wish(headers: httpx2.Headers) -> float | None:
    return retry_after.seconds(headers.get("Retry-After"), limit=MAX_RETRY_AFTER)
