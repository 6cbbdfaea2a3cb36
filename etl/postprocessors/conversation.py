"""Conversation with a language model: requests, validation of the responses, and corrective retries.

If a response is not JSON, it is requested again, up to twice. If parts of it do not match the schema, only these parts
are requested again (`repair.py`), or a short response as a whole. Items that are still invalid are omitted with a
warning. Each reply is stored in the response cache before it is used, so that a stage continues with the stored replies
after a crash. Token usage is counted for every reply, including unusable ones.
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
from etl.postprocessors.excerpts import Excerpts, ExcerptText, Item, locate
from etl.postprocessors.rejections import ErrorResponse, lacks_vision
from etl.postprocessors.repair import Mismatch, Mismatches
from etl.postprocessors.replies import ModelReply, check_complete, is_empty, is_prompt_cut
from etl.postprocessors.responses import ParsedResponse
from etl.postprocessors.schemas import Guide, Schema, envelope, with_floats
from etl.postprocessors.server_features import JsonMode, ServerFeatures
from etl.postprocessors.strict_schemas import strict_envelope
from etl.postprocessors.validation import (
    MAX_POINTERS,
    CheckedResponse,
    InvalidReply,
    Question,
    joined_pointers,
    number_error,
    number_reasons,
    on_pages,
    pages_of_items,
    rejected_items_text,
    schema_error,
    validate,
    with_answer,
)
from rules.library.content import RuleContent
from rules.schema import json_schema

log = structlog.get_logger(__name__)

PROMPT_VERSION = 6  # part of the cache key: a new version invalidates cached replies
INSTRUCTION_TOKENS = 4_000  # upper bound for Sluice's instructions
MIN_PIXELS_PER_TOKEN = 256  # in an image
MAX_RESPONSE_TOKENS = 32_768  # unless ETL_LLM_MAX_TOKENS is set
MAX_SHOWN_WHOLE = 1_000  # characters; of a longer invalid response, only the invalid parts are shown and requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An invalid reply and the request to correct it. `complaints`: the reasons why it is invalid. `part`: the part of
    it to show and correct; "" means all of it."""

    text: str
    complaints: list[str]
    part: str = ""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A response that may have invalid parts.

    `first`, `current`: the response before and after corrections. `places`: the text units of the invalid parts, as
    returned by `excerpts.locate`; empty if the parts are not corrected separately. `reasons`: why the last correction
    of a part failed, by part. `numbers`: why numbers cannot be stored, by pointer.
    """

    question: Question
    first: CheckedResponse
    current: CheckedResponse
    excerpts: Excerpts | None = None  # None if the whole response is valid
    places: dict[Item | None, list[int]] = field(default_factory=dict)
    reasons: dict[Item | None, tuple[str, ...]] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)

    def length_of(self, item: Item) -> int:
        """Return the length of an item's excerpts, without page markers and table heads, which items may share."""
        spans = [self.excerpts.span(unit) for unit in self.places[item]] if self.excerpts else []
        return sum(end - start for start, end in spans)

    def add_excerpts(self, items: Iterable[Item | None], text: ExcerptText) -> None:
        """Add the excerpts of these items to the text. None stands for the invalid parts outside of items."""
        units = [unit for item in items for unit in self.places.get(item, ())]
        if self.excerpts:
            text.add(self.excerpts, units)


