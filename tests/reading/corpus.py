"""Corpora: folders of documents with their ground truth, each split into two halves.

The ground truth of `17.pdf` is in these optional files beside it:

- `17.facts.jsonl`: facts in the format of olmOCR-bench, one per line
- `17.fields.json`: an object with values of the document
- `17.invoice.json`: `{"values": {…}, "rows": [{"name": …, "amount": …}]}`
- `17.truth.md`: the document in Markdown, where tables may be HTML
- `17.truth.txt`: only the text
- `17.tables.html`: only the tables
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Half = Literal["dev", "held"]

# The smallest salt for which no measure of the prepared corpora has more than 59 % of its parts in one half.
SALT = 136
SUFFIXES = (
    ".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".txt", ".md", ".html", ".csv", ".eml", ".epub",
    ".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".doc", ".xls", ".ppt", ".rtf",
)  # fmt: skip
TRUTHS = ("facts.jsonl", "fields.json", "invoice.json", "truth.md", "truth.txt", "tables.html")


@dataclass(frozen=True, slots=True)
class Case:
    """A document of a corpus."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def half(self) -> Half:
        """Return `dev`, which is used during development, or `held` (held out), which is only scored.

        The half depends on the name before `--`, so that variants of one document are in the same half.
        """
        group = self.path.name.split("--")[0]
        return "held" if hashlib.sha256(f"{SALT} {group}".encode()).digest()[0] % 2 else "dev"

    def truth(self, kind: str) -> str | None:
        """Return the text of a ground truth file, by its suffix such as `facts.jsonl`, or None."""
        path = self.path.with_name(f"{self.path.stem}.{kind}")
        return path.read_text(encoding="utf-8") if path.exists() else None

    def json(self, kind: str) -> Any:
        text = self.truth(kind)
        return None if text is None else json.loads(text)

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.truth("facts.jsonl") or "").splitlines() if line.strip()]


def cases(folder: Path, *, half: Half | None = None) -> Iterator[Case]:
    """Yield the documents of a folder and its subfolders, sorted by path."""
    for path in sorted(folder.rglob("*")):
        case = Case(path)
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if is_document(path.name) and not hidden and half in {None, case.half}:
            yield case


def is_document(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.endswith(TRUTHS) and name != "README.md"
