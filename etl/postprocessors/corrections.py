"""Corrections of responses, part by part: only the wrong parts are sent, with their places in the text.

Wrong items that are rows of the text are requested as if they were new: their rows and the reasons are enough. If the
reply cannot be used, they are shown with their values. The wrong items of several pieces share a request, because each
request repeats the instructions. A correction with fewer items than requested is a failure of that call. A part
that cannot be found in its text is corrected in the first conversation, with the whole text (`Model.draft`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from django.conf import settings

from config.platform import exact_json
from config.platform.http.pointers import join
from etl.core.stage_context import StageContext
from etl.postprocessors import parallel, repair
from etl.postprocessors.conversation import Draft, Model
from etl.postprocessors.excerpts import Item, Shown
from etl.postprocessors.repair import ItemsLost, Mismatch, Mismatches
from etl.postprocessors.responses import Evidence, ParsedResponse
from etl.postprocessors.schemas import Guide, with_one_list
from etl.postprocessors.validation import InvalidReply, Question, Standing, readings_of

READING = """\
Read the rows of a document again that an earlier answer got wrong. Give exactly {count} items of {pointer}, one for \
each row, in the same order, and leave everything else out. Rows of one cell are groups, and no items."""
TASK = "Correct the parts of an answer about a document that are shown after it."
ROUNDS = 2
MAX_ITEMS = 100  # of a request
MAX_CHARACTERS = 12_000  # of the excerpts of a request
MAX_NAMED = 8  # pointers with the same mismatch, in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A wrong item of a response, or, without `item`, everything wrong outside of items."""

    draft: Draft
    item: Item | None


def corrected(model: Model, drafts: list[Draft], *, context: StageContext) -> list[ParsedResponse]:
    """Return the responses, corrected by the model, and without the items that still do not fit. Raises SchemaInvalid
    if the rest does not fit, and the errors of `Model.ask`."""
    for number in range(1, ROUNDS + 1):
        requests = [
            (batch, question_about(batch, f"correction-{number}-{n}")) for n, batch in enumerate(batches(drafts), 1)
        ]
        given = parallel.run(
            [partial(send, model, *request) for request in requests],
            concurrency=settings.SLUICE.etl_postprocess_parallel,
            context=context,
            on_done=lambda _: None,
        )
        for (batch, _), reply in zip(requests, given, strict=True):
            apply(batch, reply)
        for draft in drafts:
            draft.standing = checked(draft)
    return [model.finish(draft) for draft in drafts]


def checked(draft: Draft) -> Standing:
    data = draft.standing.response.data
    found = repair.mismatches(draft.question.checked, data) if draft.places else draft.standing.mismatches
    return Standing(response=draft.standing.response, mismatches=found)


# ---- Requests -------------------------------------------------------------------------------------------------------
def batches(drafts: list[Draft]) -> Iterator[list[Part]]:
    """Yield the wrong parts of a request: items of several drafts, or the other wrong parts of one of them."""
    batch: list[Part] = []
    size = 0
    for draft in (each for each in drafts if each.places):
        if draft.standing.mismatches.others:
            yield [Part(draft=draft, item=None)]
        for item in draft.standing.mismatches.items:
            part = Part(draft=draft, item=item)
            length = draft.length_of(item)
            if batch and (len(batch) == MAX_ITEMS or size + length > MAX_CHARACTERS):
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += length
    if batch:
        yield batch


def question_about(batch: list[Part], label: str) -> Question:
    """Return the request for the correction of parts, with nothing but their places in the text."""
    shown, first = Shown(), batch[0].draft.question
    for draft in drafts_of(batch):
        draft.show((part.item for part in batch if part.draft is draft), shown)
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
    return read_again(question, batch) if are_rows(batch) else corrected_again(question, batch)


def are_rows(batch: list[Part]) -> bool:
    """Return whether each part is an item of the same list, and the only one of its row, in the order of the rows, and
    was not read again without success."""
    if (
        any(draft.reasons for draft in drafts_of(batch))
        or len({part.item and part.item[0] for part in batch}) != 1
        or batch[0].item is None
    ):
        return False
    return all(
        draft.excerpts is not None
        and draft.excerpts.are_rows([draft.places[item_of(part)] for part in batch if part.draft is draft])
        for draft in drafts_of(batch)
    )


def read_again(question: Question, batch: list[Part]) -> Question:
    """Return the request for the items of some rows."""
    reasons = []
    for part in batch:
        pointer, at = item_of(part)
        path, words = part.draft.standing.mismatches.items[pointer, at]
        reasons.append(f"{path[len(join(pointer, at)) :] or 'an item'}: {words}")
    pointer = item_of(batch[0])[0]
    return replace(
        question,
        task=READING.format(count=len(batch), pointer=pointer or "the list"),
        about="rows of a document",
        schema=with_one_list(question.schema, pointer),
        complaints=tuple(dict.fromkeys(reasons)),
    )


