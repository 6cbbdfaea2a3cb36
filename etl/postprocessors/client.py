"""One call of a language model, over HTTP: the one place that uses the openai library.

Bounded whatever the other side does, in time (`line`) and in bytes while they arrive. Nothing is sent but what stands
here: no headers about this machine, none from `OPENAI_*` variables of other programs, and the key goes to no address
that a redirect names. Proxies of the environment are used (`HTTPS_PROXY`, `NO_PROXY`): where the model is, is the
operator's own choice, and may lie outside.

The library takes a second to import, more than all the rest of a process: it is imported by who calls, when they call.
"""

import json
import re
import time
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

import httpx2
import structlog
from django.conf import settings

from config.platform.http.outbound import failures, retry_after
from config.platform.observability import tracing
from etl.core.errors import DocumentTooLong, EtlError, LlmForbidden, LlmUnavailable
from etl.core.stage_context import StageContext, Usage
from etl.postprocessors.deadline import Line, watched
from rules.library import requirements

if TYPE_CHECKING:
    import openai

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5
MAX_RETRY_AFTER = 3600
MAX_ANSWER_BYTES = 2 * 1024 * 1024
MAX_WORDS = 4_000  # of a server's complaint
MAX_TOKENS_TOLD = 10**9  # what a server says of tokens beyond that is no count

# How servers say that a prompt does not fit, lower case.
TOO_LONG = re.compile(
    r"context.(?:length|window|size)|maximum context|max_model_len|(?:prompt|input) is too long|too many tokens"
    r"|reduce the length|exceeds the available|maximum input length|max_input_tokens|input token count"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the model is, and what it is called there. `seconds`: how long one call may take."""

    base_url: str
    key: str
    model: str
    seconds: float
    max_tokens: int | None

    @classmethod
    def configured(cls) -> "Server":
        env = settings.SLUICE
        if not requirements.has_model():
            raise LlmForbidden("No language model is set up here: set ETL_LLM_BASE_URL and ETL_LLM_MODEL.")
        key = env.etl_llm_api_key.get_secret_value() if env.etl_llm_api_key else ""
        if not (key.isascii() and key.isprintable()):
            raise LlmForbidden("ETL_LLM_API_KEY holds characters that cannot be sent.")
        return cls(
            base_url=str(env.etl_llm_base_url),
            key=key,
            model=env.etl_llm_model,
            seconds=env.etl_llm_timeout_seconds,
            max_tokens=env.etl_llm_max_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. `finish`: the server's word for why the answer ended, "" if it said nothing. `usage`: None if
    the server did not count. `text` "" without a refusal is no answer at all."""

    text: str
    finish: str
    is_refusal: bool
    usage: Usage | None


class Rejected(Exception):
    """The server did not take the request. `words`: what it said of it, lower case, to be read and never shown; ""
    where it is not the request that it minds."""

    def __init__(self, error: EtlError, *, words: str) -> None:
        super().__init__(error.code)
        self.error, self.words = error, words


# ---- The call -------------------------------------------------------------------------------------------------------
def call(server: Server, request: dict[str, Any], *, context: StageContext) -> Reply:
    """Return the model's answer to a request of the chat completions API, `{"model": …, "messages": […], …}`.

    Raises Rejected for what the server says no to, LlmUnavailable, and what `context.check()` raises.
    """
    import openai

    seconds = min(server.seconds, context.remaining())
    began = time.monotonic()
    line = Line()
    try:
        with tracing.span("ask model"), watched(line, context=context, seconds=seconds):
            body = post(server, request, line=line, seconds=seconds)
    except openai.APIStatusError as error:
        raise rejection(error) from None
    except (openai.APIConnectionError, TimeoutError) as error:
        context.check()
        facts = failures.log_fields(error, url=server.base_url)
        log.warning("llm_unavailable", seconds=round(time.monotonic() - began, 3), cut=line.is_cut, **facts)
        raise unreachable(error, line) from None
    except (openai.OpenAIError, httpx2.InvalidURL, UnicodeError) as error:
        log.warning("llm_misconfigured", exc_info=error)
        raise LlmForbidden("ETL_LLM_BASE_URL or ETL_LLM_API_KEY cannot be used.") from None
    reply = read(body)
    tell(reply, seconds=time.monotonic() - began)
    return reply


def post(server: Server, request: dict[str, Any], *, line: Line, seconds: float) -> bytes:
    import openai

    limits = httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
    with (
        Session(line, key=server.key, verify=certificates(), timeout=limits) as session,
        openai.OpenAI(
            api_key=server.key or "none", base_url=server.base_url, http_client=session, max_retries=0
        ) as client,
    ):
        answer = client.chat.completions.with_raw_response.create(**request, timeout=limits)
    if line.is_cut:  # in the middle of a body whose end nothing but the end of the connection tells
        raise TimeoutError
    return answer.http_response.content


@cache
def certificates() -> SSLContext:
    """Return what TLS is checked with; reading it takes longer than all the rest of a client."""
    return httpx2.create_ssl_context()


class Session(httpx2.Client):
    """A client for one call."""

    def __init__(self, line: Line, *, key: str, verify: SSLContext, timeout: httpx2.Timeout) -> None:
        super().__init__(verify=verify, timeout=timeout, follow_redirects=False)
        self.line, self.key = line, key

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        given, request.headers = request.headers, self.clean(request.headers)
        request.extensions = {**request.extensions, "trace": self.line.trace}
        options.update(stream=True, follow_redirects=False)
        answer = super().send(request, **options)
        try:
            body = read_bounded(answer)
        finally:
            answer.close()
        request.headers = given  # the library reads them again
        kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
        return httpx2.Response(answer.status_code, headers=kept, content=body, request=request)

    def clean(self, headers: httpx2.Headers) -> httpx2.Headers:
        """Return the headers that are sent. Answers come as they are: what unpacks cannot be bounded by its size."""
        wanted = {name: headers[name] for name in ("host", "content-type", "content-length") if name in headers}
        ours = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "close",
            "user-agent": f"Sluice/{settings.SPECTACULAR_SETTINGS['VERSION']}",
        }
        return httpx2.Headers(wanted | ours | ({"authorization": f"Bearer {self.key}"} if self.key else {}))