class Model:
    """The configured model, for one run of a stage. It can be used by several threads at once."""

    def __init__(self, rule: RuleContent, *, context: StageContext) -> None:
        """Raise LlmForbidden if no model is configured, or its API key cannot be sent."""
        self.endpoint = ModelEndpoint.configured()
        self.rule, self.context = rule, context
        self.features: ServerFeatures | None = None
        # A rule test has no persistent secret, because it is never resumed.
        self.secret = context.secret or secrets.token_bytes(32)

    def ask(self, question: Question, *, current: CheckedResponse | None = None) -> ParsedResponse:
        """Ask until the response is valid, and return it. `current`: a response that the model should correct. Raises
        SchemaInvalid after the last invalid reply, and the errors of `next_reply`."""
        answer = self.ask_until_valid(question, current, None)
        return answer if isinstance(answer, ParsedResponse) else answer.current.response

    def draft(self, question: Question) -> Draft:
        """Return a response that may have invalid parts, with their places in the text. Raises the errors of `ask`."""

        def make_draft(current: CheckedResponse, *, is_last: bool) -> Draft | None:
            if is_last and (current.mismatches.others or self.rule.require_complete):
                return None  # it cannot succeed any more, so fail before further calls cost money
            excerpts = Excerpts(question.data, first_page=question.pages[0] if question.pages else 1)
            places = locate(excerpts, current.response, current.mismatches)
            if places:
                return Draft(question=question, first=current, current=current, excerpts=excerpts, places=places)
            return Draft(question=question, first=current, current=current) if is_last else None

        answer = self.ask_until_valid(question, None, make_draft)
        if isinstance(answer, Draft):
            return answer
        valid = CheckedResponse(response=answer, mismatches=Mismatches())
        return Draft(question=question, first=valid, current=valid)

    def ask_until_valid(
        self, question: Question, current: CheckedResponse | None, make_draft: Callable[..., Draft | None] | None
    ) -> ParsedResponse | Draft:
        """Ask until the response is valid, or `make_draft` returns a draft for an invalid one, and return it."""
        accepted = f"{self.key(question, [])}-accepted"
        cached = self.cached_reply(accepted, question) if question.is_lasting else None
        # All replies that led to the accepted response.
        known = [replace(cached, text=text) for text in json.loads(cached.text)] if cached else []
        spent, numbers = Usage(), dict[str, str]()
        rounds: list[Round] = []
        while True:
            reply = known[len(rounds)] if len(rounds) < len(known) else self.next_reply(question, rounds)
            spent.add(reply.usage or Usage(calls=1))
            answer: ParsedResponse | Draft | None
            try:
                answer = validate(reply.text, question, current)
            except InvalidReply as invalid_reply:
                numbers |= invalid_reply.numbers
                current = invalid_reply.current or current
                is_last = len(rounds) == question.reasks
                answer = make_draft(current, is_last=is_last) if make_draft and current else None
                if answer is None and not is_last:
                    log.info("llm_asked_again", label=question.label, complaints=len(invalid_reply.complaints))
                    rounds.append(round_of(reply.text, question, invalid_reply, current))
                    continue
                try:
                    answer = answer or self.without_invalid_items(question, current, invalid_reply.mismatches, numbers)
                except SchemaInvalid as error:
                    error.answer = reply.text
                    raise
            if numbers:
                self.warn_of_numbers(numbers)
            if current is not None and isinstance(answer, ParsedResponse):
                self.report_repair(question, current, answer)
            if question.is_lasting and not known:
                texts = json.dumps([*(each.text for each in rounds), reply.text])
                entry = asdict(replace(reply, text=texts, usage=reply.usage and spent))
                self.context.response_cache.put(accepted, entry, run=False)
            return answer

    def ask_once(self, question: Question, read: Callable[[str, Question], ParsedResponse]) -> ParsedResponse:
        """Ask without retries, and return the result of `read` for the reply. Raises the InvalidReply that `read`
        raises, and the errors of `next_reply`."""
        accepted = f"{self.key(question, [])}-accepted"
        cached = self.cached_reply(accepted, question) if question.is_lasting else None
        reply = cached or self.next_reply(question, [])
        answer = read(reply.text, question)
        if question.is_lasting and not cached:
            self.context.response_cache.put(accepted, asdict(reply), run=False)
        return answer

    def finish(self, draft: Draft) -> ParsedResponse:
        """Return the response of a draft without its invalid items, with a warning. Raises SchemaInvalid if other parts
        are invalid."""
        answer, found = draft.current.response, draft.current.mismatches
        if draft.numbers and not found:
            self.warn_of_numbers(draft.numbers)
        if found:
            try:
                answer = self.without_invalid_items(draft.question, draft.current, found.listed, draft.numbers)
            except SchemaInvalid as error:
                raise with_answer(error, draft.current.response.data) from None
        if draft.first.mismatches:
            self.report_repair(draft.question, draft.first, answer)
        return answer

    def without_invalid_items(
        self, question: Question, current: CheckedResponse | None, listed: list[Mismatch], numbers: dict[str, str]
    ) -> ParsedResponse:
        """Return the response without its invalid items. If other parts are invalid, raises SchemaInvalid, or
        NumberUnrepresentable if numbers that cannot be stored may be the reason."""
        if question.is_notes:
            raise SchemaInvalid("The language model's response contains no notes, even after a corrective retry.")
        failure = number_error(numbers) if numbers else schema_error(listed)
        if current is None or current.mismatches.others or self.rule.require_complete:
            raise failure from None
        response = repair.plain_evidence(current.response)
        data, evidence = repair.remove_invalid_items(
            Guide.of(question.checked), response.data, response.evidence, current.mismatches
        )
        if errors := json_schema.errors(question.checked, data, MAX_POINTERS):
            raise (number_error(numbers) if numbers else schema_error(errors)) from None
        if not (question.is_lasting or repair.item_count(Guide.of(question.checked), data)):
            raise failure from None  # every item is invalid: the model does not follow the schema
        pages = pages_of_items(response, current.mismatches, question)
        places = f" ({splitting.page_list_text(pages)})" if pages else on_pages(question)
        first = pages[0] if pages else question.pages and question.pages[0]
        self.context.warn("items_rejected", rejected_items_text(current.mismatches, places), page=first)
        return ParsedResponse(data=data, evidence=evidence)

    def warn_of_numbers(self, numbers: dict[str, str]) -> None:
        detail = f"Numbers that cannot be stored were requested as text: {number_reasons(numbers)}"
        self.context.warn("number_unrepresentable", detail)

    def report_repair(self, question: Question, current: CheckedResponse, answer: ParsedResponse) -> None:
        guide = Guide.of(question.checked)
        before, after = (repair.item_count(guide, data) for data in (current.response.data, answer.data))
        places = joined_pointers([pointer for pointer, _ in current.mismatches.listed])
        detail = (
            f"Parts of a response did not match the schema and were requested again{on_pages(question)}: {places}. "
            f"The response had {before} items before and {after} after."
        )
        self.context.warn("repaired", detail, page=question.pages and question.pages[0])

    def with_context(self, context: StageContext) -> "Model":
        """Return a copy of this model for a part of the stage that runs in a thread."""
        part = copy.copy(self)
        part.context = context
        return part

    # ---- One reply --------------------------------------------------------------------------------------------------
    def next_reply(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Return the next reply, from the cache if it is cached.

        Raises LlmTruncated and LlmRefused, also for cached replies; LlmInvalidResponse, LlmUnavailable, LlmForbidden,
        and DocumentTooLong; and the errors of `context.check()`.
        """
        key = self.key(question, rounds)
        reply = self.cached_reply(key, question)
        if reply is None:
            with self.context.budget.call(self.max_tokens(question, rounds), context=self.context):
                reply = self.request_reply(question, rounds, key)
        try:
            return check_complete(reply)
        except EtlError as error:
            error.answer = reply.text
            raise

    def request_reply(self, question: Question, rounds: list[Round], key: str) -> ModelReply:
        """Request a reply from the model, store it, count its usage, and return it."""
        reply = self.call(question, rounds)
        if is_empty(reply, is_notes=question.is_notes):
            self.count(reply, question, cached=False)
            raise LlmInvalidResponse
        if self.context.response_cache.put(key, asdict(reply), run=True):
            self.context.advanced.set()
        self.count(reply, question, cached=False)
        return reply

    def max_tokens(self, question: Question, rounds: list[Round]) -> int:
        """Return an upper bound for the tokens of a call: one per byte of text, one per MIN_PIXELS_PER_TOKEN pixels of
        images, and the limit of the response."""
        texts = [question.data, question.task, question.about, question.part, self.rule.system_prompt]
        texts += [*question.complaints, *(text for each in rounds for text in (each.text, each.part, *each.complaints))]
        schema = 2 * len(exact_json.dumps(question.schema))  # once in the prompt, and once as the response format
        prompt = INSTRUCTION_TOKENS + schema + sum(len(text.encode()) for text in texts)
        image = settings.SLUICE.etl_vision_max_pixels // MIN_PIXELS_PER_TOKEN
        return prompt + len(question.images) * image + (self.endpoint.max_tokens or MAX_RESPONSE_TOKENS)

    def cached_reply(self, key: str, question: Question) -> ModelReply | None:
        entry = self.context.response_cache.get(key)
        if entry is None:
            return None
        is_earlier = entry.pop("is_earlier", False)
        reply = ModelReply(**(entry | {"usage": Usage(**entry["usage"]) if entry["usage"] else None}))
        if not is_earlier:  # an earlier run has counted its usage already
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
        """Return the cache key of a reply: a hash of the question and the earlier replies. Markers and server features
        are excluded, because they do not affect the content."""
        asked = asdict(replace(question, images=()))
        del asked["images"]
        facts = [PROMPT_VERSION, self.endpoint.model, self.rule.system_prompt, asked, [each.text for each in rounds]]
        facts += [[each.number, hashlib.sha256(each.content).hexdigest()] for each in question.images]
        digest = hashlib.sha256(exact_json.dumps(facts, is_sorted=True)).hexdigest()
        return f"{question.label}-{digest}"

    # ---- One request ------------------------------------------------------------------------------------------------
    def call(self, question: Question, rounds: list[Round]) -> ModelReply:
        """Send the request, with fallbacks for features that the server rejects. Each fallback is tried once, so the
        loop terminates."""
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
            except ErrorResponse as rejected:
                if question.images and lacks_vision(rejected.message):
                    raise VisionUnsupported from None
                if not negotiation.fall_back(rejected.message, sent=sent):
                    raise rejected.error from None
                log.info("llm_dialect_changed", form=negotiation.features.json_mode)
        negotiation.store_accepted()
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
            answer=prompts.format_instructions(
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
    """Return the best JSON mode for a question. Servers cannot enforce every schema."""
    if question.is_notes or strict_envelope(question.schema, wants_evidence=question.wants_evidence):
        return JsonMode.STRICT
    return JsonMode.JSON_SCHEMA


def response_format(question: Question, features: ServerFeatures) -> dict[str, Any]:
    """Return the request parameters that ask for JSON. In text mode, there are none."""
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


# ---- Rounds ---------------------------------------------------------------------------------------------------------
def round_of(text: str, question: Question, reply: InvalidReply, current: CheckedResponse | None) -> Round:
    """Return the round that requests a correction. For a long response, it contains only the invalid parts."""
    if current is None or len(exact_json.dumps(current.response.data)) <= MAX_SHOWN_WHOLE:
        return Round(text=text, complaints=reply.complaints)
    part = repair.invalid_parts(Guide.of(question.checked), current.response.data, current.mismatches)
    reasons = [] if reply.current else reply.complaints
    complaints = [*reasons, *repair.complaints(current.mismatches)]
    return Round(text=text, complaints=complaints, part=exact_json.dumps({"data": part}).decode())
