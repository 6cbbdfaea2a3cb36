"""Conversation with a language model: ask, validate the response, ask again.

A response that is not JSON is requested again, up to twice. If it does not fit the schema, only the parts that do not
fit are requested again (`repair.py`). Items that still do not fit are left out with a warning. Each reply is stored in
the response cache before it is used, so a stage that crashes continues with the replies that it already has. Usage is
counted for every reply, including unusable ones.
"""

import copy
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import structlog
from django.conf import settings

from config.platform import exact_json
from etl.core.errors import EtlError, LlmInvalidResponse, SchemaInvalid, VisionUnsupported
from etl.core.stage_context import StageContext, Usage
from etl.postprocessors import client, prompts, repair, server_features, splitting
from etl.postprocessors.client import ModelEndpoint
from etl.postprocessors.excerpts import Excerpts, Item, Shown, locate
from etl.postprocessors.rejections import RequestRejected, lacks_vision
from etl.postprocessors.repair import Mismatches
from etl.postprocessors.replies import ModelReply, check_complete, is_empty, is_prompt_cut
from etl.postprocessors.responses import ParsedResponse
from etl.postprocessors.schemas import Guide, Schema, envelope, with_floats
from etl.postprocessors.server_features import JsonMode, ServerFeatures
from etl.postprocessors.strict_schemas import strict_envelope
from etl.postprocessors.validation import (
    MAX_POINTERS,
    InvalidReply,
    Question,
    Standing,
    invalid,
    named,
    on_pages,
    pages_of_items,
    reasons_for,
    rejection,
    unrepresentable,
    validate,
    with_answer,
)
from rules.library.content import RuleContent
from rules.schema import json_schema

log = structlog.get_logger(__name__)

PROMPT_VERSION = 6  # cached replies to other prompts are not used
OWN_TOKENS = 4_000  # of Sluice's instructions
MIN_PIXELS_PER_TOKEN = 256  # of an image
MAX_RESPONSE_TOKENS = 32_768  # unless ETL_LLM_MAX_TOKENS is set
SHOWN_WHOLE = 1_000  # characters of an invalid response that is shown and requested as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An invalid reply, the part of it that is shown, and the reasons."""

    text: str
    complaints: list[str]
    part: str = ""  # "" stands for the whole


@dataclass(slots=True, kw_only=True)
class Draft:
    """A response that may have parts that do not fit. `places`: the units of the text that show these, as in
    `excerpts.locate`; empty if they are not corrected alone. `reasons`: the faults of the last correction."""

    question: Question
    first: Standing
    standing: Standing
    excerpts: Excerpts | None = None  # if a part does not fit
    places: dict[Item | None, list[int]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)

    def length_of(self, item: Item) -> int:
        """Return the length of the excerpts of an item, without the page markers and heads that several share."""
        spans = [self.excerpts.span(unit) for unit in self.places[item]] if self.excerpts else []
        return sum(end - start for start, end in spans)

    def show(self, items: Iterable[Item | None], shown: Shown) -> None:
        """Add the excerpts of the text that show these items, or the other wrong parts."""
        units = [unit for item in items for unit in self.places.get(item, ())]
        if self.excerpts:
            shown.add(self.excerpts, units)


