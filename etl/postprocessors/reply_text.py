"""Extraction of the answer from the text of a reply, without reasoning, channels, fences, and surrounding sentences.

Servers differ in which parts of a model's output they remove. This module only removes text around the JSON, never a
part of it. If it is not certain which text is the answer, the model is asked again.
"""

import json
import re
from collections.abc import Iterator

TAGS = r"think|thinking|thought|thoughts|reasoning|reflection|seed:think"
OPENING = re.compile(rf"\s*(?:<(?:{TAGS})>|\[THINK\]|<\|START_THINKING\|>|◁think▷)", re.IGNORECASE)
CLOSING = re.compile(rf"</(?:{TAGS})>|\[/THINK\]|<\|END_THINKING\|>|◁/think▷", re.IGNORECASE)
# Harmony: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`.
CHANNEL, FINAL, MESSAGE = "<|channel|>", "<|channel|>final", "<|message|>"
END_OF_CHANNEL = re.compile(r"<\|(?:return|end|call|start)\|>")
# The same without the special tokens, which some servers remove.
BARE_CHANNELS = re.compile(r"\A(?:assistant)?(?:analysis|commentary).*assistantfinal", re.DOTALL)
SPACE = "\ufeff \t\r\n"
FENCE = "```"
# `[^\S\n]` instead of `\s`: otherwise, the time is quadratic in the number of blank lines.
JSON_BEGINS = re.compile(r'\{\s*"|^[^\S\n]*[\[{]', re.MULTILINE)
decoder = json.JSONDecoder()


def candidates(text: str) -> Iterator[str]:
    """Yield the texts that may be the JSON of a reply, the most likely first."""
    whole, answer = text.strip(SPACE), without_reasoning(text)
    yield whole
    if answer != whole:
        yield answer
    yield from fenced(answer)
    yield from embedded(answer)


def without_reasoning(text: str) -> str:
    """Return the reply without reasoning, or "" if it consists only of reasoning."""
    text = last_channel(text.strip(SPACE))
    closings = list(CLOSING.finditer(text))
    if closings:
        # The opening tag may be missing, because some chat templates put it into the prompt.
        return text[closings[-1].end() :].strip(SPACE)
    return "" if OPENING.match(text) else text


def last_channel(text: str) -> str:
    """Return the text of the final channel, "" if there are only others, or the whole text if there are no channels."""
    if (start := text.rfind(FINAL)) >= 0 and (message := text.find(MESSAGE, start)) >= 0:
        return END_OF_CHANNEL.split(text[message + len(MESSAGE) :], maxsplit=1)[0].strip(SPACE)
    if CHANNEL in text:
        return ""
    return BARE_CHANNELS.sub("", text, count=1).strip(SPACE)


def fenced(text: str) -> Iterator[str]:
    """Yield the content of the only code fence with an object or a list, if there is no JSON outside of it.

    With several candidates, one could be a draft, and it is not certain which one is the answer. A regular expression
    is not used, because its running time would be quadratic in the number of opening fences.
    """
    blocks, outside = fences(text)
    blocks = [block for block in blocks if block[:1] in ("{", "[")]
    if len(blocks) == 1 and not JSON_BEGINS.search(outside):
        yield blocks[0]


def fences(text: str) -> tuple[list[str], str]:
    """Return the contents of all closed code fences, and the text outside of them."""
    found: list[str] = []
    outside: list[str] = []
    inside: list[str] | None = None
    for line in text.split("\n"):
        stripped = line.strip()
        if inside is None:
            inside = [] if stripped.startswith(FENCE) else None
            outside += [line] if inside is None else []
        elif stripped == FENCE:
            found.append("\n".join(inside).strip(SPACE))
            inside = None
        else:
            inside.append(line)
    return found, "\n".join(outside)


def embedded(text: str) -> Iterator[str]:
    """Yield the only object or list within sentences.

    It must start at the first bracket. A value at a later bracket could be a part of an incomplete object.
    """
    start = min((place for mark in "{[" if (place := text.find(mark)) >= 0), default=-1)
    if start < 0:
        return
    try:
        _, end = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return
    if not any(mark in text[end:] for mark in "{["):
        yield text[start:end]