def read_bounded(answer: httpx2.Response) -> bytes:
    """Return the body; nothing at all of one that is larger than allowed, so that no part passes for the whole."""
    body = bytearray()
    for block in answer.iter_raw():
        body += block
        if len(body) > MAX_ANSWER_BYTES:
            log.warning("llm_answer_too_large", limit=MAX_ANSWER_BYTES)
            return b""
    return bytes(body)


# ---- What came back -------------------------------------------------------------------------------------------------
def read(body: bytes) -> Reply:
    """Return what a body says. Servers are many: nothing of it is taken for granted."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    answer = answer if isinstance(answer, dict) else {}
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    finish = choice.get("finish_reason")
    return Reply(
        text=text_of(message.get("content")),
        finish=finish if isinstance(finish, str) else "",
        is_refusal=bool(message.get("refusal")),
        usage=usage_of(answer.get("usage")),
    )


def text_of(content: object) -> str:
    """Return the text of a message: a string, or a list of parts as some servers send it."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    # JSON can escape half a character, which nothing after this could store.
    return content.encode("utf-8", "replace").decode().strip() if isinstance(content, str) else ""


def usage_of(told: object) -> Usage | None:
    if not isinstance(told, dict):
        return None
    prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
    if not (is_count(prompt) and is_count(completion)):
        return None
    return Usage(prompt_tokens=int(prompt or 0), completion_tokens=int(completion or 0), calls=1)


def is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_TOKENS_TOLD


def tell(reply: Reply, *, seconds: float) -> None:
    usage = reply.usage or Usage()
    log.info(
        "llm_answered",
        seconds=round(seconds, 3),
        finish=reply.finish[:20],
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


# ---- What went wrong ------------------------------------------------------------------------------------------------
def unreachable(error: Exception, line: Line) -> LlmUnavailable:
    import openai

    if line.is_cut or isinstance(error, openai.APITimeoutError | TimeoutError):
        return LlmUnavailable("The language model did not answer in time.")
    return LlmUnavailable("The language model could not be reached.")


def rejection(error: "openai.APIStatusError") -> Rejected:
    status = error.status_code
    words = error.response.text[:MAX_WORDS].lower()
    log.warning("llm_rejected", status=status)
    meant = reason(status, words, retry_after=wish(error.response))
    is_about_request = status in ABOUT_REQUEST and not isinstance(meant, DocumentTooLong)
    return Rejected(meant, words=words if is_about_request else "")


def reason(status: int, words: str, *, retry_after: float | None) -> EtlError:
    """Return what an answer with this status means for the task."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return LlmForbidden("The language model's server does not accept ETL_LLM_API_KEY.")
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or is_too_long(status, words):
        return DocumentTooLong("The document, or a piece of it, is longer than the language model can take at once.")
    if status in PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return LlmUnavailable(
            f"The language model's server is too busy or failed (HTTP {status}).", retry_after=retry_after
        )
    if status == HTTPStatus.NOT_FOUND:
        return LlmForbidden("The language model's server knows no such model or address (HTTP 404).")
    return LlmForbidden(f"The language model's server refuses the request (HTTP {status}).")


# Some say with 404 or 500 that they do not know a part of the request.
ABOUT_REQUEST = (400, 404, 415, 422, 500, 501)
PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


def is_too_long(status: int, words: str) -> bool:
    """Whether the server says that the prompt does not fit; some say so with 500. 429 is about tokens a minute."""
    return bool(TOO_LONG.search(words)) and status not in PASSING and status >= HTTPStatus.BAD_REQUEST


def wish(answer: httpx2.Response) -> float | None:
    return retry_after.seconds(answer.headers.get("Retry-After"), limit=MAX_RETRY_AFTER)
