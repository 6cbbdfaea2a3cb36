"""Validation of a model's replies, and error messages for mismatches."""

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from config.platform import exact_json
from etl.core.errors import EtlError, NumberUnrepresentable, SchemaInvalid
from etl.postprocessors import repair, reply_text, responses, splitting
from etl.postprocessors.repair import ItemsLost, Mismatch, Mismatches
from etl.postprocessors.responses import NotJson, NumberOutOfRange, ParsedResponse
from etl.postprocessors.schemas import Guide, Schema, as_map
from etl.postprocessors.strict_schemas import without_nulls
from rules.schema import json_schema
from rules.schema.messages import NOT_ALLOWED

REASKS = 2
MAX_POINTERS = 20
MAX_POINTER = 120
MAX_LISTED = 20  # mismatches in an error
MAX_SHOWN = 5  # mismatches in a warning
AS_STRING = "Write it as a string, with all its digits."


@dataclass(frozen=True, slots=True, kw_only=True)
class PageImage:
    """A page as a JPEG image. `number`: counted from 1."""

    number: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to a model.

    - `label`: a name for the call that is unique in its task.
    - `task`: the instruction; `about`: a description of `data`.
    - `schema`: the schema that is shown to the model; `checked`: the schema that validates the response.
    - `is_notes`: the response is text, and the schema only determines what is relevant.
    - `is_lasting`: a valid response is kept for the whole task, also if a user retries it.
    - `min_items`: the minimum numbers of items of lists, by pointer.
    - `part`: the parts of an earlier response to correct; `complaints`: the reasons.
    - `images`: page images, shown after the data.
    """

    label: str
    task: str
    about: str
    data: str
    schema: Schema
    checked: Schema
    wants_evidence: bool = False
    is_notes: bool = False
    is_lasting: bool = False
    reasks: int = REASKS  # the maximum number of corrective retries
    pages: tuple[int, int] | None = None  # of the data, for warnings
    min_items: dict[str, int] = field(default_factory=dict)
    part: str = ""
    complaints: tuple[str, ...] = ()
    images: tuple[PageImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedResponse:
    """A response and its mismatches with the schema."""

    response: ParsedResponse
    mismatches: Mismatches


class InvalidReply(Exception):
    """A reply cannot be used.

    `complaints`: the reasons, as messages for the model. `mismatches`: a pointer and a message for users for each
    mismatch with the schema; empty if the reply is not JSON. `current`: the response after this reply, or None if the
    reply does not change it. `numbers`: why numbers cannot be stored, by pointer.
    """

    def __init__(
        self,
        complaints: list[str],
        mismatches: list[Mismatch],
        *,
        current: CheckedResponse | None = None,
        numbers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(len(complaints))
        self.complaints, self.mismatches = complaints, mismatches
        self.current, self.numbers = current, numbers or {}


def validate(text: str, question: Question, current: CheckedResponse | None = None) -> ParsedResponse:
    """Parse and validate a reply, either alone or as a correction of the current response. Raises InvalidReply."""
    if question.is_notes:
        notes = reply_text.without_reasoning(text)
        if not notes:
            raise InvalidReply(["It contains no notes."], [])
        return ParsedResponse(data=notes)
    readings = readings_of(text, question, current)
    for reading in readings:
        if not json_schema.errors(question.checked, reading.data, 1):
            return require_items(reading, question)
    found = repair.mismatches(question.checked, readings[0].data)
    complaints = [f"{pointer or 'the whole'}: {words}" for pointer, words in found.listed]
    current = CheckedResponse(response=readings[0], mismatches=found)
    raise InvalidReply(complaints, found.listed, current=current)


def readings_of(text: str, question: Question, current: CheckedResponse | None) -> list[ParsedResponse]:
    """Return the possible readings of a reply. If there is a current response, the reply is applied to it as a
    correction. Raises InvalidReply."""
    try:
        has_data = any("data" in as_map(part.get("properties")) for part in Guide.of(question.schema).parts)
        readings = responses.readings(responses.parse(text), has_data=has_data)
        readings = [each for reading in readings for each in with_null_variant(reading, question)]
        if current is None:
            return readings
        found = current.mismatches
        return [repair.apply_correction(question.checked, current.response, found, reading) for reading in readings]
    except NumberOutOfRange as reason:
        numbers = {pointer.removeprefix("/data"): text for pointer, text in reason.numbers.items()}
        complaints = [f"{joined_pointers([pointer])}: {text} {AS_STRING}" for pointer, text in numbers.items()]
        raise InvalidReply(complaints, [], numbers=numbers) from None
    except NotJson as reason:
        raise InvalidReply([str(reason)], []) from None
    except ItemsLost as reason:
        raise InvalidReply([str(reason)], current.mismatches.listed if current else []) from None


def with_null_variant(reading: ParsedResponse, question: Question) -> list[ParsedResponse]:
    """Return a response without nulls that mean a missing member and, if there are any, also the unchanged response."""
    data = without_nulls(Guide.of(question.checked), reading.data)
    return [replace(reading, data=data), *([reading] if data != reading.data else [])]


def require_items(response: ParsedResponse, question: Question) -> ParsedResponse:
    """Return the response. Raises InvalidReply if it has fewer items than the question requires."""
    counts = {pointer: repair.count_at(response.data, pointer) for pointer in question.min_items}
    lost = [
        (pointer, f"Must have at least {min_items} items, as in the notes, and has {counts[pointer]}.")
        for pointer, min_items in question.min_items.items()
        if counts[pointer] < min_items
    ]
    if lost:
        raise InvalidReply([f"{pointer}: {words}" for pointer, words in lost], lost)
    return response


def pages_of_items(response: ParsedResponse, found: Mismatches, question: Question) -> list[int]:
    """Return the pages of the invalid items according to their evidence, or an empty list if an item has none."""
    first, last = question.pages or (1, 0)
    by_item: dict[str, set[int]] = {f"{pointer}/{at}": set() for pointer, at in found.items}
    for pointer, each in response.evidence.items():
        for item in by_item.keys() & {pointer, *accumulate(pointer.split("/")[:-1], "{}/{}".format)}:
            by_item[item] |= {each.page} if first <= each.page <= last else set()
    return sorted(set().union(*by_item.values())) if all(by_item.values()) else []


def on_pages(question: Question) -> str:
    return f" ({splitting.page_range_text(*question.pages)})" if question.pages else ""


def schema_error(mismatches: list[Mismatch]) -> SchemaInvalid:
    """Return the error for a reply with these mismatches, or for one that is not JSON if there are none."""
    if not mismatches:
        return SchemaInvalid("The language model's response is not JSON, even after a corrective retry.")
    found = list(dict.fromkeys(map(describe, mismatches)))
    more = [f"And {len(found) - MAX_LISTED} more."] if len(found) > MAX_LISTED else []
    return SchemaInvalid(" ".join([SchemaInvalid.detail, *found[:MAX_LISTED], *more]))


def with_answer(error: EtlError, data: Any) -> EtlError:
    """Set the data as the error's answer, unless it has one already, and return the error."""
    error.answer = error.answer or exact_json.dumps(data, indent=True).decode()
    return error


