"""Sample documents for tests: the documents of the demo with their true text, and error rates of OCR."""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from etl.core import formats
from etl.core.formats import DocumentFormat
from etl.providers.base import Document

Maker = Callable[..., Document]  # the value of the fixture `make_document`
FOLDER = Path(__file__).resolve().parents[2] / "config/dev/demo/documents"


def sample(name: str) -> Path:
    return FOLDER / name


def true_text(name: str) -> str:
    return sample(name).read_text(encoding="utf-8")


def document(path: Path, kind: DocumentFormat | None = None) -> Document:
    content = path.read_bytes()
    found = kind or formats.sniff(content[: formats.HEAD_BYTES], path.name)
    assert found is not None, path
    return Document(
        path=path,
        kind=found,
        size=len(content),
        sha256=sha256(content).hexdigest(),
        name=f"17.{found}",
        url=lambda: "http://nowhere.example/",
    )


def errors_per_character(truth: str, markdown: str) -> float:
    """Return the character error rate (CER) of OCR. Spaces and Markdown syntax are ignored."""
    expected, found = letters(truth), letters(markdown)
    return distance(expected, found) / len(expected)


def letters(markdown: str) -> str:
    text = re.sub(r"<!-- page: \d+ -->|^#+ |^\| ---.*$|\|", "", markdown, flags=re.MULTILINE)
    return re.sub(r"\s+", "", text)


def distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance: the minimum number of insertions, deletions, and replacements."""
    above = list(range(len(right) + 1))
    for row, one in enumerate(left, start=1):
        here = [row]
        for column, other in enumerate(right, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        above = here
    return above[-1]
