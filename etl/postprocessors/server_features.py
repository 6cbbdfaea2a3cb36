"""What a server takes of the chat completions API, found out by asking, and remembered.

Each part of a request that some servers refuse has a way around. A request begins as most servers take it; by what a
server says when it refuses one, the next request goes the way around. What was found holds for a while in
this process and, for the others, in Redis: a server that is updated may take more than before.
"""

import hashlib
import json
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from etl import runstate

REMEMBER_SECONDS = 6 * 3600


class Form(StrEnum):
    """How JSON is asked for, from the best to what every server takes."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    TEXT = "text"  # in a code fence, by the prompt alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    form: Form = Form.JSON_OBJECT
    has_temperature: bool = True
    has_system: bool = True
    limit: str = "max_tokens"

    def after(self, words: str) -> "Dialect | None":
        """Return what to try next when a server has refused this, by its own words in lower case; None if nothing."""
        if self.limit == "max_tokens" and "max_completion_tokens" in words:
            return replace(self, limit="max_completion_tokens")
        if self.has_temperature and "temperature" in words:
            return replace(self, has_temperature=False)
        if self.has_system and NO_SYSTEM.search(words):
            return replace(self, has_system=False)
        if self.form is not Form.TEXT and NO_FORM.search(words):
            return replace(self, form=FALLS[self.form])
        return None

    def is_about(self, words: str) -> bool:
        """Whether the words tell of the server, and not of this one schema, which the next rule's need not share."""
        return self.form is not Form.JSON_SCHEMA or not BAD_SCHEMA.search(words)


FALLS = {Form.JSON_OBJECT: Form.JSON_SCHEMA, Form.JSON_SCHEMA: Form.TEXT}
NO_FORM = re.compile(r"response_format|json_object|json_schema|json mode|structured output|guided|grammar")
NO_SYSTEM = re.compile(r"system (?:role|message|prompt)s?\b[^.]{0,40}not (?:supported|allowed)|no system role")
BAD_SCHEMA = re.compile(
    r"invalid\W{1,3}(?:json\W)?schema|schema is (?:invalid|not)|grammar|keyword|\$ref|too (?:complex|large|deep)"
)


# ---- Memory ---------------------------------------------------------------------------------------------------------
known: dict[str, tuple[Dialect, float]] = {}  # and until when


def recall(base_url: str, model: str) -> Dialect:
    """Return the dialect of a model at a server; the usual one if nothing is known. Redis being away is no error."""
    name = name_of(base_url, model)
    dialect, until = known.get(name, (Dialect(), 0.0))
    if time.monotonic() < until:
        return dialect
    dialect = from_redis(name)
    known[name] = (dialect, time.monotonic() + REMEMBER_SECONDS)
    return dialect


def remember(base_url: str, model: str, dialect: Dialect) -> None:
    name = name_of(base_url, model)
    known[name] = (dialect, time.monotonic() + REMEMBER_SECONDS)
    with suppress(runstate.Unavailable):
        runstate.put_shared(name, json.dumps(asdict(dialect)), seconds=REMEMBER_SECONDS)


def from_redis(name: str) -> Dialect:
    try:
        return read(json.loads(runstate.get_shared(name) or "{}"))
    except (runstate.Unavailable, ValueError, TypeError):  # also what another release wrote
        return Dialect()


def read(facts: dict[str, Any]) -> Dialect:
    return Dialect(**(facts | {"form": Form(facts["form"])} if facts else {}))


def name_of(base_url: str, model: str) -> str:
    """Return what the note is called that the processes leave each other."""
    digest = hashlib.sha256(f"{base_url} {model}".encode()).hexdigest()[:32]
    return f"llm:{digest}"