def number_error(numbers: dict[str, str]) -> NumberUnrepresentable:
    return NumberUnrepresentable(f"{number_reasons(numbers)} Allow a string there in the rule's schema.")


def number_reasons(numbers: dict[str, str]) -> str:
    return " ".join(f"{joined_pointers([pointer])}: {text}" for pointer, text in list(numbers.items())[:MAX_SHOWN])


def rejected_items_text(found: Mismatches, pages: str) -> str:
    """Return the text of a warning about items that were omitted."""
    reasons = " ".join(dict.fromkeys(map(describe, list(found.items.values())[:MAX_SHOWN])))
    return f"{len(found.items)} items do not fit the schema and were left out{pages}. {reasons}"


def describe(mismatch: Mismatch) -> str:
    """Describe a mismatch. Omit the names of members that are not allowed, because they may be private."""
    pointer, words = mismatch
    reason = "Has members that are not allowed." if words.startswith(NOT_ALLOWED) else words
    return f"{joined_pointers([pointer])}: {reason[:MAX_POINTER]}"


def joined_pointers(pointers: list[str]) -> str:
    """Join pointers for use in a sentence."""
    return ", ".join(dict.fromkeys((pointer or "the whole")[:MAX_POINTER] for pointer in pointers[:MAX_POINTERS]))
