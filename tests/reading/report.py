"""Tables of scores in Markdown, with a column for each reader."""

from collections.abc import Iterable, Mapping, Sequence

from tests.reading.measures import MEASURES
from tests.reading.scoring import Score, best_of, shares

KINDS_OF_FACTS = tuple(f"facts: {kind}" for kind in ("present", "absent", "order", "table"))
ROWS = ("facts", *KINDS_OF_FACTS, *(measure for measure in MEASURES if measure != "facts"))
BEST = "any of them"


def tables(scores: Mapping[str, Sequence[Score]]) -> str:
    """Return a table for each scored half."""
    halves = sorted({each.half for one in scores.values() for each in one})
    parts = []
    for half in halves:
        own = {name: [each for each in one if each.half == half] for name, one in scores.items()}
        if len(own) > 1:
            own[BEST] = best_of(list(own.values()))
        parts.append(f"{half}: {len(next(iter(own.values())))} documents\n\n{table(own)}")
    return "\n\n".join(parts)


def table(scores: Mapping[str, Sequence[Score]]) -> str:
    sums = {name: shares(own) for name, own in scores.items()}
    lines = [["measure (parts)", *scores], ["---"] * (len(scores) + 1)]
    for measure in ROWS:
        found = [own[measure] for own in sums.values() if measure in own]
        if found:
            cells = [f"{own[measure].value:.3f}" for own in sums.values()]
            lines.append([f"{measure} ({found[0].count:,})", *cells])
    pages = sum(each.pages for each in next(iter(scores.values())))
    lines += [
        [f"pages lost ({pages:,})", *(f"{sum(len(each.lost) for each in own):,}" for own in scores.values())],
        ["documents with an error", *(f"{sum(each.error is not None for each in own)}" for own in scores.values())],
        ["documents with a warning", *(f"{sum(bool(each.warnings) for each in own)}" for own in scores.values())],
        ["seconds a page", *(seconds_a_page(own) for own in scores.values())],
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds_a_page(scores: Iterable[Score]) -> str:
    read = [each for each in scores if each.seconds]
    return f"{sum(each.seconds for each in read) / sum(each.pages for each in read):.3f}" if read else ""


def details(reader: str, score: Score) -> str:
    """Return a line about a document, and a line for each part that was not read perfectly."""
    head = f"{reader} {score.name}: {score.seconds:.2f} s, {score.error or 'read'}, lost {score.lost}, {score.warnings}"
    missed = [
        f"    {measure} {part}: {value:.2f}"
        for measure, parts in score.parts.items()
        for part, value in parts.items()
        if value < 1
    ]
    return "\n".join([head, *missed])
