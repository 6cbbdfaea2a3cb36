"""Asking a language model until its answer fits, and never twice for what was answered already.

A question's first answer may be no JSON, or not fit the schema: then the model is shown it with the errors, up to
twice. Every answer is in the journal before anything is done with it, so that a stage that dies anywhere, and runs
again, goes on with the answers that it had; and what a server counted is counted, whatever the answer was worth.
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
from etl.postprocessors.client import Rejected, Reply, Server
from etl.postprocessors.responses import NotJson, ParsedResponse
from etl.postprocessors.schemas import Guide, Schema, as_map, envelope
from etl.postprocessors.server_features import Dialect, Form
from rules.library.content import RuleContent
from rules.schema import json_schema

log = structlog.get_logger(__name__)

RELEASE = 1  # of the prompts: answers that others led to are not taken for answers to these
REASKS = 2
MAX_POINTERS = 20
MAX_POINTER = 120
MAX_TOLD = 5  # places that an error names, with their reasons
CUT_OFF = ("length", "max_tokens", "model_length", "token_limit")
WITHHELD = ("content_filter", "refusal", "safety")
ENDED = ("stop", "eos", "end_turn", "stop_sequence", "eos_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`label`: of the call, in its task. `task` and `about`: what to do, and what the data is, in our words. `schema`:
    what the model is shown; `checked`: what the answer's data must fit, the same with fewer words. `is_notes`: the
    answer is text, and the schema says what matters in it. `is_lasting`: once it is good, the answer is good for the
    whole task, also when a person retries it."""

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


class Unfit(Exception):
    """An answer cannot be used. `complaints`: why, for the model; `misfits`: for people, a pointer and words for each
    place that does not fit the schema; none if it is no JSON."""

    def __init__(self, complaints: list[str], misfits: list[tuple[str, str]]) -> None:
        super().__init__(len(complaints))
        self.complaints, self.misfits = complaints, misfits


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An answer that was no good, and why."""

    text: str
    complaints: list[str]


class Model:
    """The configured model, for one run of a stage."""

    def __init__(self, rule: RuleContent, *, context: StageContext) -> None:
        """Raises LlmForbidden when no model is configured."""
        self.server = Server.configured()
        self.rule, self.context = rule, context
        self.dialect: Dialect | None = None
        # Work that nobody takes up again has no secret, and needs none that lasts.
        self.secret = context.secret or secrets.token_bytes(32)

    def ask(self, question: Question) -> ParsedResponse:
        """Return an answer that fits. Raises SchemaInvalid when the last one does not, and what `converse` raises."""
        accepted = f"{self.key(question, [])}-accepted"
        if question.is_lasting and (had := self.recall(accepted)):
            return fitting(had.text, question)
        spent = Usage()
        rounds: list[Round] = []
        while True:
            reply = self.converse(question, rounds)
            spent.add(reply.usage or Usage(calls=1))
            try:
                answer = fitting(reply.text, question)
            except Unfit as unfit:
                if len(rounds) == question.reasks:
                    raise invalid(unfit) from None
                log.info("llm_asked_again", label=question.label, complaints=len(unfit.complaints))
                rounds.append(Round(text=reply.text, complaints=unfit.complaints))
                continue
            if question.is_lasting:
                self.context.response_cache.put(accepted, entry(replace(reply, usage=reply.usage and spent)), run=False)
            return answer

    # ---- One answer -------------------------------------------------------------------------------------------------
    def converse(self, question: Question, rounds: list[Round]) -> Reply:
        """Return the next answer, from the journal if it was given before.

        Raises LlmTruncated and LlmRefused, also for answers from the journal; LlmInvalidResponse, LlmUnavailable,
        LlmForbidden, DocumentTooLong, and what `context.check()` raises.
        """
        key = self.key(question, rounds)
        reply = self.recall(key)
        if reply is None:
            reply = self.call(question, rounds)
            if is_void(reply, question):
                self.spend(reply, cached=False)
                raise LlmInvalidResponse
            self.context.response_cache.put(key, entry(reply), run=True)
            self.spend(reply, cached=False)
        return whole(reply)

    def recall(self, key: str) -> Reply | None:
        had = self.context.response_cache.get(key)
        if had is None:
            return None
        reply = Reply(**(had | {"usage": Usage(**had["usage"]) if had["usage"] else None}))
        self.spend(reply, cached=True)
        return reply

    def spend(self, reply: Reply, *, cached: bool) -> None:
        if reply.usage is None:
            self.context.warn("usage_unknown", "The language model's server did not say what its answers cost.")
        self.context.count_usage(reply.usage or Usage(calls=1), cached=cached)

    def key(self, question: Question, rounds: list[Round]) -> str:
        """Return the name of an answer: the same for the same question after the same answers. Markers and dialects
        do not count, as no answer depends on them."""
        facts = [RELEASE, self.server.model, self.rule.system_prompt, asdict(question), [each.text for each in rounds]]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{question.label}-{digest}"

    # ---- One request ------------------------------------------------------------------------------------------------
    def call(self, question: Question, rounds: list[Round]) -> Reply:
        """Ask the server, in what it understands. Each way around is tried once, so that there is an end."""
        before = lasting = dialect = self.dialect or server_features.recall(self.server.base_url, self.server.model)
        while True:
            try:
                reply = client.call(self.server, self.request(question, rounds, dialect), context=self.context)
                break
            except Rejected as rejected:
                following = dialect.after(rejected.words)
                if following is None:
                    raise rejected.error from None
                lasting = following if lasting == dialect and dialect.is_about(rejected.words) else lasting
                dialect = following
                log.info("llm_dialect_changed", form=dialect.form)
        self.dialect = dialect
        if lasting != before:
            server_features.remember(self.server.base_url, self.server.model, lasting)
        return reply

    def request(self, question: Question, rounds: list[Round], dialect: Dialect) -> dict[str, Any]:
        wanted: dict[str, Any] = {"model": self.server.model, "messages": self.messages(question, rounds, dialect)}
        if not question.is_notes:
            wanted |= form_of(question, dialect)
        if dialect.has_temperature:
            wanted["temperature"] = 0
        if self.server.max_tokens:
            wanted[dialect.limit] = self.server.max_tokens
        return wanted

    def messages(self, question: Question, rounds: list[Round], dialect: Dialect) -> list[prompts.Message]:
        mark = prompts.marker(self.secret, self.key(question, []), question.data)
        system = prompts.system(
            task=question.task,
            schema=question.schema,
            own=self.rule.system_prompt,
            answer=prompts.form(wants_evidence=question.wants_evidence, is_notes=question.is_notes),
            mark=mark,
            is_fenced=dialect.form is Form.TEXT and not question.is_notes,
        )
        user = prompts.user(about=question.about, data=question.data, mark=mark)
        more = [each for one in rounds for each in prompts.again(one.text, one.complaints)]
        return prompts.messages(system, user, more, dialect)


def form_of(question: Question, dialect: Dialect) -> dict[str, Any]:
    if dialect.form is Form.JSON_OBJECT:
        return {"response_format": {"type": "json_object"}}
    if dialect.form is Form.TEXT:
        return {}
    schema = envelope(question.schema, wants_evidence=question.wants_evidence)
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": False, "schema": schema}}
    }


# ---- What an answer is worth ----------------------------------------------------------------------------------------
def is_void(reply: Reply, question: Question) -> bool:
    """Whether there is no answer, and no word on why: the next attempt may well get one.

    A few servers never say why an answer ended. JSON shows by itself whether it is whole; notes do not.
    """
    if reply.is_refusal or reply.finish in (*CUT_OFF, *WITHHELD):
        return False
    has_ended = reply.finish in ENDED or (not reply.finish and not question.is_notes)
    return not (reply.text and has_ended)


def whole(reply: Reply) -> Reply:
    """Return the reply if it is the model's whole answer."""
    if reply.is_refusal or reply.finish in WITHHELD:
        raise LlmRefused
    if reply.finish in CUT_OFF:
        raise LlmTruncated
    return reply


