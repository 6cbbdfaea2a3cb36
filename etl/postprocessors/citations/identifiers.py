"""Search for identifiers with different spaces, hyphens, or brackets, such as IBANs, tax numbers, and phone numbers."""

import re
import unicodedata
from collections.abc import Iterator

from etl.postprocessors.citations.index import MAX_OCCURRENCES, RUN, Index, Place

MIN_LENGTH, MIN_DIGITS, MAX_LENGTH = 6, 4, 64
IDENTIFIER = re.compile(r"\+?[\w()/ -]+")
MARKS = re.compile(r"[()/ +-]+")
# Spaces may differ in all identifiers. Other marks may differ only if the text cannot be a range or a ratio: it begins
# with `+`, `(`, or `0`, or contains a letter.
MARKS_MAY_DIFFER = re.compile(r"[+(0]|.*[^\W\d]")
WORD_AFTER = re.compile(r" ?[^\W\d_]")  # in `12 345 pieces`, the word may be the unit of 345 only
SEPARATORS = ("\n", "|", "<", "  ")  # between lines, cells, and columns
# More groups of digits, which make a match a part of a longer number.
DIGITS_BEFORE, DIGITS_AFTER = re.compile(r"\d \Z"), re.compile(r" \d+(?![\w/-]|[.,]\d)")


def respaced_places(index: Index, needle: str) -> Iterator[Place]:
    """Yield the places of an identifier with different spaces and marks, as whole words."""
    compact = MARKS.sub("", needle)
    if not is_identifier(needle, compact):
        return
    text = index.folded.text
    pattern = re.compile("[ ()/+-]{0,3}".join(compact))
    for length in range(1, len(compact) + 1):
        for position in index.word_positions.get(compact[:length], ())[:MAX_OCCURRENCES]:
            match = pattern.match(text, position)
            place = index.place_of(*match.span()) if match and is_match(text, match, needle) else None
            if match and place and not any(mark in index.content[place.start : place.end] for mark in SEPARATORS):
                may_have_unit = (
                    " " in match.group() and compact.isdecimal() and WORD_AFTER.match(index.content, place.end)
                )
                yield place.as_ambiguous() if may_have_unit else place


def mark_other_spellings(places: list[Place], text: str, content: str) -> Iterator[Place]:
    """Yield the places of a text. If it contains digits, and the document has it in several cases, such as `B-10` and
    `b-10`, these may be different identifiers. So the places whose case differs from the text's are ambiguous."""
    spellings = {place: spelling(content[place.start : place.end]) for place in places}
    is_distinct = any(map(str.isdecimal, text)) and len(set(spellings.values())) > 1
    for place, found in spellings.items():
        is_other = is_distinct and found != spelling(text)
        yield place.as_ambiguous() if is_other else place


def spelling(text: str) -> str:
    """Return only the letters and digits of a text."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text)))


def is_identifier(needle: str, compact: str) -> bool:
    if not MIN_LENGTH <= len(compact) <= MAX_LENGTH or not compact.isalnum() or not IDENTIFIER.fullmatch(needle):
        return False
    return sum(map(str.isdecimal, compact)) >= MIN_DIGITS


def is_match(text: str, match: re.Match[str], needle: str) -> bool:
    """Return whether a match is not a part of a longer number, and differs from the value only by marks that may differ
    in identifiers."""
    start, end = match.span()
    last = text[max(start, text.rfind(" ", start, end) + 1) : end]
    is_cut = bool(RUN.match(text, end)) or (last.isdecimal() and bool(DIGITS_AFTER.match(text, end)))
    is_cut = is_cut or (text[start].isdecimal() and bool(DIGITS_BEFORE.search(text, max(0, start - 2), start)))
    before = text[max(0, start - 2) : start].lstrip().rpartition(" ")[2]
    return not is_cut and all(
        MARKS_MAY_DIFFER.match(each) or set(MARKS.findall(each)) <= {" "} for each in (before + match.group(), needle)
    )
