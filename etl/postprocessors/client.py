"""HTTP client for language models: the only module that uses the openai library.

Calls are bounded in time and in bytes. Requests carry only the headers below: none about this machine, none from
`OPENAI_*` variables of other programs, and redirects are not followed, so the key reaches no other address. Proxies of
the environment are used (`HTTPS_PROXY`, `NO_PROXY`), because the operator's model may be outside of the network.

Importing the library takes a second, more than everything else in a process, so it is imported by the first call.
"""

import json
import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2
import structlog
from django.conf import settings

from config.platform.http import outbound
from config.platform.http.outbound import Deadline, ResponseTooLarge, failures, retry_after
from config.platform.http.outbound.client import user_agent
from config.platform.observability import tracing
from etl.core.errors import DocumentTooLong, EtlError, LlmForbidden, LlmUnavailable
from etl.core.stage_context import StageContext, Usage
from rules.library import requirements

if TYPE_CHECKING:
    import openai

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5
MAX_RETRY_AFTER = 3600
MAX_RESPONSE_BYTES = 2 * 1024 * 1024
MAX_MESSAGE_CHARACTERS = 4_000  # of a server's error message
MAX_TOKEN_COUNT = 10**9  # larger numbers are taken for invalid

# Error messages of servers about prompts that are too long, in lower case.
TOO_LONG = re.compile(
    r"context.(?:length|window|size)|maximum context|max_model_len|(?:prompt|input) is too long|too many tokens"
    r"|reduce the length|exceeds the available|maximum input length|max_input_tokens|input token count"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """A model at a server. `seconds`: the limit of one call."""

    base_url: str
    key: str
    model: str
    seconds: float
    max_tokens: int | None

    @classmethod
    def configured(cls) -> "ModelEndpoint":
        env = settings.SLUICE
        if not requirements.has_model():
            raise LlmForbidden("No language model is configured. Set ETL_LLM_BASE_URL and ETL_LLM_MODEL.")
        key = env.etl_llm_api_key.get_secret_value() if env.etl_llm_api_key else ""
        if not (key.isascii() and key.isprintable()):
            raise LlmForbidden("ETL_LLM_API_KEY contains characters that cannot be sent in a header.")
        return cls(
            base_url=str(env.etl_llm_base_url),
            key=key,
            model=env.etl_llm_model,
            seconds=env.etl_llm_timeout_seconds,
            max_tokens=env.etl_llm_max_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """Reply of a model. `finish`: the server's finish reason, "" if there is none. `usage`: None if the server counted
    no tokens. A reply with `text` "" and without a refusal is empty."""

    text: str
    finish: str
    is_refusal: bool
    usage: Usage | None


class RequestRejected(Exception):
    """The server rejected the request. `message`: its error message in lower case, for matching and never for display;
    "" where the cause is not the request."""

    def __init__(self, error: EtlError, *, message: str) -> None:
        super().__init__(error.code)
        self.error, self.message = error, message


# ---- The call -------------------------------------------------------------------------------------------------------
def call(endpoint: ModelEndpoint, request: dict[str, Any], *, context: StageContext) -> ModelReply:
    """Return the model's reply to a request of the chat completions API, `{"model": …, "messages": […], …}`.

    Raises RequestRejected, LlmForbidden, LlmUnavailable, and the errors of `context.check()`.
    """
    import openai

    began = time.monotonic()
    try:
        with tracing.span("ask model"):
            body = post(endpoint, request, context=context)
    except openai.APIStatusError as error:
        raise rejection(error) from None
    except openai.APIConnectionError as error:
        context.check()  # the deadline raises its errors inside the library, which wraps them
        fields = failures.log_fields(error, url=endpoint.base_url)
        log.warning("llm_unavailable", seconds=round(time.monotonic() - began, 3), **fields)
        raise unavailable(error) from None
    except (openai.OpenAIError, httpx2.InvalidURL, UnicodeError) as error:
        log.warning("llm_misconfigured", exc_info=error)
        raise LlmForbidden("ETL_LLM_BASE_URL or ETL_LLM_API_KEY is invalid.") from None
    reply = read(body)
    log_reply(reply, seconds=time.monotonic() - began)
    return reply


def post(endpoint: ModelEndpoint, request: dict[str, Any], *, context: StageContext) -> bytes:
    import openai

    deadline = Deadline(endpoint.seconds, remaining=context.remaining)
    timeout = httpx2.Timeout(endpoint.seconds, connect=CONNECT_SECONDS)
    with (
        httpx2.Client(transport=ModelTransport(endpoint, deadline), trust_env=False, follow_redirects=False) as session,
        openai.OpenAI(
            api_key=endpoint.key or "none", base_url=endpoint.base_url, http_client=session, max_retries=0
        ) as client,
    ):
        response = client.chat.completions.with_raw_response.create(**request, timeout=timeout)
    return response.http_response.content


class ModelTransport(httpx2.BaseTransport):
    """Transport for one call, which filters headers in both directions and limits the response."""

    def __init__(self, endpoint: ModelEndpoint, deadline: Deadline) -> None:
        self.endpoint = endpoint
        self.transport = outbound.Transport(deadline, proxy=outbound.environment_proxy(endpoint.base_url))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = httpx2.Request(
            request.method,
            request.url,
            headers=self.headers(request.headers),
            content=request.read(),
            extensions=request.extensions,
        )
        response = self.transport.handle_request(sent)
        try:
            body = read_body(response)
        finally:
            response.close()
        kept = {name: response.headers[name] for name in ("content-type", "retry-after") if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=body)

    def headers(self, headers: httpx2.Headers) -> dict[str, str]:
        """Return the headers to send. No compression: the size of a decompressed response would need another limit."""
        kept = {name: headers[name] for name in ("content-type",) if name in headers}
        ours = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "user-agent": user_agent(),
        }
        key = self.endpoint.key
        return kept | ours | ({"authorization": f"Bearer {key}"} if key else {})

    def close(self) -> None:
        self.transport.close()


def read_body(response: httpx2.Response) -> bytes:
    """Return the body, empty if it is too large: no part of it may pass for the whole."""
    try:
        return outbound.read_body(response, limit=MAX_RESPONSE_BYTES)
    except ResponseTooLarge:
        log.warning("llm_answer_too_large", limit=MAX_RESPONSE_BYTES)
        return b""


# ---- Replies --------------------------------------------------------------------------------------------------------
def read(body: bytes) -> ModelReply:
    """Read a reply. Servers differ, so no part of it is taken for granted."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    parsed = parsed if isinstance(parsed, dict) else {}
    choices = parsed.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    finish = choice.get("finish_reason")
    return ModelReply(
        text=text_of(message.get("content")),
        finish=finish if isinstance(finish, str) else "",
        is_refusal=bool(message.get("refusal")),
        usage=usage_of(parsed.get("usage")),
    )


def text_of(content: object) -> str:
    """Return the text of a message: a string, or from some servers a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    # JSON can escape a lone surrogate, which cannot be stored.
    return content.encode("utf-8", "replace").decode().strip() if isinstance(content, str) else ""


def usage_of(reported: object) -> Usage | None:
    if not isinstance(reported, dict):
        return None
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if not (is_count(prompt) and is_count(completion)):
        return None
    return Usage(prompt_tokens=int(prompt or 0), completion_tokens=int(completion or 0), calls=1)


def is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_TOKEN_COUNT


def log_reply(reply: ModelReply, *, seconds: float) -> None:
    usage = reply.usage or Usage()
    log.info(
        "llm_answered",
        seconds=round(seconds, 3),
        finish=reply.finish[:20],
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


# ---- Errors ---------------------------------------------------------------------------------------------------------
def unavailable(error: Exception) -> LlmUnavailable:
    import openai

    if isinstance(error, openai.APITimeoutError):
        return LlmUnavailable("The language model did not respond in time.")
    return LlmUnavailable("The language model could not be reached.")


def rejection(error: "openai.APIStatusError") -> RequestRejected:
    status = error.status_code
    message = error.response.text[:MAX_MESSAGE_CHARACTERS].lower()
    log.warning("llm_rejected", status=status)
    meaning = error_of(status, message, retry_after=requested_delay(error.response))
    is_about_request = status in ABOUT_REQUEST and not isinstance(meaning, DocumentTooLong)
    return RequestRejected(meaning, message=message if is_about_request else "")


def error_of(status: int, message: str, *, retry_after: float | None) -> EtlError:
    """Return the error for a response with this status."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return LlmForbidden("The language model's server rejects ETL_LLM_API_KEY.")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or is_too_long(status, message):
        return DocumentTooLong("The document, or a part of it, exceeds the context length of the language model.")
    if status in TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return LlmUnavailable(
            f"The language model's server is busy or failed (HTTP {status}).", retry_after=retry_after
        )
    if status == HTTPStatus.NOT_FOUND:
        return LlmForbidden("The language model's server does not have this model or address (HTTP 404).")
    return LlmForbidden(f"The language model's server rejects the request (HTTP {status}).")


# Some servers send 404 or 500 for an unknown parameter.
ABOUT_REQUEST = (400, 404, 415, 422, 500, 501)
TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


def is_too_long(status: int, message: str) -> bool:
    """Whether the prompt is too long; some servers send 500 for that. With 429 the message is about rate limits."""
    return bool(TOO_LONG.search(message)) and status not in TRANSIENT and status >= HTTPStatus.BAD_REQUEST


def requested_delay(response: httpx2.Response) -> float | None:
    return retry_after.seconds(response.headers.get("Retry-After"), limit=MAX_RETRY_AFTER)
