"""Citations: the place of each value in the document, verified against the text.

Models may invent evidence and values, so a quote is accepted only if it is found on a page and contains the
value. Values without valid evidence are searched for in the text. `levels` defines the levels of certainty.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from config.platform.http.pointers import unescaped
from config.platform.plurals import counted
from etl.core.stage_context import StageContext
from etl.postprocessors.citations import columns, computed, mixed_rows
from etl.postprocessors.citations.boxes import Boxes
from etl.postprocessors.citations.folding import fold
from etl.postprocessors.citations.index import Index, Place, Span
from etl.postprocessors.citations.levels import AMBIGUOUS, IMAGE, NORMALIZED, NOT_FOUND, QUOTE, RANK
from etl.postprocessors.citations.quotes import quote_around
from etl.postprocessors.citations.rows import Rows, rows_of
from etl.postprocessors.citations.values import Citation, Claim, Finder, claims_in, day_of, literal
from etl.postprocessors.document_text import DocumentText
from etl.postprocessors.schemas import Guide, Schema
from etl.postprocessors.strategies.base import StrategyResult
from etl.providers.base import Lines

MAX_NAMED = 20
MAX_POINTER = 120
MAX_OPTIONS = 500  # places per value that are compared


def cite(
    found: StrategyResult, *, schema: Schema, text: DocumentText, lines: Mapping[int, Lines], context: StageContext
) -> list[dict[str, Any]]:
    """Return the citations of a result, in the order of its values. Warn about values and evidence that are not in the
    text. `lines`: the lines of each page, for the bounding boxes of citations."""
    index = Index(text)
    context.check()
    claims = prepared_claims(found, schema, index, context)
    rows = Rows(index, rows_of(claims, index))
    context.check()
    citations = []
    for claim in claims:
        context.check()
        if citation := decide(claim, rows):
            citations.append(citation)
    columns.downgrade(citations, index, context)
    mixed_rows.downgrade(citations, index)
    downgrade_repeats(citations, rows)
    computed.mark(citations)
    citations = [by_image(citation, found) for citation in citations]
    warn(claims, citations, context, is_seen=bool(found.seen))
    boxes = Boxes(lines, index)
    cited = []
    for citation in citations:
        context.check()
        cited.append(as_dict(citation, index, boxes))
    return cited


def prepared_claims(found: StrategyResult, schema: Schema, index: Index, context: StageContext) -> list[Claim]:
    """Return the values of a result with their places and quotes in the text."""
    finder, guides = Finder(index), Guides(schema)
    claims = list(claims_in(found.answer.data))
    for claim in claims:
        context.check()
        claim.evidence = found.answer.evidence_for(claim.pointer)
        guide = guides.at(claim.path)
        claim.is_choice, claim.policy = isinstance(claim.value, bool) or guide.is_choice, guide.policy
        pages = found.places.get(claim.pointer)
        claim.likely = index.bounds(pages) if pages else None
        claim.places = finder.places(claim.value, is_of_pages=columns.is_of_pages(claim.path))
        claim.quotes = finder.quotes(claim.evidence) if claim.evidence else []
    return claims


class Guides:
    """The guides for the values of a schema, by path. In a path, `*` stands for an item."""

    def __init__(self, schema: Schema) -> None:
        self.known = {"": Guide.of(schema)}

    def at(self, path: str) -> Guide:
        if path not in self.known:
            parent, _, token = path.rpartition("/")
            above = self.at(parent)
            is_item = token == "*" and above.is_of("array")
            self.known[path] = above.item() if is_item else above.member(unescaped(token))
        return self.known[path]


# ---- Decisions ------------------------------------------------------------------------------------------------------
def decide(claim: Claim, rows: Rows) -> Citation | None:
    """Return the citation of a value, or None for a boolean or enum value that cannot be cited."""
    if claim.is_choice:
        return of_choice(claim, rows)
    citation = by_row(claim, rows) or by_quote(claim, rows) or by_page_break(claim, rows) or by_text(claim, rows)
    if citation and citation.place:
        rows.used[citation.place.start] = claim.path
    if citation is None and claim.is_free_text and claim.quotes:
        return quote_citation(claim, rows.index)
    return citation or Citation(claim=claim, match=NOT_FOUND)


def by_text(claim: Claim, rows: Rows) -> Citation | None:
    """Cite a value outside of the model's quote and the row of its item. A number of an item with a valid quote is not
    searched for elsewhere, because small numbers occur in many places."""
    if claim.is_confined:
        return None
    citation = by_value(claim, rows)
    if citation and is_contradicted(claim, rows):
        citation.match = AMBIGUOUS
    return citation


def is_contradicted(claim: Claim, rows: Rows) -> bool:
    """Return whether a number, date, or code is missing in its quote or row."""
    if claim.item:
        return bool(claim.quotes or claim.item in rows.by_item) and any(map(str.isdecimal, literal(claim.value)))
    is_text = type(claim.value) is str and not day_of(claim.value)
    return bool(claim.quotes) and not is_text


def quote_citation(claim: Claim, index: Index) -> Citation:
    span = claim.quotes[0]
    return Citation(claim=claim, match=QUOTE, quote=span, page=index.text.page_at(span[0]))


def of_choice(claim: Claim, rows: Rows) -> Citation | None:
    if claim.quotes:
        row = rows.by_item.get(claim.item)
        own = [span for span in claim.quotes if rows.index.row_of(span[0]) == row]
        claim.quotes = own or claim.quotes
        return quote_citation(claim, rows.index)
    if isinstance(claim.value, bool) or not claim.is_specific:
        return None
    place = next(iter(rows.places_near(claim) or ([] if claim.item else likely_places(claim))), None)
    return citation_at(claim, place, rows.index, match=QUOTE) if place else None


def by_row(claim: Claim, rows: Rows) -> Citation | None:
    """Cite a value in the row of its item, or near it. A number with a quote must be in its row or in the quote's."""
    places = rows.places_near(claim)
    if claim.is_confined:
        own = {rows.by_item.get(claim.item), *(row for span in claim.quotes for row in rows.index.rows_in(span))}
        places = [place for place in places if rows.index.row_of(place.start) in own]
    for place in places[:1]:
        covering = (span for span in claim.quotes if span[0] <= place.start and place.end <= span[1])
        return citation_at(claim, place, rows.index, quote=next(covering, None))
    return None


