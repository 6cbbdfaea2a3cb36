"""Line-by-line comparison of two versions of a rule."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff

from rules.pages import explanations

LABELS = {
    "name": "Name",
    "description": "Description",
    "postprocess_mode": "Mode",
    "postprocess_strategy": "Strategy",
    "require_complete": "Require complete documents",
    "system_prompt": "Prompt",
    "json_schema": "JSON Schema",
}
AROUND = 3  # context lines before and after a change
# Longer texts may take seconds to compare.
MAX_LINES = 3_000
# Fewer lines may also take seconds if they repeat: difflib compares each with all equal ones.
MAX_PAIRS = 20_000
UNCOMPARED = "Too many similar lines to compare: the old text, then the new text."


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    kind: str  # added, removed, same or where
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDiff:
    """One field that differs. `lines` is empty if the texts are too long to compare."""

    label: str
    lines: list[DiffLine]


KINDS = {"+": "added", "-": "removed", "@": "where", " ": "same"}


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> list[FieldDiff]:
    """Return the fields that differ, each with a unified diff."""
    return [
        FieldDiff(label=label, lines=list(compared(shown(name, old[name]), shown(name, new[name]))))
        for name, label in LABELS.items()
        if old[name] != new[name]
    ]


def compared(old: str, new: str) -> Iterator[DiffLine]:
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_LINES:
        return
    if pairs(before, after) > MAX_PAIRS:
        yield DiffLine(kind="where", text=UNCOMPARED)
        yield from (DiffLine(kind="removed", text=line) for line in before)
        yield from (DiffLine(kind="added", text=line) for line in after)
        return
    for line in list(unified_diff(before, after, lineterm="", n=AROUND))[2:]:  # without the file names
        yield DiffLine(kind=KINDS[line[0]], text=line if line[0] == "@" else line[1:])


def pairs(before: list[str], after: list[str]) -> int:
    """Return the number of pairs of equal lines that difflib compares. From 200 lines on, it skips lines that are more
    than a hundredth of the text, such as the brackets of a schema."""
    max_count = len(after) // 100 + 1 if len(after) >= 200 else len(after)  # noqa: PLR2004 - difflib's own number
    counts = {line: number for line, number in Counter(after).items() if number <= max_count}
    return sum(number * counts.get(line, 0) for line, number in Counter(before).items())


def shown(name: str, value: str) -> str:
    words = {"postprocess_mode": explanations.mode, "postprocess_strategy": explanations.strategy}.get(name)
    if name == "require_complete":
        return "Yes" if value else "No"
    return words(value) if words else value