def corrected_again(question: Question, batch: list[Part]) -> Question:
    """Return the request with the wrong values of the parts."""
    first, guide = batch[0].draft, Guide.of(question.checked)
    standing = first.standing if batch[0].item is None else gathered(batch)
    others = Mismatches(others=standing.mismatches.others)
    part = repair.reduced(guide, standing.response.data, others or standing.mismatches)
    listed = others.others or list(standing.mismatches.items.values())
    reasons = [reason for draft in drafts_of(batch) for reason in draft.reasons]
    named = {part.item and part.item[0] for part in batch}
    schema = question.schema if len(named) > 1 else with_one_list(question.schema, named.pop() or "")
    return replace(
        question,
        schema=schema,
        part=exact_json.dumps({"data": part}).decode(),
        complaints=(*dict.fromkeys(reasons), *grouped(listed)),
    )


def drafts_of(batch: list[Part]) -> list[Draft]:
    return list({id(part.draft): part.draft for part in batch}.values())


def gathered(batch: list[Part]) -> Standing:
    """Return a response that consists of the wrong items."""
    items: dict[str, list[object]] = defaultdict(list)
    found: dict[Item, Mismatch] = {}
    data = None
    for part in batch:
        pointer, at = item_of(part)
        path, words = part.draft.standing.mismatches.items[pointer, at]
        new = len(items[pointer])
        found[pointer, new] = (join(pointer, new) + path[len(join(pointer, at)) :], words)
        items[pointer].append(repair.value_at(part.draft.standing.response.data, pointer)[at])
    for pointer, inside in items.items():
        data = repair.replaced(data, pointer, inside, creates=True)
    return Standing(response=ParsedResponse(data=data), mismatches=Mismatches(items=found))


def item_of(part: Part) -> Item:
    assert part.item is not None  # noqa: S101 - for the type checker
    return part.item


def grouped(listed: list[Mismatch]) -> list[str]:
    """Return mismatches in words for the model, each text once with several pointers."""
    pointers: dict[str, list[str]] = defaultdict(list)
    for pointer, words in listed:
        pointers[words].append(pointer or "the whole")
    return [
        f"{', '.join(named[at : at + MAX_NAMED])}: {words}"
        for words, named in pointers.items()
        for at in range(0, len(named), MAX_NAMED)
    ]


# ---- Replies --------------------------------------------------------------------------------------------------------
def send(model: Model, batch: list[Part], question: Question, context: StageContext) -> ParsedResponse | InvalidReply:
    try:
        return model.within(context).ask_once(question, partial(read, batch))
    except InvalidReply as reply:
        return reply


def read(batch: list[Part], text: str, question: Question) -> ParsedResponse:
    """Return the corrected parts. Raises InvalidReply if their number is wrong."""
    wanted = Counter(part.item[0] for part in batch if part.item)
    for reading in readings_of(text, question, None):
        counts = {pointer: repair.count_at(reading.data, pointer) for pointer in wanted}
        if counts == dict(wanted) and (wanted or isinstance(reading.data, dict)):
            return repair.plain_evidence(reading)
    needs = "; ".join(f"{pointer or 'the list'} needs {count} corrected items" for pointer, count in wanted.items())
    raise InvalidReply([f"{needs or 'an object'}: no more, and no fewer."], [])


def apply(batch: list[Part], given: ParsedResponse | InvalidReply) -> None:
    """Put the corrected parts into their drafts."""
    used = Counter[str]()
    for draft in drafts_of(batch):
        if isinstance(given, InvalidReply):
            draft.reasons = given.complaints
            draft.numbers |= given.numbers
            continue
        draft.reasons = []
        found = draft.standing.mismatches
        items = {item: found.items[item] for part in batch if part.draft is draft and (item := part.item)}
        own, answer = Mismatches(others=found.others), given
        if items:
            own, answer = Mismatches(items=items), share(given, items, used)
        try:
            response = repair.patched(draft.question.checked, draft.standing.response, own, answer)
        except ItemsLost as reason:
            draft.reasons = [str(reason)]
            continue
        draft.standing = Standing(response=response, mismatches=found)


def share(given: ParsedResponse, items: Iterable[Item], used: Counter[str]) -> ParsedResponse:
    """Return the part of a reply that belongs to these items. `used`: items of earlier drafts, by list."""
    data = None
    evidence: dict[str, Evidence] = {}
    for pointer, group in groupby(items, key=lambda item: item[0]):
        count = len(list(group))
        start = used[pointer]
        used[pointer] += count
        data = repair.replaced(data, pointer, repair.value_at(given.data, pointer)[start : start + count], creates=True)
        for at in range(count):
            evidence |= repair.moved(given.evidence, join(pointer, start + at), join(pointer, at))
    return ParsedResponse(data=data, evidence=evidence)
