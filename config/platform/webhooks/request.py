"""A request to a webhook's receiver."""

import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus

import httpx2
import structlog

from config.platform.http import outbound
from config.platform.http.outbound import AddressBlocked, Deadline, retry_after
from config.platform.observability import logs
from config.platform.observability.metrics import CAUGHT
from config.platform.webhooks import url_guard

log = structlog.get_logger(__name__)

ATTEMPT_SECONDS = 15  # in total, for DNS, connection, TLS, request, and response
MAX_RESPONSE_BYTES = 64 * 1024
MAX_RETRY_AFTER = 24 * 3600
UNEXPECTED = "unexpected error"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookResponse:
    """Result of one attempt: a status code, or the reason why there is none."""

    status: int | None = None
    error: str = ""
    retry_after: float = 0  # seconds
    seconds: float = 0

    @property
    def is_success(self) -> bool:
        return self.status is not None and HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


def post(url: str, *, body: bytes, headers: dict[str, str]) -> WebhookResponse:
    """Post once, within ATTEMPT_SECONDS. A failure of the receiver is returned as `error`, and never raised."""
    began = time.monotonic()
    status, delay, error = None, 0.0, ""
    try:
        with (
            outbound.Client(Deadline(ATTEMPT_SECONDS), guard=url_guard.configured()) as client,
            client.send("POST", url, headers=headers, content=body) as response,
        ):
            status, delay = response.status_code, requested_delay(response)
            discard_body(response)
    except Exception as failure:  # untrusted responses can make any library fail
        error = reason(failure)
        if error == UNEXPECTED:
            log.exception("unexpected_error")
            CAUGHT.labels("webhook").inc()
    seconds = time.monotonic() - began
    if status is None:
        return WebhookResponse(error=error, seconds=seconds)
    # An invalid body does not change the result.
    return WebhookResponse(status=status, retry_after=delay, seconds=seconds)


def discard_body(response: httpx2.Response) -> None:
    """Read the body, because some receivers fail when the connection closes early."""
    for _ in outbound.read_chunks(response, limit=MAX_RESPONSE_BYTES):
        pass


def requested_delay(response: httpx2.Response) -> float:
    if response.status_code not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return 0
    return retry_after.seconds(response.headers.get("Retry-After"), limit=MAX_RETRY_AFTER) or 0


def reason(error: Exception) -> str:
    causes = logs.chain_of(error, hidden=True)
    if any(isinstance(cause, ssl.SSLError) and not isinstance(cause, TimeoutError) for cause in causes):
        return "no TLS connection: certificate or protocol not accepted"
    return next((text for kinds, text in REASONS if isinstance(error, kinds)), UNEXPECTED)


REASONS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (AddressBlocked, "blocked: webhooks may not reach this address"),
    ((httpx2.TimeoutException, TimeoutError), "no response in time"),
    ((httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError), "invalid webhook URL"),
    ((httpx2.TransportError, OSError), "connection failed, or the response was not HTTP"),
)
