"""Citations: the place of each value in the document, verified against the text.

Models invent evidence, as they invent values. So a quote counts only if it is found on a page and contains the value.
Values without such evidence are searched for in the text. A value that is not in the text may still be correct, such as
a sum; a warning names it, so that a person can check.

`match` is the certainty of a citation. `exact`: the text contains the quote. `normalized`: it differs in spaces,
capitals, widths, or marks. `numeric`: it is the same number in another notation. `value`: the value was found, but the
model gave no quote for it.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from config.platform.http.pointers import unescaped
from etl.core.stage_context import StageContext
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.responses import Evidence, scalars
from etl.postprocessors.schemas import Guide, Schema
from etl.postprocessors.strategies.base import StrategyResult
from etl.postprocessors.text_search import Hit, Index, fold, forms, numbers_in, numbers_of, whole_words

MAX_VALUES = 2_000
MAX_NAMED = 20
MAX_POINTER = 120
MAX_QUOTE = 200
MARGIN = 40  # characters of a line that are shown on either side of a value
# Shorter values occur in any text by chance, so a citation would prove nothing. In letters and digits.
MIN_LENGTH = 3
FRAGMENT = 20  # characters of a long value that a quote needs to support it

LEVELS = ("exact", "normalized", "numeric", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch:
    hit: Hit
    match: str
    quote: str


def cite(found: StrategyResult, *, schema: Schema, text: DocumentText, context: StageContext) -> list[dict[str, Any]]:
    """Return the citations of a result, in the order of its values. Warns about unsupported values and evidence."""
    index = Index(text)
    citing = Citing(found, index, Guide.of(schema))
    for done, (pointer, value) in enumerate(islice(scalars(found.answer.data), MAX_VALUES + 1)):
        if done == MAX_VALUES:
            context.warn(
                "citations_incomplete", f"Only the first {MAX_VALUES} values were searched for in the document."
            )
            break
        context.check()
        citing.cite(pointer, value)
    citing.warn(context)
    return citing.citations


class Citing:
    """The citations of one result."""

    def __init__(self, found: StrategyResult, index: Index, guide: Guide) -> None:
        self.found, self.index = found, index
        self.guides = {"": guide}
        self.citations: list[dict[str, Any]] = []
        self.unverified = 0
        self.missing: list[str] = []

    def cite(self, pointer: str, value: Any) -> None:
        if value is None or value == "":
            return
        evidence = self.found.answer.evidence_for(pointer)
        is_choice = isinstance(value, bool) or self.guide(pointer).is_choice
        place = self.by_quote(value, evidence, is_choice=is_choice) if evidence else None
        if place is None and not isinstance(value, bool):
            place = self.by_value(pointer, value, is_choice=is_choice)
        if evidence and (place is None or place.match == "value"):
            self.unverified += 1
        if place:
            citation = {"pointer": pointer, "page": place.hit.page, "quote": place.quote, "match": place.match}
            self.citations.append(citation)

    # ---- By a quote -------------------------------------------------------------------------------------------------
    def by_quote(self, value: Any, evidence: Evidence, *, is_choice: bool) -> TextMatch | None:
        """Return the place of the model's quote, if the text has it and it contains the value."""
        place = self.find_quote(evidence) or self.find_number(value, evidence)
        if place is None:
            return None
        level = "exact" if is_choice else support(value, place.quote)
        if level is None:
            return None
        return TextMatch(hit=place.hit, quote=place.quote, match=max(place.match, level, key=LEVELS.index))

    def find_quote(self, evidence: Evidence) -> TextMatch | None:
        """Return the place of the quote, on the page that the model named, or on the first page that has it."""
        needle = fold(evidence.quote)
        for pages in ((evidence.page, evidence.page), None):
            if hit := self.index.exactly(evidence.quote, within=pages):
                return TextMatch(hit=hit, match="exact", quote=self.slice(hit))
            if hit := self.index.words(needle, within=pages):
                return TextMatch(hit=hit, match="normalized", quote=self.slice(hit))
        return None

    def find_number(self, value: Any, evidence: Evidence) -> TextMatch | None:
        """Return the place of the number in the quote, if the text has it in another notation."""
        if not (is_specific(value) and is_same_number(value, evidence.quote)):
            return None
        hits = (hit for number in numbers_of(value) for hit in self.index.numbers.get(number, ()))
        hit = next((hit for hit in hits if hit.page == evidence.page), None)
        return TextMatch(hit=hit, match="numeric", quote=self.line(hit)) if hit else None

    # ---- By the value -----------------------------------------------------------------------------------------------
    def by_value(self, pointer: str, value: Any, *, is_choice: bool) -> TextMatch | None:
        hit = self.index.value(value, likely=self.found.places.get(pointer))
        if hit is None:
            if not is_choice:
                self.missing.append(pointer)
            return None
        return TextMatch(hit=hit, match="value", quote=self.line(hit)) if is_specific(value) else None

    def slice(self, hit: Hit) -> str:
        return self.index.text.content[hit.start : hit.end][:MAX_QUOTE]

    def line(self, hit: Hit) -> str:
        """Return a value as the text has it, with part of its line."""
        content = self.index.text.content
        start = max(content.rfind("\n", 0, hit.start) + 1, hit.start - MARGIN)
        newline = content.find("\n", hit.end)
        end = min(newline if newline >= 0 else len(content), hit.end + MARGIN, start + MAX_QUOTE)
        return content[start:end].strip()

    # ---- The rest ---------------------------------------------------------------------------------------------------
    def guide(self, pointer: str) -> Guide:
        """Return the guide for a pointer. The guides of its parents are cached."""
        if pointer not in self.guides:
            parent, _, token = pointer.rpartition("/")
            above = self.guide(parent)
            is_item = token.isdecimal() and above.is_of("array")
            self.guides[pointer] = above.item() if is_item else above.member(unescaped(token))
        return self.guides[pointer]

    def warn(self, context: StageContext) -> None:
        if self.unverified:
            detail = f"The model's evidence for {self.unverified} values was not found in the document and is omitted."
            context.warn("citation_unverified", detail)
        if self.missing:
            named = ", ".join(pointer[:MAX_POINTER] or "the whole" for pointer in self.missing[:MAX_NAMED])
            more = len(self.missing) - MAX_NAMED
            detail = f"These values were not found in the document: {named}" + (
                f", and {more} more." if more > 0 else "."
            )
            context.warn("value_not_in_text", detail)


def support(value: Any, quote: str) -> str | None:
    """Return how a quote supports a value, or None."""
    text = fold(quote)
    if whole_words(fold(str(value)), text) >= 0:
        return "exact"
    if is_same_number(value, quote):
        return "numeric"
    if any(whole_words(form, text) >= 0 for form in forms(value)):
        return "normalized"
    is_fragment = isinstance(value, str) and len(text) >= FRAGMENT and whole_words(text, fold(value)) >= 0
    return "normalized" if is_fragment else None


def is_same_number(value: Any, quote: str) -> bool:
    return not numbers_of(value).isdisjoint(number for _, _, number in numbers_in(quote))


def is_specific(value: Any) -> bool:
    """Whether a value is too long to occur in a text by chance."""
    text = value if isinstance(value, str) else repr(value)
    return sum(map(str.isalnum, text)) >= MIN_LENGTH or any(letter >= "\u2e80" for letter in text)
