"""Scores of readings, one for each document, and their means for each measure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pypdfium2

from tests.reading.corpus import Case, Half
from tests.reading.measures import MEASURES, Parts
from tests.reading.reading import Reading
from tests.reading.text import words

# A page counts as lost if less than this share of its distinctive words is in the reading.
MIN_FOUND = 0.2
MIN_LETTERS = 4  # of a distinctive word
MIN_WORDS = 5  # pages with fewer distinctive words are never lost
BY_DOCUMENT = frozenset({"fields"})  # measures that are averaged over documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a document. `parts`: by measure, the scores of its parts, 0 to 1. `lost`: numbers of lost pages."""

    name: str
    half: Half
    pages: int
    seconds: float
    lost: list[int]
    warnings: list[str]
    error: str | None
    parts: dict[str, Parts] = field(default_factory=dict)


def score(case: Case, reading: Reading) -> Score:
    pages = words_of_pages(case)
    parts = {name: measure(case, reading.markdown) for name, measure in MEASURES.items()}
    return Score(
        name=case.name,
        half=case.half,
        pages=len(pages),
        seconds=reading.seconds,
        lost=lost_pages(pages, reading.markdown),
        warnings=reading.warnings,
        error=reading.error,
        parts={name: judged for name, judged in parts.items() if judged},
    )


def words_of_pages(case: Case) -> list[set[str]]:
    """Return the words of each page's text layer. Damaged PDFs and other files count as one page without words."""
    if case.path.suffix != ".pdf":
        return [set()]
    try:
        with pypdfium2.PdfDocument(case.path) as pdf:
            return [set(words(page.get_textpage().get_text_bounded())) for page in pdf]
    except pypdfium2.PdfiumError:
        return [set()]


def lost_pages(pages: Sequence[set[str]], markdown: str) -> list[int]:
    """Return the numbers of pages whose distinctive words, which no other page has, are missing from the reading."""
    found, lost = set(words(markdown)), []
    pages_with = Counter(word for page in pages for word in page)
    for number, page in enumerate(pages, start=1):
        distinctive = {word for word in page if pages_with[word] == 1 and len(word) >= MIN_LETTERS}
        if len(distinctive) >= MIN_WORDS and len(distinctive & found) < MIN_FOUND * len(distinctive):
            lost.append(number)
    return lost


@dataclass(frozen=True, slots=True)
class Share:
    """The mean of `count` parts or documents."""

    value: float
    count: int


def shares(scores: Iterable[Score]) -> dict[str, Share]:
    """Return the mean of each measure over its parts, and the mean of each kind of fact.

    Fields are averaged over documents, because a financial report has a thousand fields and a contract has ten.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for each in scores:
        for measure, parts in each.parts.items():
            found = list(parts.values())
            values[measure] += [sum(found) / len(found)] if measure in BY_DOCUMENT else found
            if measure == "facts":
                for part, value in parts.items():
                    values[f"facts: {part.split()[0]}"].append(value)
    return {measure: Share(sum(found) / len(found), len(found)) for measure, found in values.items()}


def best_of(readers: Sequence[Sequence[Score]]) -> list[Score]:
    """Return, for each document, the best score of each part among all readers. It is their combined upper bound."""
    best = []
    for same in zip(*readers, strict=True):
        first = same[0]
        parts = {
            measure: {part: max(each.parts[measure][part] for each in same) for part in judged}
            for measure, judged in first.parts.items()
        }
        lost = [number for number in first.lost if all(number in each.lost for each in same)]
        best.append(replace(first, seconds=0.0, lost=lost, warnings=[], error=None, parts=parts))
    return best
