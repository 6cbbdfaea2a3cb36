"""Features of a model server: the parts of the chat completions API that it supports.

Each part of a request that some servers reject has a fallback. The first request uses the best options. After a
rejection, the server's error message determines the fallback. The result is cached in this process and, for other
processes, in Redis. It expires, because an updated server may support more features. Fallbacks for a schema that the
server rejects are stored separately. So a feature is rejected once per server, or once per schema, and not once per
document.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise

from etl import runstate

KEEP_SECONDS = 6 * 3600


class JsonMode(StrEnum):
    """Ways to request JSON, from the best to the one that every server supports."""

    STRICT = "json_schema_strict"  # the server enforces the schema
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    TEXT = "text"  # in a code fence, requested by the prompt alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    json_mode: JsonMode = JsonMode.STRICT
    supports_temperature: bool = True
    supports_system_role: bool = True
    max_tokens_parameter: str = "max_tokens"

    def next_fallback(self, message: str) -> "ServerFeatures | None":
        """Return the first fallback that a rejection suggests, or None. `message`: the error message in lower case."""
        return next(self.fallbacks(message), None)

    def fallbacks(self, message: str) -> Iterator["ServerFeatures"]:
        """Yield the fallbacks that a message suggests, in the order in which they are tried."""
        if self.max_tokens_parameter == "max_tokens" and "max_completion_tokens" in message:
            yield replace(self, max_tokens_parameter="max_completion_tokens")
        if self.supports_temperature and "temperature" in message:
            yield replace(self, supports_temperature=False)
        if self.supports_system_role and NO_SYSTEM_ROLE.search(message):
            yield replace(self, supports_system_role=False)
        if self.json_mode is not JsonMode.TEXT and NO_JSON_MODE.search(message):
            yield replace(self, json_mode=FALLBACKS[self.json_mode])

    def scope_of(self, message: str, *, sent: str) -> "Scope":
        """Return the scope of a rejection. `sent`: the document and prompt that were sent. If they contain the words
        that suggest the fallback, the message may be quoting them, so the fallback applies to this document only."""
        if self.next_fallback(message) in list(self.fallbacks(sent.lower())):
            return Scope.DOCUMENT
        has_schema = self.json_mode in (JsonMode.STRICT, JsonMode.JSON_SCHEMA)
        return Scope.SCHEMA if has_schema and BAD_SCHEMA.search(message) else Scope.SERVER


class Scope(StrEnum):
    """The requests that a rejection applies to: all, those with the same schema, or those for the same document."""

    SERVER = "server"
    SCHEMA = "schema"
    DOCUMENT = "document"


JSON_MODES = list(JsonMode)
FALLBACKS = dict(pairwise(JSON_MODES))
NO_JSON_MODE = re.compile(
    r"response_format|json_object|json_schema|json mode|structured output|guided|grammar|\bstrict\b"
)
NO_SYSTEM_ROLE = re.compile(r"system (?:role|message|prompt)s?\b[^.]{0,40}not (?:supported|allowed)|no system role")
BAD_SCHEMA = re.compile(
    r"invalid\W{1,3}(?:json\W)?schema|schema is (?:invalid|not)|grammar|keyword|\$ref|too (?:complex|large|deep)"
)


# ---- Negotiation ----------------------------------------------------------------------------------------------------
class Negotiation:
    """The negotiation of features for one request: at first the best ones known to work, then the next fallback after
    each rejection.

    `json_mode`: the best mode for the request. `schema`: the digest of its schema, or "". `of_document`: the features
    that an earlier request for this document fell back to.
    """

    def __init__(
        self, base_url: str, model: str, *, json_mode: JsonMode, schema: str, of_document: ServerFeatures | None
    ) -> None:
        self.server = (base_url, model)
        self.schema = schema
        self.stored = load(*self.server)
        self.of_server = self.stored or ServerFeatures()
        self.of_document = of_document
        features = of_document or self.of_server
        of_schema = load(*self.server, schema=schema) if schema else None
        modes = [features.json_mode, json_mode, *([of_schema.json_mode] if of_schema else [])]
        self.features = replace(features, json_mode=max(modes, key=JSON_MODES.index))

    def fall_back(self, message: str, *, sent: str) -> bool:
        """Switch to the next fallback. Return whether there is one."""
        fallback = self.features.next_fallback(message)
        if fallback is None:
            return False
        scope = self.features.scope_of(message, sent=sent)
        has_new_mode = fallback.json_mode is not self.features.json_mode
        # If only this schema caused the fallback to json_object, a further rejection does not apply to other schemas.
        is_forced_by_schema = (
            self.features.json_mode is JsonMode.JSON_OBJECT and self.of_server.json_mode is not JsonMode.JSON_OBJECT
        )
        if scope is Scope.DOCUMENT:
            self.of_document = fallback
        elif scope is Scope.SCHEMA or (has_new_mode and is_forced_by_schema):
            store(*self.server, fallback, schema=self.schema)
        else:
            changed = {name: value for name, value in asdict(fallback).items() if value != getattr(self.features, name)}
            self.of_server = replace(self.of_server, **changed)
        self.features = fallback
        return True

    def store_accepted(self) -> None:
        """Store the server's features after it has accepted the request."""
        if self.of_document:
            self.of_document = self.features
        if self.of_server != self.stored:
            store(*self.server, self.of_server)


# ---- Storage --------------------------------------------------------------------------------------------------------
local_cache: dict[str, tuple[ServerFeatures, float]] = {}  # features, and the monotonic time at which they expire
MAX_CACHED = 2_000  # most entries are for schemas of rules, pieces, and corrections


def load(base_url: str, model: str, *, schema: str = "") -> ServerFeatures | None:
    """Return the cached features of a server and model, for all requests or for those with a schema. Return None if
    neither this process nor Redis has any, or if Redis is unavailable.

    The absence of features is not cached, because another process may store some at any time.
    """
    name = key_of(base_url, model, schema)
    features, expires = local_cache.get(name, (None, 0.0))
    if time.monotonic() < expires:
        return features
    features = load_from_redis(name)
    if features:
        cache_locally(name, features)
    return features


def store(base_url: str, model: str, features: ServerFeatures, *, schema: str = "") -> None:
    """Cache features in this process and, if Redis is available, for other processes."""
    name = key_of(base_url, model, schema)
    cache_locally(name, features)
    with suppress(runstate.Unavailable):
        runstate.put_shared(name, json.dumps(asdict(features)), seconds=KEEP_SECONDS)


def cache_locally(name: str, features: ServerFeatures) -> None:
    if len(local_cache) >= MAX_CACHED:
        local_cache.clear()
    local_cache[name] = (features, time.monotonic() + KEEP_SECONDS)


def load_from_redis(name: str) -> ServerFeatures | None:
    try:
        fields = json.loads(runstate.get_shared(name) or "{}")
        return ServerFeatures(**(fields | {"json_mode": JsonMode(fields["json_mode"])})) if fields else None
    except (runstate.Unavailable, ValueError, TypeError, KeyError):  # another release may write other fields
        return None


def key_of(base_url: str, model: str, schema: str = "") -> str:
    digest = hashlib.sha256(f"{base_url} {model}{schema and f' {schema}'}".encode()).hexdigest()[:32]
    return f"llm:{digest}"
