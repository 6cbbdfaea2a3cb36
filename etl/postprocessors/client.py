"""HTTP client for language models: the only module that uses the openai library.

Calls have a time limit and a size limit. Only the headers listed below are sent: the library's headers that describe
this machine are removed, and so are those that it takes from `OPENAI_*` variables. Redirects are not followed, so the
API key is never sent to another address. The proxy variables of the environment (`HTTPS_PROXY`, `NO_PROXY`) apply,
because the configured model may be outside of the local network.

Importing the library takes about a second, longer than the rest of a process's startup, so the first call imports it.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import structlog
from django.conf import settings

from config.platform.http import outbound
from config.platform.http.outbound import Deadline, ResponseTooLarge, failures, retry_after
from config.platform.http.outbound.client import user_agent
from config.platform.observability import tracing
from etl.core.errors import LlmForbidden, LlmUnavailable
from etl.core.stage_context import USAGE_INCOMPLETE, StageContext, Usage
from etl.postprocessors import rejections, replies
from etl.postprocessors.rejections import ErrorResponse
from etl.postprocessors.replies import ModelReply
from rules.library import requirements

if TYPE_CHECKING:
    import openai

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5
MAX_RETRY_AFTER = 3600
MAX_RESPONSE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """A model on a server. `seconds`: the time limit of a call."""

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


# ---- The call -------------------------------------------------------------------------------------------------------
def call(endpoint: ModelEndpoint, request: dict[str, Any], *, context: StageContext) -> ModelReply:
    """Send a request of the chat completions API, `{"model": …, "messages": […], …}`, and return the model's reply.

    Raises ErrorResponse, LlmForbidden, LlmUnavailable, and the errors of `context.check()`.
    """
    import openai

    began = time.monotonic()
    try:
        with tracing.span("ask model"):
            body = post(endpoint, request, context=context)
    except openai.APIStatusError as error:
        raise rejection_of(error, sent=prompt_of(request)) from None
    except openai.APIConnectionError as error:
        context.check()  # the library wraps errors that the deadline raises, so raise them again here
        fields = failures.log_fields(error, url=endpoint.base_url)
        log.warning("llm_unavailable", seconds=round(time.monotonic() - began, 3), **fields)
        if isinstance(error, openai.APITimeoutError):
            raise LlmUnavailable("The language model did not respond in time.") from None
        raise LlmUnavailable("The language model could not be reached.") from None
    except (openai.OpenAIError, httpx2.InvalidURL, UnicodeError) as error:
        log.warning("llm_misconfigured", exc_info=error)
        raise LlmForbidden("ETL_LLM_BASE_URL or ETL_LLM_API_KEY is invalid.") from None
    reply = replies.read(body)
    log_reply(reply, seconds=time.monotonic() - began)
    return reply


def post(endpoint: ModelEndpoint, request: dict[str, Any], *, context: StageContext) -> bytes:
    """Send the request and return the body of the response. A call without a response is counted too, because the
    server may charge for it."""
    import openai

    transport = ModelTransport(endpoint, Deadline(endpoint.seconds, remaining=context.remaining))
    timeout = httpx2.Timeout(endpoint.seconds, connect=CONNECT_SECONDS)
    with (
        httpx2.Client(transport=transport, trust_env=False, follow_redirects=False) as session,
        openai.OpenAI(
            api_key=endpoint.key or "none", base_url=endpoint.base_url, http_client=session, max_retries=0
        ) as client,
    ):
        try:
            response = client.chat.completions.with_raw_response.create(**request, timeout=timeout)
        except openai.APIStatusError:
            raise
        except BaseException:
            if transport.is_sent:
                context.warn(USAGE_INCOMPLETE, "A call ended without a response. Its tokens are not counted.")
                context.count_usage(Usage(calls=1))
            raise
    return response.http_response.content


class ModelTransport(httpx2.BaseTransport):
    """Transport for one call, which filters the headers in both directions and limits the size of the response.
    `is_sent`: the whole request was sent."""

    def __init__(self, endpoint: ModelEndpoint, deadline: Deadline) -> None:
        self.endpoint = endpoint
        self.is_sent = False
        self.transport = outbound.Transport(deadline, proxy=outbound.environment_proxy(endpoint.base_url))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = httpx2.Request(
            request.method,
            request.url,
            headers=self.request_headers(request.headers),
            content=request.read(),
            extensions={**request.extensions, "trace": self.trace},
        )
        response = self.transport.handle_request(sent)
        try:
            body = read_body(response)
        finally:
            response.close()
        kept = {name: response.headers[name] for name in ("content-type", "retry-after") if name in response.headers}
        return httpx2.Response(response.status_code, headers=kept, content=body)

    def trace(self, event: str, _info: dict[str, Any]) -> None:
        """Record that the whole request was sent."""
        if event.endswith("send_request_body.complete"):
            self.is_sent = True

    def request_headers(self, headers: httpx2.Headers) -> dict[str, str]:
        """Return the headers to send. Compression is disabled, because the limit applies to the size on the wire."""
        kept = {name: headers[name] for name in ("content-type",) if name in headers}
        own = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "user-agent": user_agent(),
        }
        key = self.endpoint.key
        return kept | own | ({"authorization": f"Bearer {key}"} if key else {})

    def close(self) -> None:
        self.transport.close()


def read_body(response: httpx2.Response) -> bytes:
    """Return the body, or b"" if it is too large, because a truncated body could be mistaken for a complete one."""
    try:
        return outbound.read_body(response, limit=MAX_RESPONSE_BYTES)
    except ResponseTooLarge:
        log.warning("llm_answer_too_large", limit=MAX_RESPONSE_BYTES)
        return b""


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
def rejection_of(error: "openai.APIStatusError", *, sent: str) -> ErrorResponse:
    log.warning("llm_rejected", status=error.status_code)
    delay = retry_after.seconds(error.response.headers.get("Retry-After"), limit=MAX_RETRY_AFTER)
    return rejections.interpret(error.status_code, error.response.text, sent=sent, retry_after=delay)


def prompt_of(request: dict[str, Any]) -> str:
    """Return the text of a prompt. The content of a message is a string, or a list of parts. Some have text."""
    texts: list[str] = []
    for message in request["messages"]:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return "\n".join(texts)
