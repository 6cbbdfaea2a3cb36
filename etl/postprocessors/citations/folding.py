"""Normalized texts: without markup, capitals, widths, and line breaks, with the positions of the original.

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
PRIVATE = 0xE000  # characters that replace exponents and fractions, which would become digits
MAX_WORD = 200  # characters of a word in which positions are exact


@dataclass(slots=True)
class Folded:
    """Normalized words, separated by one space. `begins`: a word's position in `text`; `at`, `ends`: its start and end
    in the original."""

    text: str = ""
    begins: "array[int]" = field(default_factory=lambda: array("l"))
    at: "array[int]" = field(default_factory=lambda: array("l"))
    ends: "array[int]" = field(default_factory=lambda: array("l"))

    def origin(self, place: int, original: str) -> int:
        """Return the original position of a character. Characters before it that folding drops are outside."""
        return self.position(bisect_right(self.begins, place) - 1, place, original, is_end=False)

    def origin_of_end(self, place: int, original: str) -> int:
        """Return the original end of a text that ends before a position. Characters that folding drops are outside."""
        return self.position(bisect_right(self.begins, place - 1) - 1, place, original, is_end=True)

    def position(self, word: int, place: int, original: str, *, is_end: bool) -> int:
        start, end, offset = self.at[word], self.ends[word], place - self.begins[word]
        if end - start > MAX_WORD:
            return min(start + offset, end)
        raw = original[start:end]
        if raw.isascii() and "&" not in raw and "\n" not in raw:
            return min(start + offset, end)
        return start + prefix(raw, fold_word(raw)[:offset], is_end=is_end)


def prefix(raw: str, folded_start: str, *, is_end: bool) -> int:
    """Return the length of the shortest or longest beginning of a word that folds to this text."""
    lengths = [length for length in range(len(raw) + 1) if fold_word(raw[:length]) == folded_start]
    return lengths[0 if is_end else -1] if lengths else min(len(folded_start), len(raw))


def fold(text: str) -> str:
    return folded([(0, text)]).text


def folded(parts: Iterable[tuple[int, str]]) -> Folded:
    """Normalize texts, each with its position in the whole."""
    made, words, position = Folded(), list[str](), 0
    for offset, text in parts:
        for start, end in words_in(text):
            if word := fold_word(text[start:end]):
                made.begins.append(position)
                made.at.append(offset + start)
                made.ends.append(offset + end)
                words.append(word)
                position += len(word) + 1
    made.text = " ".join(words)
    return made


def words_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of words."""
    plain = blank_tags(text)
    start = end = -1
    for match in WORD.finditer(plain):
        if start >= 0 and goes_on(plain, end, match.start()):
            end = match.end()
            continue
        if start >= 0:
            yield start, end
        start, end = match.span()
    if start >= 0:
        yield start, end


def goes_on(plain: str, end: int, start: int) -> bool:
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
    """Yield a word without footnote marks. Exponents of units and fractions are kept, but never as digits."""
    if word.isascii():
        yield word
        return
    for place, char in enumerate(word):
        if char in "™℠":
            continue
        if char in FRACTIONS:
            yield chr(PRIVATE + ord(char) % 0x1000)
        elif not is_mark(char):
            yield char
        elif UNIT.search(word[:place]):
            yield chr(PRIVATE + ord(char) % 0x1000)
