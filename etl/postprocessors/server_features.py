"""Features of a model server: the parts of the chat completions API that it supports.

Each part of a request that some servers reject has a fallback. The first request uses the best; after a rejection, the
server's error message decides on the fallback. The result is kept for a while in this process and, for other processes,
in Redis: a server that is updated may support more than before. A schema that the server refuses is remembered on its
own. So rejected requests are made once for a server and once for a schema, and not for each document.
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
from typing import Any

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
    form: JsonMode = JsonMode.STRICT
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

    def scope_of(self, message: str, *, sent: str) -> "Scope":
        """Return the scope of a message: the server, its schema support, or the document. `sent`: the text that was
        sent. A message that only repeats it is about the document."""
        if self.after(message) in list(self.fallbacks(sent.lower())):
            return Scope.DOCUMENT
        has_schema = self.form in (JsonMode.STRICT, JsonMode.JSON_SCHEMA)
        return Scope.SCHEMA if has_schema and BAD_SCHEMA.search(message) else Scope.SERVER


class Scope(StrEnum):
    """What shares a rejection: all requests, those with the same schema, or those with the same document."""

    SERVER = "server"
    SCHEMA = "schema"
    DOCUMENT = "document"


FORMS = list(JsonMode)
FALLBACKS = dict(pairwise(FORMS))
NO_JSON_MODE = re.compile(
    r"response_format|json_object|json_schema|json mode|structured output|guided|grammar|\bstrict\b"
)
NO_SYSTEM_ROLE = re.compile(r"system (?:role|message|prompt)s?\b[^.]{0,40}not (?:supported|allowed)|no system role")
BAD_SCHEMA = re.compile(
    r"invalid\W{1,3}(?:json\W)?schema|schema is (?:invalid|not)|grammar|keyword|\$ref|too (?:complex|large|deep)"
)


# ---- Negotiation ----------------------------------------------------------------------------------------------------
class Negotiation:
    """The features for one request: the best that are known to work, and after each rejection the next fallback.

    `form`: the best form that fits the request. `schema`: the digest of its schema, "" for a request without one.
    `of_document`: features that an earlier request for this document fell back to.
    """

    def __init__(
        self, base_url: str, model: str, *, form: JsonMode, schema: str, of_document: ServerFeatures | None
    ) -> None:
        self.server = (base_url, model)
        self.schema = schema
        self.stored = recall(*self.server)
        self.lasting = self.stored or ServerFeatures()
        self.of_document = of_document
        features = of_document or self.lasting
        of_schema = recall(*self.server, schema=schema) if schema else None
        forms = [features.form, form, *([of_schema.form] if of_schema else [])]
        self.features = replace(features, form=max(forms, key=FORMS.index))

    def fall_back(self, message: str, *, sent: str) -> bool:
        """Take the next fallback. Return whether there is one."""
        following = self.features.after(message)
        if following is None:
            return False
        scope = self.features.scope_of(message, sent=sent)
        has_new_form = following.form is not self.features.form
        # A form that was only reached because of the schema is no evidence about the others.
        is_reached = self.features.form is JsonMode.JSON_OBJECT and self.lasting.form is not JsonMode.JSON_OBJECT
        if scope is Scope.DOCUMENT:
            self.of_document = following
        elif scope is Scope.SCHEMA or (has_new_form and is_reached):
            remember(*self.server, following, schema=self.schema)
        else:
            self.lasting = replace(following, form=following.form if has_new_form else self.lasting.form)
        self.features = following
        return True

    def settle(self) -> None:
        """Remember the features of a request that was accepted."""
        if self.of_document:
            self.of_document = self.features
        if self.lasting != self.stored:
            remember(*self.server, self.lasting)


# ---- Memory ---------------------------------------------------------------------------------------------------------
known: dict[str, tuple[ServerFeatures, float]] = {}  # with the time until which they are valid
MAX_KNOWN = 2_000  # schemas of rules, and of the pieces and corrections that are made of them


def recall(base_url: str, model: str, *, schema: str = "") -> ServerFeatures | None:
    """Return the features of a server for a model, or with the digest of a schema those for requests with it. None if
    the process knows none and Redis has none or is unavailable.

    A missing value is not cached, because another process may store one at any time.
    """
    name = key_of(base_url, model, schema)
    features, until = known.get(name, (None, 0.0))
    if time.monotonic() < until:
        return features
    features = from_redis(name)
    if features:
        keep(name, features)
    return features


def remember(base_url: str, model: str, features: ServerFeatures, *, schema: str = "") -> None:
    name = key_of(base_url, model, schema)
    keep(name, features)
    with suppress(runstate.Unavailable):
        runstate.put_shared(name, json.dumps(asdict(features)), seconds=KEEP_SECONDS)


def keep(name: str, features: ServerFeatures) -> None:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[name] = (features, time.monotonic() + KEEP_SECONDS)


def from_redis(name: str) -> ServerFeatures | None:
    try:
        return read(json.loads(runstate.get_shared(name) or "{}"))
    except (runstate.Unavailable, ValueError, TypeError, KeyError):  # also a note of another release
        return None


def read(facts: dict[str, Any]) -> ServerFeatures | None:
    return ServerFeatures(**(facts | {"form": JsonMode(facts["form"])})) if facts else None


def key_of(base_url: str, model: str, schema: str = "") -> str:
    digest = hashlib.sha256(f"{base_url} {model}{schema and f' {schema}'}".encode()).hexdigest()[:32]
    return f"llm:{digest}"
