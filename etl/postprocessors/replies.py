"""Replies of model servers: text, finish reason, and usage. Servers differ, and any part may be missing.

`tests/dialects` contains replies from the servers whose finish reasons are listed here.
"""

import json
import re
from dataclasses import dataclass

from etl.core.errors import LlmRefused, LlmTruncated
from etl.core.stage_context import Usage

MAX_TOKEN_COUNT = 10**9  # larger numbers are treated as invalid

# Finish reasons, in lower case.
CUT_OFF = ("length", "max_tokens", "max_length", "max_output_tokens", "model_length", "token_limit", "incomplete")
WITHHELD = (
    *("content_filter", "content_filtered", "content-filter", "refusal", "safety", "sensitive", "error_toxic"),
    *("recitation", "blocklist", "prohibited_content", "spii", "guardrail_intervened"),
)
ENDED = (
    *("stop", "eos", "eos_token", "end_turn", "end_of_turn", "stop_sequence", "stop_token", "stopped", "end", "done"),
    *("complete", "completed", "finished", "tool_calls", "tool_use", "tool_call", "function_call"),
)

# The minimum number of tokens per word of a prompt. Prose and tables have more than one. A lower number means that the
# server has truncated the prompt, which some servers do without an error.
MIN_TOKENS_PER_WORD = 0.8
MIN_TOKENS_PER_WIDE = 0.3  # for each character of a script without spaces
MIN_WORDS = 1_000  # shorter prompts fit into the context window of every model
WORD = re.compile(r"[^\W_]+")
WIDE = re.compile("[\u0e00-\u0eff\u2e80-\U0003ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The reply of a model. `text`: "" if it has none. `finish`: the server's finish reason in lower case, or "".
    `usage`: None if the server reported no token counts."""

    text: str
    finish: str
    is_refusal: bool
    usage: Usage | None


def read(body: bytes) -> ModelReply:
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
        finish=finish.strip().lower() if isinstance(finish, str) else "",
        is_refusal=bool(message.get("refusal")),
        usage=usage_of(parsed.get("usage")),
    )


def text_of(content: object) -> str:
    """Return the text of a message. Its content is a string or, from some servers, a list of parts, which may include
    reasoning."""
    if isinstance(content, list):
        parts = [
            part.get("text")
            for part in content
            if isinstance(part, dict) and part.get("type") in ("text", "output_text")
        ]
        content = "".join(part for part in parts if isinstance(part, str))
    # JSON can escape a lone surrogate, which cannot be stored.
    return content.encode("utf-8", "replace").decode().strip() if isinstance(content, str) else ""


# ---- Usage ----------------------------------------------------------------------------------------------------------
def usage_of(reported: object) -> Usage | None:
    if not isinstance(reported, dict):
        return None
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if not (is_count(prompt) and is_count(completion)):
        return None
    return Usage(prompt_tokens=int(prompt or 0), completion_tokens=int(completion or 0), calls=1)


def is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MAX_TOKEN_COUNT


def is_prompt_cut(reply: ModelReply, prompt: str) -> bool:
    """Return whether the server seems to have truncated the prompt: its token count is too low for the number of words.

    A count of 0 means that the server does not count tokens. Because tokenizers differ, only a truncation by about a
    third or more is detected.
    """
    if reply.usage is None or not reply.usage.prompt_tokens:
        return False
    wide = len(WIDE.findall(prompt))
    words = len(WORD.findall(WIDE.sub(" ", prompt)))
    minimum = MIN_TOKENS_PER_WORD * words + MIN_TOKENS_PER_WIDE * wide
    return words + wide >= MIN_WORDS and reply.usage.prompt_tokens < minimum


def is_empty(reply: ModelReply, *, is_notes: bool) -> bool:
    """Return whether the reply is empty or incomplete without a known reason, so that the next attempt may succeed.

    A few servers never send a finish reason. Then JSON is accepted, because its syntax shows whether it is complete.
    Notes are not.
    """
    if reply.is_refusal or reply.finish in (*CUT_OFF, *WITHHELD):
        return False
    has_ended = reply.finish in ENDED or (not reply.finish and not is_notes)
    return not (reply.text and has_ended)


def check_complete(reply: ModelReply) -> ModelReply:
    """Return the reply if it is complete. Raises LlmRefused and LlmTruncated."""
    if reply.is_refusal or reply.finish in WITHHELD:
        raise LlmRefused
    if reply.finish in CUT_OFF:
        raise LlmTruncated
    return reply
