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
CONTEXT_LINES = 3  # before and after a change
# Longer texts can take seconds to compare.
MAX_LINES = 3_000
# Repeated lines can also take seconds: difflib compares each of them with all equal lines.
MAX_PAIRS = 20_000
UNCOMPARED = "Too many similar lines to compare. The old text is followed by the new text."


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    kind: str  # added, removed, same or where
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDiff:
    """A field that differs. `lines` is empty if the texts are too long, or differ only in a last line break."""

    label: str
    lines: list[DiffLine]


KINDS = {"+": "added", "-": "removed", "@": "where", " ": "same"}


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> list[FieldDiff]:
    """Return the fields that differ, each with a unified diff."""
    return [
        FieldDiff(label=label, lines=list(diff_lines(display_text(name, old[name]), display_text(name, new[name]))))
        for name, label in LABELS.items()
        if old[name] != new[name]
    ]


def diff_lines(old: str, new: str) -> Iterator[DiffLine]:
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_LINES:
        return
    if count_pairs(before, after) > MAX_PAIRS:
        yield DiffLine(kind="where", text=UNCOMPARED)
        yield from (DiffLine(kind="removed", text=line) for line in before)
        yield from (DiffLine(kind="added", text=line) for line in after)
        return
    for line in list(unified_diff(before, after, lineterm="", n=CONTEXT_LINES))[2:]:  # without the file names
        yield DiffLine(kind=KINDS[line[0]], text=line if line[0] == "@" else line[1:])


def count_pairs(before: list[str], after: list[str]) -> int:
    """Return the number of pairs of equal lines that difflib compares.

    In texts of at least 200 lines, it skips each line that is more than 1% of all lines, such as a bracket.
    """
    max_count = len(after) // 100 + 1 if len(after) >= 200 else len(after)  # noqa: PLR2004 - the constant of difflib
    counts = {line: number for line, number in Counter(after).items() if number <= max_count}
    return sum(number * counts.get(line, 0) for line, number in Counter(before).items())


def display_text(name: str, value: str) -> str:
    label_of = {"postprocess_mode": explanations.mode, "postprocess_strategy": explanations.strategy}.get(name)
    if name == "require_complete":
        return "Yes" if value else "No"
    return label_of(value) if label_of else value
