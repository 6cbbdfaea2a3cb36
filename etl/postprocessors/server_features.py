"""Features of a model server: the parts of the chat completions API that it supports.

Each part of a request that some servers reject has a fallback. The first request uses what most servers support; after
a rejection, the server's error message decides on the fallback. The result is kept for a while in this process and, for
other processes, in Redis: a server that is updated may support more than before.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from etl import runstate

KEEP_SECONDS = 6 * 3600


class JsonMode(StrEnum):
    """Ways to request JSON, from the best to the one that every server supports."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    TEXT = "text"  # in a code fence, requested by the prompt alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    form: JsonMode = JsonMode.JSON_OBJECT
    has_temperature: bool = True
    has_system: bool = True
    limit: str = "max_tokens"

    def after(self, message: str) -> "ServerFeatures | None":
        """Return the fallback for a rejection with this message, in lower case. None if there is none."""
        return next(self.fallbacks(message), None)

    def fallbacks(self, message: str) -> Iterator["ServerFeatures"]:
        """Yield the fallbacks that a message suggests, in the order in which they are tried."""
        if self.limit == "max_tokens" and "max_completion_tokens" in message:
            yield replace(self, limit="max_completion_tokens")
        if self.has_temperature and "temperature" in message:
            yield replace(self, has_temperature=False)
        if self.has_system and NO_SYSTEM_ROLE.search(message):
            yield replace(self, has_system=False)
        if self.form is not JsonMode.TEXT and NO_JSON_MODE.search(message):
            yield replace(self, form=FALLBACKS[self.form])

    def is_about_server(self, message: str, *, sent: str) -> bool:
        """Return whether the message is about the server, and not about one schema or document, which other rules do
        not share. `sent`: the text that was sent. A server that repeats it in its message says nothing about itself."""
        if self.form is JsonMode.JSON_SCHEMA and BAD_SCHEMA.search(message):
            return False
        return self.after(message) not in list(self.fallbacks(sent.lower()))


FALLBACKS = {JsonMode.JSON_OBJECT: JsonMode.JSON_SCHEMA, JsonMode.JSON_SCHEMA: JsonMode.TEXT}
NO_JSON_MODE = re.compile(r"response_format|json_object|json_schema|json mode|structured output|guided|grammar")
NO_SYSTEM_ROLE = re.compile(r"system (?:role|message|prompt)s?\b[^.]{0,40}not (?:supported|allowed)|no system role")
BAD_SCHEMA = re.compile(
    r"invalid\W{1,3}(?:json\W)?schema|schema is (?:invalid|not)|grammar|keyword|\$ref|too (?:complex|large|deep)"
)


# ---- Memory ---------------------------------------------------------------------------------------------------------
known: dict[str, tuple[ServerFeatures, float]] = {}  # with the time until which they are valid


def recall(base_url: str, model: str) -> ServerFeatures:
    """Return the features of a server for a model; the defaults if none are known, or Redis is unavailable."""
    name = key_of(base_url, model)
    features, until = known.get(name, (ServerFeatures(), 0.0))
    if time.monotonic() < until:
        return features
    features = from_redis(name)
    known[name] = (features, time.monotonic() + KEEP_SECONDS)
    return features


def remember(base_url: str, model: str, features: ServerFeatures) -> None:
    name = key_of(base_url, model)
    known[name] = (features, time.monotonic() + KEEP_SECONDS)
    with suppress(runstate.Unavailable):
        runstate.put_shared(name, json.dumps(asdict(features)), seconds=KEEP_SECONDS)


def from_redis(name: str) -> ServerFeatures:
    try:
        return read(json.loads(runstate.get_shared(name) or "{}"))
    except (runstate.Unavailable, ValueError, TypeError):  # also a note of another release
        return ServerFeatures()


def read(facts: dict[str, Any]) -> ServerFeatures:
    return ServerFeatures(**(facts | {"form": JsonMode(facts["form"])} if facts else {}))


def key_of(base_url: str, model: str) -> str:
    digest = hashlib.sha256(f"{base_url} {model}".encode()).hexdigest()[:32]
    return f"llm:{digest}"
