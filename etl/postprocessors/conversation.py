"""Conversation with a language model: ask, validate the response, ask again.

A response that is not JSON, or does not fit the schema, is shown to the model with its errors, up to twice. Each reply
is stored in the response cache before it is used, so a stage that crashes continues with the replies it already has.
Usage is counted for every reply, also for an unusable one.
"""

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from etl.core.errors import LlmInvalidResponse, LlmRefused, LlmTruncated, SchemaInvalid
from etl.core.stage_context import StageContext, Usage
from etl.postprocessors import client, prompts, responses, server_features
from etl.postprocessors.client import ModelEndpoint, ModelReply, RequestRejected
from etl.postprocessors.responses import NotJson, ParsedResponse
from etl.postprocessors.schemas import Guide, Schema, as_map, envelope
from etl.postprocessors.server_features import JsonMode, ServerFeatures
from rules.library.content import RuleContent
from rules.schema import json_schema

log = structlog.get_logger(__name__)

PROMPT_VERSION = 1  # cached replies to other prompts are not used
REASKS = 2
MAX_POINTERS = 20
MAX_POINTER = 120
MAX_SHOWN = 5  # mismatches in an error
CUT_OFF = ("length", "max_tokens", "model_length", "token_limit")
WITHHELD = ("content_filter", "refusal", "safety")
ENDED = ("stop", "eos", "end_turn", "stop_sequence", "eos_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`label`: of the call, in its task. `task` and `about`: the instruction, and a description of the data. `schema`:
    shown to the model; `checked`: the schema that validates the response, with fewer descriptions. `is_notes`: the
    response is text, and the schema only selects what is relevant. `is_lasting`: a valid response is kept for the whole
    task, also when a user retries it."""

    label: str
    task: str
    about: str
    data: str
    schema: Schema
    checked: Schema
    wants_evidence: bool = False
    is_notes: bool = False
    is_lasting: bool = False
    reasks: int = REASKS


class InvalidReply(Exception):
    """A reply cannot be used. `complaints`: the reasons, for the model; `mismatches`: for users, a pointer, and a
    message for each part that does not fit the schema; empty if the reply is not JSON."""

    def __init__(self, complaints: list[str], mismatches: list[tuple[str, str]]) -> None:
        super().__init__(len(complaints))
        self.complaints, self.mismatches = complaints, mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An invalid reply, and the reasons."""

    text: str
    complaints: list[str]


class Model:
    """The configured model, for one run of a stage."""

    def __init__(self, rule: RuleContent, *, context: StageContext) -> None:
        """Raises LlmForbidden when no model is configured."""
        self.endpoint = ModelEndpoint.configured()
        self.rule, self.context = rule, context
        self.features: ServerFeatures | None = None
        # A trial is never resumed, so it has no lasting secret.
        self.secret = context.secret or secrets.token_bytes(32)

    def ask(self, question: Question) -> ParsedResponse:
        """Return a valid response. Raises SchemaInvalid after the last invalid reply, and the errors of `converse`."""
        accepted = f"{self.key(question, [])}-accepted"
        if question.is_lasting and (cached := self.recall(accepted)):
            return validate(cached.text, question)
        spent = Usage()
        rounds: list[Round] = []
        while True:
            reply = self.converse(question, rounds)
            spent.add(reply.usage or Usage(calls=1))
            try:
                answer = validate(reply.text, question)
            except InvalidReply as invalid_reply:
                if len(rounds) == question.reasks:
                    raise invalid(invalid_reply) from None
                log.info("llm_asked_again", label=question.label, complaints=len(invalid_reply.complaints))
                rounds.append(Round(text=reply.text, complaints=invalid_reply.complaints))
                continue
            if question.is_lasting:
                self.context.response_cache.put(
                    accepted, asdict(replace(reply, usage=reply.usage and spent)), run=False
                )
            return answer

    # ---- One reply --------------------------------------------------------------------------------------------------
    def converse(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Return the next reply, from the cache if it is there.

        Raises LlmTruncated and LlmRefused, also for cached replies; LlmInvalidResponse, LlmUnavailable, LlmForbidden,
        DocumentTooLong, and the errors of `context.check()`.
        """
        key = self.key(question, rounds)
        reply = self.recall(key)
        if reply is None:
            reply = self.call(question, rounds)
            if is_empty(reply, question):
                self.count(reply, cached=False)
                raise LlmInvalidResponse
            self.context.response_cache.put(key, asdict(reply), run=True)
            self.count(reply, cached=False)
        return check_complete(reply)

    def recall(self, key: str) -> ModelReply | None:
        entry = self.context.response_cache.get(key)
        if entry is None:
            return None
        reply = ModelReply(**(entry | {"usage": Usage(**entry["usage"]) if entry["usage"] else None}))
        self.count(reply, cached=True)
        return reply

    def count(self, reply: ModelReply, *, cached: bool) -> None:
        if reply.usage is None:
            self.context.warn("usage_unknown", "The language model's server reported no token usage.")
        self.context.count_usage(reply.usage or Usage(calls=1), cached=cached)

    def key(self, question: Question, rounds: list[Round]) -> str:
        """Return the cache key of a reply: the same for the same question after the same replies. Markers and server
        features are not part of it, because they do not affect the content."""
        facts = [
            PROMPT_VERSION,
            self.endpoint.model,
            self.rule.system_prompt,
            asdict(question),
            [each.text for each in rounds],
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{question.label}-{digest}"

    # ---- One request ------------------------------------------------------------------------------------------------
    def call(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Send the request, with fallbacks for features that the server rejects. Each is tried once, so this ends."""
        before = lasting = features = self.features or server_features.recall(
            self.endpoint.base_url, self.endpoint.model
        )
        while True:
            try:
                reply = client.call(self.endpoint, self.request(question, rounds, features), context=self.context)
                break
            except RequestRejected as rejected:
                following = features.after(rejected.message)
                if following is None:
                    raise rejected.error from None
                lasting = following if lasting == features and features.is_about_server(rejected.message) else lasting
                features = following
                log.info("llm_dialect_changed", form=features.form)
        self.features = features
        if lasting != before:
            server_features.remember(self.endpoint.base_url, self.endpoint.model, lasting)
        return reply

    def request(self, question: Question, rounds: list[Round], features: ServerFeatures) -> dict[str, Any]:
        wanted: dict[str, Any] = {"model": self.endpoint.model, "messages": self.messages(question, rounds, features)}
        if not question.is_notes:
            wanted |= form_of(question, features)
        if features.has_temperature:
            wanted["temperature"] = 0
        if self.endpoint.max_tokens:
            wanted[features.limit] = self.endpoint.max_tokens
        return wanted

    def messages(self, question: Question, rounds: list[Round], features: ServerFeatures) -> list[prompts.Message]:
        mark = prompts.marker(self.secret, self.key(question, []), question.data)
        system = prompts.system(
            task=question.task,
            schema=question.schema,
            own=self.rule.system_prompt,
            answer=prompts.form(wants_evidence=question.wants_evidence, is_notes=question.is_notes),
            mark=mark,
            is_fenced=features.form is JsonMode.TEXT and not question.is_notes,
        )
        user = prompts.user(about=question.about, data=question.data, mark=mark)
        more = [each for one in rounds for each in prompts.corrective_messages(one.text, one.complaints)]
        return prompts.messages(system, user, more, features)


def form_of(question: Question, features: ServerFeatures) -> dict[str, Any]:
    if features.form is JsonMode.JSON_OBJECT:
        return {"response_format": {"type": "json_object"}}
    if features.form is JsonMode.TEXT:
        return {}
    schema = envelope(question.schema, wants_evidence=question.wants_evidence)
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": False, "schema": schema}}
    }


# ---- Validation ---------------------------------------------------------------------------------------------------
def is_empty(reply: ModelReply, question: Question) -> bool:
    """Whether the reply is empty or incomplete without a reason: the next attempt may succeed.

    A few servers never send a finish reason. JSON itself shows whether it is complete; notes do not.
    """
    if reply.is_refusal or reply.finish in (*CUT_OFF, *WITHHELD):
        return False
    has_ended = reply.finish in ENDED or (not reply.finish and not question.is_notes)
    return not (reply.text and has_ended)


def check_complete(reply: ModelReply) -> ModelReply:
    """Return the reply. Raises LlmRefused and LlmTruncated."""
    if reply.is_refusal or reply.finish in WITHHELD:
        raise LlmRefused
    if reply.finish in CUT_OFF:
        raise LlmTruncated
    return reply


def validate(text: str, question: Question) -> ParsedResponse:
    """Parse and validate a reply. Raises InvalidReply."""
    if question.is_notes:
        notes = responses.without_thoughts(text)
        if not notes:
            raise InvalidReply(["It contains no notes."], [])
        return ParsedResponse(data=notes)
    try:
        has_data = any("data" in as_map(part.get("properties")) for part in Guide.of(question.schema).parts)
        readings = responses.readings(responses.parse(text), has_data=has_data)
    except NotJson as reason:
        raise InvalidReply([str(reason)], []) from None
    found = [(reading, json_schema.errors(question.checked, reading.data, MAX_POINTERS)) for reading in readings]
    for reading, errors in found:
        if not errors:
            return reading
    _, errors = found[0]
    raise InvalidReply([f"{pointer or 'the whole'}: {words}" for pointer, words in errors], errors)


def invalid(reply: InvalidReply) -> SchemaInvalid:
    if not reply.mismatches:
        return SchemaInvalid("The language model's response is not JSON, even after a corrective retry.")
    shown = dict.fromkeys(map(describe, reply.mismatches[:MAX_SHOWN]))
    return SchemaInvalid(f"{SchemaInvalid.detail} {' '.join(shown)}")


def describe(mismatch: tuple[str, str]) -> str:
    """Describe a mismatch by the schema alone: names that only the response has may be private."""
    pointer, words = mismatch
    reason = "Has members that are not allowed." if words.startswith("Must not have the members ") else words
    return f"{named([pointer])}: {reason[:MAX_POINTER]}"


def named(pointers: list[str]) -> str:
    """Return pointers for use in a sentence."""
    return ", ".join(dict.fromkeys((pointer or "the whole")[:MAX_POINTER] for pointer in pointers[:MAX_POINTERS]))
