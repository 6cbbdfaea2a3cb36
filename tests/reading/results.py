"""Files with the readings and scores of each corpus and reader."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.reading.corpus import Case
from tests.reading.reading import Reading
from tests.reading.scoring import Score


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    reading: Reading
    score: Score


Results = dict[str, list[Result]]  # by reader


def save(folder: Path, reader: str, results: Iterable[Result]) -> None:
    corpora: dict[str, list[Result]] = defaultdict(list)
    for each in results:
        corpora[each.case.path.parent.name].append(each)
    for corpus, own in corpora.items():
        (folder / corpus).mkdir(parents=True, exist_ok=True)
        scores = [asdict(each.score) for each in own]
        readings = {each.case.name: asdict(each.reading) for each in own}
        (folder / corpus / f"{reader}.scores.json").write_text(json.dumps(scores, indent=1))
        (folder / corpus / f"{reader}.readings.json").write_text(json.dumps(readings, indent=1))


def load(folder: Path, reader: str, cases: Sequence[Case]) -> Iterator[tuple[Case, Reading]]:
    """Yield the saved readings of documents. Skip documents without one."""

    @cache
    def readings(corpus: str) -> dict[str, dict[str, Any]]:
        path = folder / corpus / f"{reader}.readings.json"
        return json.loads(path.read_text()) if path.exists() else {}

    for case in cases:
        if values := readings(case.path.parent.name).get(case.name):
            yield case, Reading(**values)
