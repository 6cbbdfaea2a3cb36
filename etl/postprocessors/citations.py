"""Where in the document each value of a result stands, checked against the text.

A model that is asked for evidence makes up some of it, as it does with values. So a quote counts only when it is found
on a page, and only when the value is in it. Values without such evidence are looked for in the text themselves. A value
that is nowhere in the text may still be right, as a sum is; it is named in a warning, so that a person can look.

`match` says how sure a citation is: `exact`, the quote stands there as it is; `normalized`, but for spaces, capitals,
widths or marks; `numeric`, as the same number written differently; `value`, the value was found, without a quote
of the model's.
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
# Shorter ones stand in any text by chance: a citation would prove nothing. Characters, or digits.
MIN_LENGTH = 3
FRAGMENT = 20  # characters of a long value that a quote must have to stand for it

LEVELS = ("exact", "normalized", "numeric", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch:
    hit: Hit
    match: str
    quote: str


def cite(found: StrategyResult, *, schema: Schema, text: DocumentText, context: StageContext) -> list[dict[str, Any]]:
    """Return the citations of a result, in the order of its values. Warns of values and evidence that do not hold."""
    index = Index(text)
    citing = Citing(found, index, Guide.of(schema))
    for done, (pointer, value) in enumerate(islice(scalars(found.answer.data), MAX_VALUES + 1)):
        if done == MAX_VALUES:
            context.warn("citations_incomplete", f"Only the first {MAX_VALUES} values were looked for in the document.")
            break
        context.check()
        citing.cite(pointer, value)
    citing.warn(context)
    return citing.citations


class Citing:
    """The citations of one result, as far as they are made."""

    def __init__(self, found: StrategyResult, index: Index, guide: Guide) -> None:
        self.found, self.index = found, index
        self.guides = {"": guide}
        self.citations: list[dict[str, Any]] = []
        self.unverified = 0
        self.absent: list[str] = []

    def cite(self, pointer: str, value: Any) -> None:
        if value is None or value == "":
            return
        evidence = self.found.answer.evidence_for(pointer)
        is_choice = isinstance(value, bool) or self.guide(pointer).is_choice
        place = self.proven(value, evidence, is_choice=is_choice) if evidence else None
        if place is None and not isinstance(value, bool):
            place = self.looked_for(pointer, value, is_choice=is_choice)
        if evidence and (place is None or place.match == "value"):
            self.unverified += 1
        if place:
            told = {"pointer": pointer, "page": place.hit.page, "quote": place.quote, "match": place.match}
            self.citations.append(told)

    # ---- By a quote -------------------------------------------------------------------------------------------------
    def proven(self, value: Any, evidence: Evidence, *, is_choice: bool) -> TextMatch | None:
        """Return where a quote stands, if it does, and if the value is in it."""
        place = self.quoted(evidence) or self.requoted(value, evidence)
        if place is None:
            return None
        level = "exact" if is_choice else support(value, place.quote)
        if level is None:
            return None
        return TextMatch(hit=place.hit, quote=place.quote, match=max(place.match, level, key=LEVELS.index))

    def quoted(self, evidence: Evidence) -> TextMatch | None:
        """Return where the quote stands: on the page that the model says, or else on the first one that has it."""
        needle = fold(evidence.quote)
        for pages in ((evidence.page, evidence.page), None):
            if hit := self.index.exactly(evidence.quote, within=pages):
                return TextMatch(hit=hit, match="exact", quote=self.slice(hit))
            if hit := self.index.words(needle, within=pages):
                return TextMatch(hit=hit, match="normalized", quote=self.slice(hit))
        return None

    def requoted(self, value: Any, evidence: Evidence) -> TextMatch | None:
        """Return where the number stands that the quote is about, when only its way of writing differs."""
        if not (is_telling(value) and is_same_number(value, evidence.quote)):
            return None
        hits = (hit for number in numbers_of(value) for hit in self.index.numbers.get(number, ()))
        hit = next((hit for hit in hits if hit.page == evidence.page), None)
        return TextMatch(hit=hit, match="numeric", quote=self.line(hit)) if hit else None

    # ---- By the value -----------------------------------------------------------------------------------------------
    def looked_for(self, pointer: str, value: Any, *, is_choice: bool) -> TextMatch | None:
        hit = self.index.value(value, likely=self.found.places.get(pointer))
        if hit is None:
            if not is_choice:
                self.absent.append(pointer)
            return None
        return TextMatch(hit=hit, match="value", quote=self.line(hit)) if is_telling(value) else None

    def slice(self, hit: Hit) -> str:
        return self.index.text.content[hit.start : hit.end][:MAX_QUOTE]

    def line(self, hit: Hit) -> str:
        """Return a value as it stands there, with a little of its line."""
        content = self.index.text.content
        start = max(content.rfind("\n", 0, hit.start) + 1, hit.start - MARGIN)
        newline = content.find("\n", hit.end)
        end = min(newline if newline >= 0 else len(content), hit.end + MARGIN, start + MAX_QUOTE)
        return content[start:end].strip()

    # ---- The rest ---------------------------------------------------------------------------------------------------
    def guide(self, pointer: str) -> Guide:
        """Return what the schema says of a place; each step of the way is remembered."""
        if pointer not in self.guides:
            parent, _, token = pointer.rpartition("/")
            above = self.guide(parent)
            is_item = token.isdecimal() and above.is_of("array")
            self.guides[pointer] = above.item() if is_item else above.member(unescaped(token))
        return self.guides[pointer]

    def warn(self, context: StageContext) -> None:
        if self.unverified:
            detail = (
                f"The model's evidence for {self.unverified} values was not found in the document, and was left out."
            )
            context.warn("citation_unverified", detail)
        if self.absent:
            named = ", ".join(pointer[:MAX_POINTER] or "the whole" for pointer in self.absent[:MAX_NAMED])
            more = len(self.absent) - MAX_NAMED
            detail = f"These values do not stand in the document: {named}" + (
                f", and {more} more." if more > 0 else "."
            )
            context.warn("value_not_in_text", detail)


def support(value: Any, quote: str) -> str | None:
    """Return how a quote shows a value, or None if it does not."""
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


def is_telling(value: Any) -> bool:
    """Whether a value is long enough not to stand in a text by chance."""
    text = value if isinstance(value, str) else repr(value)
    return sum(map(str.isalnum, text)) >= MIN_LENGTH or any(letter >= "\u2e80" for letter in text)