def entry(reply: Reply) -> dict[str, Any]:
    return asdict(reply)


def fitting(text: str, question: Question) -> ParsedResponse:
    """Return what an answer says, if it can be used. Raises Unfit."""
    if question.is_notes:
        notes = responses.without_thoughts(text)
        if not notes:
            raise Unfit(["It has no notes in it."], [])
        return ParsedResponse(data=notes)
    try:
        has_data = any("data" in as_map(part.get("properties")) for part in Guide.of(question.schema).parts)
        readings = responses.readings(responses.parse(text), has_data=has_data)
    except NotJson as reason:
        raise Unfit([str(reason)], []) from None
    found = [(reading, json_schema.errors(question.checked, reading.data, MAX_POINTERS)) for reading in readings]
    for reading, errors in found:
        if not errors:
            return reading
    _, errors = found[0]
    raise Unfit([f"{pointer or 'the whole'}: {words}" for pointer, words in errors], errors)


def invalid(unfit: Unfit) -> SchemaInvalid:
    if not unfit.misfits:
        return SchemaInvalid("The language model's response is not JSON, even after a corrective retry.")
    return SchemaInvalid(f"{SchemaInvalid.detail} {' '.join(dict.fromkeys(map(told, unfit.misfits[:MAX_TOLD])))}")


def told(misfit: tuple[str, str]) -> str:
    """Return what does not fit, in the schema's words. Names that are not in it are the answer's, and not told."""
    pointer, words = misfit
    reason = "Has members that may not be there." if words.startswith("There may be no ") else words
    return f"{named([pointer])}: {reason[:MAX_POINTER]}"


def named(pointers: list[str]) -> str:
    """Return pointers as a sentence may hold them."""
    return ", ".join(dict.fromkeys((pointer or "the whole")[:MAX_POINTER] for pointer in pointers[:MAX_POINTERS]))
