"""Text normalization, which removes markup, case, and character widths, and keeps track of the original positions.

A word that is hyphenated at the end of a line becomes one word.
"""

import html
import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from etl.postprocessors.citations.characters import FRACTIONS, blank_tags, is_mark

# Words, without Markdown and table marks.
WORD = re.compile(r"[^\s|*_`~#>\\<]+|<(?![a-zA-Z/])")
QUOTES = str.maketrans({**dict.fromkeys("‐‑‒–—−", "-"), **dict.fromkeys("‘’‚‛´`", "'"), **dict.fromkeys("“”„‟«»", '"')})
BREAK = re.compile(r"(?<=[^\W\d_])[-‐][ \t]*\n[ \t]*")
UNIT = re.compile(r"(?:^|[\d\s/])(?:[kcdm]?m|ft|in|yd)\Z")
PRIVATE = 0xE000  # start of the private use area, whose characters replace exponents and fractions instead of digits
MAX_WORD = 200  # characters; positions in a longer word are not exact


@dataclass(slots=True)
class Folded:
    """Normalized words, separated by spaces. `folded_starts`: their positions in `text`. `original_starts`,
    `original_ends`: their bounds in the original text."""

    text: str = ""
    folded_starts: "array[int]" = field(default_factory=lambda: array("l"))
    original_starts: "array[int]" = field(default_factory=lambda: array("l"))
    original_ends: "array[int]" = field(default_factory=lambda: array("l"))

    def original_start(self, position: int, original: str) -> int:
        """Return the original position of a start in `text`, after any characters that folding has removed."""
        word = bisect_right(self.folded_starts, position) - 1
        return self.original_position(word, position, original, is_end=False)

    def original_end(self, position: int, original: str) -> int:
        """Return the original position of an end in `text`, before any characters that folding has removed."""
        word = bisect_right(self.folded_starts, position - 1) - 1
        return self.original_position(word, position, original, is_end=True)

    def original_position(self, word: int, position: int, original: str, *, is_end: bool) -> int:
        start, end, offset = self.original_starts[word], self.original_ends[word], position - self.folded_starts[word]
        if end - start > MAX_WORD:
            return min(start + offset, end)
        raw = original[start:end]
        if raw.isascii() and "&" not in raw and "\n" not in raw:
            return min(start + offset, end)
        return start + prefix_length(raw, fold_word(raw)[:offset], is_end=is_end)


def prefix_length(raw: str, folded_start: str, *, is_end: bool) -> int:
    """Return the length of the prefix of a word that folds to this text: the shortest for an end, else the longest."""
    lengths = [length for length in range(len(raw) + 1) if fold_word(raw[:length]) == folded_start]
    return lengths[0 if is_end else -1] if lengths else min(len(folded_start), len(raw))


def fold(text: str) -> str:
    """Return the normalized text, for example to search for it in `Folded.text`."""
    return folded([(0, text)]).text


def folded(parts: Iterable[tuple[int, str]]) -> Folded:
    """Normalize the parts of a text. Each part is its position in the whole text, and its text."""
    result, words, position = Folded(), list[str](), 0
    for offset, text in parts:
        for start, end in words_in(text):
            if word := fold_word(text[start:end]):
                result.folded_starts.append(position)
                result.original_starts.append(offset + start)
                result.original_ends.append(offset + end)
                words.append(word)
                position += len(word) + 1
    result.text = " ".join(words)
    return result


def words_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of words."""
    plain = blank_tags(text)
    start = end = -1
    for match in WORD.finditer(plain):
        if start >= 0 and is_hyphenated(plain, end, match.start()):
            end = match.end()
            continue
        if start >= 0:
            yield start, end
        start, end = match.span()
    if start >= 0:
        yield start, end


def is_hyphenated(plain: str, end: int, start: int) -> bool:
    """Return whether a hyphen at the end of a line divides a word."""
    if plain[end - 1] not in "-‐" or not plain[start].islower() or not plain[end - 2 : end - 1].isalpha():
        return False
    between = plain[end:start]
    return between.count("\n") == 1 and not between.strip()


def fold_word(word: str) -> str:
    if word.isascii() and "&" not in word and "\n" not in word:
        return word.lower()
    word = "".join(without_marks(BREAK.sub("", html.unescape(word))))
    return " ".join(unicodedata.normalize("NFKC", word).casefold().translate(QUOTES).split())


def without_marks(word: str) -> Iterator[str]:
    """Yield the parts of a word without footnote marks. Exponents of units and fractions become private characters."""
    if word.isascii():
        yield word
        return
    for index, char in enumerate(word):
        if char in "™℠":
            continue
        if char in FRACTIONS:
            yield chr(PRIVATE + ord(char) % 0x1000)
        elif not is_mark(char):
            yield char
        elif UNIT.search(word[:index]):
            yield chr(PRIVATE + ord(char) % 0x1000)