class Model:
    """The configured model, for one run of a stage. Several threads may ask at once."""

    def __init__(self, rule: RuleContent, *, context: StageContext) -> None:
        """Take the configured endpoint. Raises LlmForbidden when no model is configured."""
        self.endpoint = ModelEndpoint.configured()
        self.rule, self.context = rule, context
        self.features: ServerFeatures | None = None
        # A trial is never resumed, so it has no lasting secret.
        self.secret = context.secret or secrets.token_bytes(32)

    def ask(self, question: Question, *, standing: Standing | None = None) -> ParsedResponse:
        """Return a valid response. `standing`: a response whose mismatches the model should correct. Raises
        SchemaInvalid after the last invalid reply, and the errors of `converse`."""
        answer = self.discuss(question, standing, None)
        return answer if isinstance(answer, ParsedResponse) else answer.standing.response

    def draft(self, question: Question) -> Draft:
        """Return a response, with the places in the text of its parts that do not fit. Raises the errors of `ask`."""

        def drafted(standing: Standing, *, is_last: bool) -> Draft | None:
            if is_last and (standing.mismatches.others or self.rule.require_complete):
                return None  # fail now, before paying for more
            excerpts = Excerpts(question.data, first_page=question.pages[0] if question.pages else 1)
            places = locate(excerpts, standing.response, standing.mismatches)
            if not places and not is_last:
                return None
            if not places:
                return Draft(question=question, first=standing, standing=standing)
            return Draft(question=question, first=standing, standing=standing, excerpts=excerpts, places=places)

        answer = self.discuss(question, None, drafted)
        if isinstance(answer, Draft):
            return answer
        valid = Standing(response=answer, mismatches=Mismatches())
        return Draft(question=question, first=valid, standing=valid)

    def discuss(
        self, question: Question, standing: Standing | None, drafted: Callable[..., Draft | None] | None
    ) -> ParsedResponse | Draft:
        """Return a valid response, or the draft that `drafted` returns for one that does not fit."""
        accepted = f"{self.key(question, [])}-accepted"
        cached = self.recall(accepted, question) if question.is_lasting else None
        # All replies that led to the accepted response.
        known = [replace(cached, text=text) for text in json.loads(cached.text)] if cached else []
        spent, numbers = Usage(), dict[str, str]()
        rounds: list[Round] = []
        while True:
            reply = known[len(rounds)] if len(rounds) < len(known) else self.converse(question, rounds)
            spent.add(reply.usage or Usage(calls=1))
            answer: ParsedResponse | Draft | None
            try:
                answer = validate(reply.text, question, standing)
            except InvalidReply as invalid_reply:
                numbers |= invalid_reply.numbers
                standing = invalid_reply.standing or standing
                is_last = len(rounds) == question.reasks
                answer = drafted(standing, is_last=is_last) if drafted and standing else None
                if answer is None and not is_last:
                    log.info("llm_asked_again", label=question.label, complaints=len(invalid_reply.complaints))
                    rounds.append(round_of(reply.text, question, invalid_reply, standing))
                    continue
                try:
                    answer = answer or self.without_mismatches(question, standing, invalid_reply, numbers)
                except SchemaInvalid as error:
                    error.answer = reply.text
                    raise
            if numbers:
                detail = f"Numbers that cannot be stored were requested as text: {reasons_for(numbers)}"
                self.context.warn("number_unrepresentable", detail)
            if standing is not None and isinstance(answer, ParsedResponse):
                self.report_repair(question, standing, answer)
            if question.is_lasting and not known:
                texts = json.dumps([*(each.text for each in rounds), reply.text])
                entry = asdict(replace(reply, text=texts, usage=reply.usage and spent))
                self.context.response_cache.put(accepted, entry, run=False)
            return answer

    def ask_once(self, question: Question, read: Callable[[str, Question], ParsedResponse]) -> ParsedResponse:
        """Return the result of `read` for a single reply. Raises its InvalidReply, and the errors of `converse`."""
        accepted = f"{self.key(question, [])}-accepted"
        cached = self.recall(accepted, question) if question.is_lasting else None
        reply = cached or self.converse(question, [])
        answer = read(reply.text, question)
        if question.is_lasting and not cached:
            self.context.response_cache.put(accepted, asdict(reply), run=False)
        return answer

    def finish(self, draft: Draft) -> ParsedResponse:
        """Return the response of a draft without the items that do not fit, with warnings. Raises SchemaInvalid if the
        rest does not fit."""
        answer, found = draft.standing.response, draft.standing.mismatches
        if draft.numbers and not found:
            detail = f"Numbers that cannot be stored were requested as text: {reasons_for(draft.numbers)}"
            self.context.warn("number_unrepresentable", detail)
        if found:
            failure = InvalidReply([], found.listed)
            try:
                answer = self.without_mismatches(draft.question, draft.standing, failure, draft.numbers)
            except SchemaInvalid as error:
                raise with_answer(error, draft.standing.response.data) from None
        if draft.first.mismatches:
            self.report_repair(draft.question, draft.first, answer)
        return answer

    def without_mismatches(
        self, question: Question, standing: Standing | None, reply: InvalidReply, numbers: dict[str, str]
    ) -> ParsedResponse:
        """Return the response without the items that do not fit, if the rest does. Raises SchemaInvalid, or
        NumberUnrepresentable if the reason may be `numbers`."""
        failure = unrepresentable(numbers) if numbers else invalid(reply)
        if standing is None or standing.mismatches.others or self.rule.require_complete:
            raise failure from None
        response = repair.plain_evidence(standing.response)
        data, evidence = repair.rejected(
            Guide.of(question.checked), response.data, response.evidence, standing.mismatches
        )
        if errors := json_schema.errors(question.checked, data, MAX_POINTERS):
            raise (unrepresentable(numbers) if numbers else invalid(InvalidReply([], errors))) from None
        if not (question.is_lasting or repair.item_count(Guide.of(question.checked), data)):
            raise failure from None  # not an item that does not fit, but a model that does not follow the schema
        pages = pages_of_items(response, standing.mismatches, question)
        places = f" ({splitting.pages_listed(pages)})" if pages else on_pages(question)
        first = pages[0] if pages else question.pages and question.pages[0]
        self.context.warn("items_rejected", rejection(standing.mismatches, places), page=first)
        return ParsedResponse(data=data, evidence=evidence)

    def report_repair(self, question: Question, standing: Standing, answer: ParsedResponse) -> None:
        guide = Guide.of(question.checked)
        before, after = (repair.item_count(guide, data) for data in (standing.response.data, answer.data))
        places = named([pointer for pointer, _ in standing.mismatches.listed])
        detail = (
            f"Parts of a response did not fit the schema and were requested again{on_pages(question)}: {places}. "
            f"The response had {before} items before and {after} after."
        )
        self.context.warn("repaired", detail, page=question.pages and question.pages[0])

    def within(self, context: StageContext) -> "Model":
        """Return this model for a part of the stage that runs in a thread."""
        part = copy.copy(self)
        part.context = context
        return part

    # ---- One reply --------------------------------------------------------------------------------------------------
    def converse(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Return the next reply, from the cache if it is there.

        Raises LlmTruncated and LlmRefused, also for cached replies; LlmInvalidResponse, LlmUnavailable, LlmForbidden,
        DocumentTooLong, and the errors of `context.check()`.
        """
        key = self.key(question, rounds)
        reply = self.recall(key, question)
        if reply is None:
            with self.context.budget.call(self.max_tokens(question, rounds), context=self.context):
                reply = self.pay(question, rounds, key)
        try:
            return check_complete(reply)
        except EtlError as error:
            error.answer = reply.text
            raise

    def pay(self, question: Question, rounds: list[Round], key: str) -> ModelReply:
        """Return a new reply, after it is stored and counted."""
        reply = self.call(question, rounds)
        if is_empty(reply, is_notes=question.is_notes):
            self.count(reply, question, cached=False)
            raise LlmInvalidResponse
        if self.context.response_cache.put(key, asdict(reply), run=True):
            self.context.advanced.set()
        self.count(reply, question, cached=False)
        return reply

    def max_tokens(self, question: Question, rounds: list[Round]) -> int:
        """Return the maximum number of tokens of a call: one for each byte, and for each MIN_PIXELS_PER_TOKEN
        pixels."""
        texts = [question.data, question.task, question.about, question.part, self.rule.system_prompt]
        texts += [*question.complaints, *(text for each in rounds for text in (each.text, each.part, *each.complaints))]
        schema = 2 * len(exact_json.dumps(question.schema))  # in the prompt, and as the form of the response
        prompt = OWN_TOKENS + schema + sum(len(text.encode()) for text in texts)
        image = settings.SLUICE.etl_vision_max_pixels // MIN_PIXELS_PER_TOKEN
        return prompt + len(question.images) * image + (self.endpoint.max_tokens or MAX_RESPONSE_TOKENS)

    def recall(self, key: str, question: Question) -> ModelReply | None:
        entry = self.context.response_cache.get(key)
        if entry is None:
            return None
        is_earlier = entry.pop("is_earlier", False)
        reply = ModelReply(**(entry | {"usage": Usage(**entry["usage"]) if entry["usage"] else None}))
        if not is_earlier:  # else that run has counted it
            self.count(reply, question, cached=True)
        return reply

    def count(self, reply: ModelReply, question: Question, *, cached: bool) -> None:
        if is_prompt_cut(reply, f"{self.rule.system_prompt}\n{question.data}"):
            self.context.warn(
                "prompt_truncated",
                "The language model's server counted far fewer tokens than the text has words. It may have cut the "
                "document: raise its context length.",
            )
        if reply.usage is None:
            self.context.warn("usage_unknown", "The language model's server reported no token usage.")
        self.context.count_usage(reply.usage or Usage(calls=1), cached=cached)

    def key(self, question: Question, rounds: list[Round]) -> str:
        """Return the cache key of a reply: the same for the same question after the same replies. Markers and server
        features are not part of it, because they do not affect the content."""
        asked = asdict(replace(question, images=()))
        del asked["images"]
        facts = [PROMPT_VERSION, self.endpoint.model, self.rule.system_prompt, asked, [each.text for each in rounds]]
        facts += [[each.number, hashlib.sha256(each.content).hexdigest()] for each in question.images]
        digest = hashlib.sha256(exact_json.dumps(facts, is_sorted=True)).hexdigest()
        return f"{question.label}-{digest}"

    # ---- One request ------------------------------------------------------------------------------------------------
    def call(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Send the request, with fallbacks for features that the server rejects. Each is tried once, so this ends."""
        negotiation = server_features.Negotiation(
            self.endpoint.base_url,
            self.endpoint.model,
            json_mode=best_json_mode(question),
            schema="" if question.is_notes else digest_of(question.schema),
            of_document=self.features,
        )
        sent = question.data + self.rule.system_prompt
        while True:
            request = self.request(question, rounds, negotiation.features)
            try:
                reply = client.call(self.endpoint, request, context=self.context)
                break
            except RequestRejected as rejected:
                if question.images and lacks_vision(rejected.message):
                    raise VisionUnsupported from None
                if not negotiation.fall_back(rejected.message, sent=sent):
                    raise rejected.error from None
                log.info("llm_dialect_changed", form=negotiation.features.json_mode)
        negotiation.settle()
        self.features = negotiation.of_document
        return reply

    def request(self, question: Question, rounds: list[Round], features: ServerFeatures) -> dict[str, Any]:
        wanted: dict[str, Any] = {"model": self.endpoint.model, "messages": self.messages(question, rounds, features)}
        if not question.is_notes:
            wanted |= response_format(question, features)
        if features.supports_temperature:
            wanted["temperature"] = 0
        if self.endpoint.max_tokens:
            wanted[features.max_tokens_parameter] = self.endpoint.max_tokens
        return wanted

    def messages(self, question: Question, rounds: list[Round], features: ServerFeatures) -> list[prompts.Message]:
        mark = prompts.marker(self.secret, self.key(question, []), question.data)
        system = prompts.system(
            task=question.task,
            schema=question.schema,
            own=self.rule.system_prompt,
            answer=prompts.form(
                wants_evidence=question.wants_evidence,
                is_notes=question.is_notes,
                is_listed=features.json_mode is JsonMode.STRICT,
            ),
            mark=mark,
            is_fenced=features.json_mode is JsonMode.TEXT and not question.is_notes,
        )
        complaints = list(question.complaints)
        wrong = [] if question.part else complaints
        user = prompts.user(about=question.about, data=question.data, mark=mark, wrong=wrong)
        more = prompts.corrective_messages(question.part, complaints, is_part=True) if question.part else []
        more += [
            each
            for one in rounds
            for each in prompts.corrective_messages(one.part or one.text, one.complaints, is_part=bool(one.part))
        ]
        return prompts.messages(system, user, more, features, question.images)


def best_json_mode(question: Question) -> JsonMode:
    """Return the best mode for a question: not every schema can be enforced."""
    if question.is_notes or strict_envelope(question.schema, wants_evidence=question.wants_evidence):
        return JsonMode.STRICT
    return JsonMode.JSON_SCHEMA


def response_format(question: Question, features: ServerFeatures) -> dict[str, Any]:
    """Return the part of a request that asks for JSON, which may be empty."""
    if features.json_mode is JsonMode.JSON_OBJECT:
        return {"response_format": {"type": "json_object"}}
    if features.json_mode is JsonMode.TEXT:
        return {}
    if features.json_mode is JsonMode.STRICT:
        schema = strict_envelope(question.schema, wants_evidence=question.wants_evidence)
        return json_schema_format(schema or {}, is_strict=True)
    return json_schema_format(envelope(question.schema, wants_evidence=question.wants_evidence), is_strict=False)


def json_schema_format(schema: Schema, *, is_strict: bool) -> dict[str, Any]:
    asked = {"name": "answer", "strict": is_strict, "schema": with_floats(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": asked}}


def digest_of(schema: Schema) -> str:
    return hashlib.sha256(exact_json.dumps(schema)).hexdigest()[:32]


# ---- Rounds ----------------------------------------------------------------------------------------------------
def round_of(text: str, question: Question, reply: InvalidReply, standing: Standing | None) -> Round:
    """Return the request for a correction: of a long response, only the parts that do not fit."""
    if standing is None or len(exact_json.dumps(standing.response.data)) <= SHOWN_WHOLE:
        return Round(text=text, complaints=reply.complaints)
    part = repair.reduced(Guide.of(question.checked), standing.response.data, standing.mismatches)
    reasons = [] if reply.standing else reply.complaints
    complaints = [*reasons, *repair.complaints(standing.mismatches)]
    return Round(text=text, complaints=complaints, part=exact_json.dumps({"data": part}).decode())
