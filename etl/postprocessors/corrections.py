"""Correction of the invalid parts of responses. A request contains only these parts and the text that they are from.

If invalid items correspond to rows of the text, the first request contains the rows and the errors, but not the
invalid values. If its reply cannot be used, the next request also contains the values. Invalid items of several pieces
share a request, because each request repeats the instructions. A reply with more or fewer items than requested is
invalid. If an invalid part cannot be located in the text, the whole response is corrected in the first conversation
instead, with the whole text (`Model.draft`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from django.conf import settings

from config.platform import exact_json
from config.platform.http.pointers import join
from etl.core.stage_context import StageContext, ignore
from etl.postprocessors import parallel, repair
from etl.postprocessors.conversation import Draft, Model
from etl.postprocessors.excerpts import ExcerptText, Item
from etl.postprocessors.repair import ItemsLost, Mismatch, Mismatches
from etl.postprocessors.responses import Evidence, ParsedResponse
from etl.postprocessors.schemas import Guide, with_one_list
from etl.postprocessors.validation import CheckedResponse, InvalidReply, Question, readings_of

READING = """\
Read the rows of a document again that an earlier answer got wrong. Give exactly {count} items of {pointer}, one for \
each row, in the same order, and leave everything else out. Rows of one cell are groups, and no items."""
TASK = "Correct the parts of an answer about a document that are shown after it."
ROUNDS = 2
MAX_ITEMS = 100  # per request
MAX_CHARACTERS = 12_000  # of excerpts per request
MAX_NAMED = 8  # pointers per line, if they have the same error


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An invalid item of a response or, if `item` is None, everything that is invalid outside of items."""

    draft: Draft
    item: Item | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the last correction of this part failed."""
        return self.draft.reasons.get(self.item, ())


def correct_drafts(model: Model, drafts: list[Draft], *, context: StageContext) -> list[ParsedResponse]:
    """Request corrections from the model and return the responses, without the items that are still invalid. Raises
    SchemaInvalid if other parts are still invalid, and the errors of `Model.ask`."""
    for number in range(1, ROUNDS + 1):
        requests = [
            (batch, correction_request(batch, f"correction-{number}-{n}")) for n, batch in enumerate(batches(drafts), 1)
        ]
        given = parallel.run(
            [partial(send, model, *request) for request in requests],
            concurrency=settings.SLUICE.etl_postprocess_parallel,
            context=context,
            on_done=ignore,
        )
        for (batch, _), reply in zip(requests, given, strict=True):
            apply(batch, reply)
        for draft in drafts:
            draft.current = rechecked(draft)
    return [model.finish(draft) for draft in drafts]


def rechecked(draft: Draft) -> CheckedResponse:
    data = draft.current.response.data
    found = repair.mismatches(draft.question.checked, data) if draft.places else draft.current.mismatches
    return CheckedResponse(response=draft.current.response, mismatches=found)


# ---- Requests -------------------------------------------------------------------------------------------------------
def batches(drafts: list[Draft]) -> Iterator[list[Part]]:
    """Yield the invalid parts for each request: items of several drafts, or the other invalid parts of one draft.

    The items of a request were never corrected, or failed for the same reasons. Different reasons are not mixed,
    because they may state the number of items.
    """
    batch: list[Part] = []
    size = 0
    for draft in (each for each in drafts if each.places):
        if draft.current.mismatches.others:
            yield [Part(draft=draft, item=None)]
        for item in draft.current.mismatches.items:
            part = Part(draft=draft, item=item)
            length = draft.length_of(item)
            is_full = len(batch) == MAX_ITEMS or size + length > MAX_CHARACTERS
            if batch and (is_full or part.reasons != batch[0].reasons):
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += length
    if batch:
        yield batch


def correction_request(batch: list[Part], label: str) -> Question:
    """Return the question that requests the correction of these parts."""
    shown, first = ExcerptText(), batch[0].draft.question
    for draft in drafts_of(batch):
        draft.add_excerpts((part.item for part in batch if part.draft is draft), shown)
    question = Question(
        label=label,
        task=TASK,
        about="the places in a document that parts of an answer are about",
        data=shown.text,
        schema=first.schema,
        checked=first.checked,
        wants_evidence=first.wants_evidence,
        is_lasting=first.is_lasting,
    )
    return reread_request(question, batch) if are_rows(batch) else rewrite_request(question, batch)


def are_rows(batch: list[Part]) -> bool:
    """Return whether the parts are items of one list that correspond to rows, one item per row and in order. False
    after a failed correction, so that the next request includes the values."""
    if (
        any(part.reasons for part in batch)
        or len({part.item and part.item[0] for part in batch}) != 1
        or batch[0].item is None
    ):
        return False
    return all(
        draft.excerpts is not None
        and draft.excerpts.are_rows([draft.places[item_of(part)] for part in batch if part.draft is draft])
        for draft in drafts_of(batch)
    )


def reread_request(question: Question, batch: list[Part]) -> Question:
    """Return the question that requests the items of these rows, without the invalid values."""
    reasons = []
    for part in batch:
        pointer, at = item_of(part)
        path, message = part.draft.current.mismatches.items[pointer, at]
        reasons.append(f"{path[len(join(pointer, at)) :] or 'an item'}: {message}")
    pointer = item_of(batch[0])[0]
    return replace(
        question,
        task=READING.format(count=len(batch), pointer=pointer or "the list"),
        about="rows of a document",
        schema=with_one_list(question.schema, pointer),
        complaints=tuple(dict.fromkeys(reasons)),
    )


def rewrite_request(question: Question, batch: list[Part]) -> Question:
    """Return the question that requests a correction of the invalid values, which it contains."""
    first, guide = batch[0].draft, Guide.of(question.checked)
    current = first.current if batch[0].item is None else collected_items(batch)
    outside_items = Mismatches(others=current.mismatches.others)
    invalid = repair.invalid_parts(guide, current.response.data, outside_items or current.mismatches)
    listed = outside_items.others or list(current.mismatches.items.values())
    reasons = [reason for part in batch for reason in part.reasons]
    lists = {part.item and part.item[0] for part in batch}
    schema = question.schema if len(lists) > 1 else with_one_list(question.schema, lists.pop() or "")
    return replace(
        question,
        schema=schema,
        part=exact_json.dumps({"data": invalid}).decode(),
        complaints=(*dict.fromkeys(reasons), *grouped_by_message(listed)),
    )


def drafts_of(batch: list[Part]) -> list[Draft]:
    return list({id(part.draft): part.draft for part in batch}.values())


def collected_items(batch: list[Part]) -> CheckedResponse:
    """Return a response that consists of the invalid items."""
    items: dict[str, list[object]] = defaultdict(list)
    found: dict[Item, Mismatch] = {}
    data = None
    for part in batch:
        pointer, at = item_of(part)
        path, message = part.draft.current.mismatches.items[pointer, at]
        new = len(items[pointer])
        found[pointer, new] = (join(pointer, new) + path[len(join(pointer, at)) :], message)
        items[pointer].append(repair.value_at(part.draft.current.response.data, pointer)[at])
    for pointer, inside in items.items():
        data = repair.replaced(data, pointer, inside, creates=True)
    return CheckedResponse(response=ParsedResponse(data=data), mismatches=Mismatches(items=found))


def item_of(part: Part) -> Item:
    assert part.item is not None  # noqa: S101 - for the type checker
    return part.item


def grouped_by_message(listed: list[Mismatch]) -> list[str]:
    """Return the mismatches as text for the model, with the pointers that share a message on one line."""
    pointers: dict[str, list[str]] = defaultdict(list)
    for pointer, message in listed:
        pointers[message].append(pointer or "the whole")
    return [
        f"{', '.join(named[at : at + MAX_NAMED])}: {message}"
        for message, named in pointers.items()
        for at in range(0, len(named), MAX_NAMED)
    ]


# ---- Replies --------------------------------------------------------------------------------------------------------
def send(model: Model, batch: list[Part], question: Question, context: StageContext) -> ParsedResponse | InvalidReply:
    try:
        return model.with_context(context).ask_once(question, partial(read, batch))
    except InvalidReply as reply:
        return reply


def read(batch: list[Part], text: str, question: Question) -> ParsedResponse:
    """Return the corrected parts. Raises InvalidReply unless it has as many items as requested."""
    wanted = Counter(part.item[0] for part in batch if part.item)
    for reading in readings_of(text, question, None):
        counts = {pointer: repair.count_at(reading.data, pointer) for pointer in wanted}
        if counts == dict(wanted) and (wanted or isinstance(reading.data, dict)):
            return repair.plain_evidence(reading)
    needs = "; ".join(f"{pointer or 'the list'} needs {count} corrected items" for pointer, count in wanted.items())
    raise InvalidReply([f"{needs}: no more, and no fewer." if needs else "Must be a JSON object."], [])


def apply(batch: list[Part], given: ParsedResponse | InvalidReply) -> None:
    """Apply the corrected parts to their drafts."""
    used = Counter[str]()
    for draft in drafts_of(batch):
        # Another request of the round may be about other parts of the draft, so their reasons are kept.
        own_parts = [part.item for part in batch if part.draft is draft]
        if isinstance(given, InvalidReply):
            draft.reasons |= dict.fromkeys(own_parts, tuple(given.complaints))
            draft.numbers |= given.numbers
            continue
        draft.reasons |= dict.fromkeys(own_parts, ())
        found = draft.current.mismatches
        items = {item: found.items[item] for item in own_parts if item}
        own, answer = Mismatches(others=found.others), given
        if items:
            own, answer = Mismatches(items=items), reply_for_items(given, items, used)
        try:
            response = repair.apply_correction(draft.question.checked, draft.current.response, own, answer)
        except ItemsLost as reason:
            draft.reasons |= dict.fromkeys(own_parts, (str(reason),))
            continue
        draft.current = CheckedResponse(response=response, mismatches=found)


def reply_for_items(given: ParsedResponse, items: Iterable[Item], used: Counter[str]) -> ParsedResponse:
    """Return the part of a reply that corrects these items. `used`: the number of items that earlier drafts have taken
    from each list; it is updated."""
    data = None
    evidence: dict[str, Evidence] = {}
    for pointer, group in groupby(items, key=lambda item: item[0]):
        count = len(list(group))
        start = used[pointer]
        used[pointer] += count
        data = repair.replaced(data, pointer, repair.value_at(given.data, pointer)[start : start + count], creates=True)
        for at in range(count):
            evidence |= repair.move_evidence(given.evidence, join(pointer, start + at), join(pointer, at))
    return ParsedResponse(data=data, evidence=evidence)