def by_quote(claim: Claim, rows: Rows) -> Citation | None:
    """Cite a value in the model's quote."""
    options = [(place, span) for span in claim.quotes for place in claim.places_in(span)]
    if not options:
        return None
    place, span = min(options, key=lambda each: (rows.is_in_other_row(each[0], claim.item), RANK[each[0].match]))
    match = AMBIGUOUS if claim.item and rows.is_in_other_row(place, claim.item) else place.match
    return citation_at(claim, place, rows.index, quote=span, match=match)


def by_page_break(claim: Claim, rows: Rows) -> Citation | None:
    """Cite a text that continues after a page break by the model's quote."""
    if type(claim.value) is not str or claim.evidence is None or not claim.quotes:
        return None
    start, end = span = claim.quotes[0]
    is_broken = rows.index.text.page_at(start) != rows.index.text.page_at(end - 1)
    value = fold(claim.value)
    if not is_broken or f" {value} " not in f" {fold(claim.evidence.quote)} ":
        return None
    is_cut = value[0].isdecimal() or value[-1].isdecimal()  # it may be part of a number, such as 500 of 1 500
    return citation_at(
        claim, Place(start=start, end=end, match=AMBIGUOUS if is_cut else NORMALIZED), rows.index, quote=span
    )


def downgrade_repeats(citations: Iterable[Citation], rows: Rows) -> None:
    """Downgrade the values of an item that are already cited for an earlier item, because a row is only one item."""
    first: dict[tuple[str, int], str] = {}
    for citation in citations:
        item, place = citation.claim.item, citation.place
        if place and rows.by_item.get(item) == rows.index.row_of(place.start):
            owner = first.setdefault((citation.claim.path, place.start), item)
            if owner != item and RANK[citation.match] <= RANK[NORMALIZED]:
                citation.match = AMBIGUOUS


def by_image(citation: Citation, found: StrategyResult) -> Citation:
    """Cite a value that is not in the text by the page that the model names, if its image was sent to the model."""
    page = citation.claim.evidence.page if citation.claim.evidence else 0
    first, last = found.places.get(citation.claim.pointer, (page, page))
    if citation.match != NOT_FOUND or page not in found.seen or not first <= page <= last:
        return citation
    return Citation(claim=citation.claim, match=IMAGE, page=page)


def likely_places(claim: Claim) -> list[Place]:
    first, last = claim.likely_range()
    return claim.places[first : min(last, first + MAX_OPTIONS)]


def by_value(claim: Claim, rows: Rows) -> Citation | None:
    """Cite a value without a valid quote. If its place is not certain, the citation is ambiguous."""
    options = likely_places(claim)
    if not options:
        return None
    best = min(RANK[place.match] for place in options)
    if best <= RANK[NORMALIZED]:
        options = [place for place in options if RANK[place.match] <= RANK[NORMALIZED]]
    own = [place for place in options if not rows.is_in_other_row(place, claim.item)]
    options = own if own or claim.item else options
    if not claim.item and isinstance(claim.value, str) and claim.number is None and claim.is_specific and options:
        return citation_at(claim, min(options, key=lambda place: RANK[place.match]), rows.index)
    labeled = [place for place in options if columns.has_label(claim, place, rows.index)]
    for choice in (options if claim.is_specific else [], labeled):
        if choice and len({rows.index.row_of(place.start) for place in choice}) == 1:
            return citation_at(claim, choice[0], rows.index)
    pages = {rows.index.text.page_at(place.start) for place in options}
    return Citation(claim=claim, match=AMBIGUOUS, page=pages.pop() if len(pages) == 1 else None)


def citation_at(claim: Claim, place: Place, index: Index, *, quote: Span | None = None, match: str = "") -> Citation:
    page = index.text.page_at(place.start)
    return Citation(claim=claim, match=match or place.match, place=place, quote=quote, page=page)


# ---- Output ---------------------------------------------------------------------------------------------------------
def as_dict(citation: Citation, index: Index, boxes: Boxes) -> dict[str, Any]:
    quote = quote_around(index, citation.place, citation.quote)
    span = (citation.place.start, citation.place.end) if citation.place else citation.quote
    bbox = boxes.find(span, citation.page) if span and citation.page else None
    return {
        "pointer": citation.claim.pointer,
        "page": citation.page,
        "bbox": bbox,
        "quote": quote,
        "match": citation.match,
    }


def is_unverified(citation: Citation) -> bool:
    return bool(citation.claim.evidence) and citation.quote is None


def warn(claims: Iterable[Claim], citations: list[Citation], context: StageContext, *, is_seen: bool) -> None:
    decided = {citation.claim.pointer for citation in citations}
    dropped = sum(map(is_unverified, citations))
    dropped += sum(bool(claim.evidence) and claim.pointer not in decided for claim in claims)
    if dropped and not is_seen:
        detail = f"The model's evidence for {counted(dropped, 'value')} was not found in the document and is omitted."
        context.warn("citation_unverified", detail)
    missing = [citation.claim.pointer for citation in citations if citation.match == NOT_FOUND]
    if missing:
        named = ", ".join(pointer[:MAX_POINTER] or "the whole" for pointer in missing[:MAX_NAMED])
        more = len(missing) - MAX_NAMED
        detail = f"These values were not found in the document: {named}" + (f", and {more} more." if more > 0 else ".")
        context.warn("value_not_in_text", detail)
