"""Normalization of texts for comparison, and distances between texts."""

import re
import unicodedata
from collections.abc import Iterator
from html import unescape

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
RULE_OF_TABLE = re.compile(r"^[ \t]*\|?[ \t:|-]*-{2,}[ \t:|-]*$", re.MULTILINE)
MARKUP = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|[-*+•][ \t]+|>[ \t]?|```\w*)", re.MULTILINE)
EMPHASIS = re.compile(r"(\*\*|__|\*|_)(.*?)\1")
ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~-])")
NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
PUNCTUATION = str.maketrans("‘’‚“”„＿–—‑‒−µ", "'''\"\"\"_-----μ")


def fold(text: str) -> str:
    """Return Markdown without emphasis, and with normalized white space, quotes, and dashes."""
    text = re.sub(r"<br ?/?>", " ", text)
    text = re.sub(r"</?[bi]>", "", EMPHASIS.sub(r"\2", EMPHASIS.sub(r"\2", text)))
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).translate(PUNCTUATION)


def plain(markdown: str) -> str:
    """Return the text of Markdown or HTML without markup."""
    text = IMAGE.sub(" ", COMMENT.sub(" ", markdown))
    text = RULE_OF_TABLE.sub(" ", text)
    text = MARKUP.sub("", text)
    text = TAG.sub(" ", text).replace("|", " ")
    return fold(unescape(ESCAPE.sub(r"\1", text))).strip()


def compress(text: str) -> str:
    """Return only the letters and digits in lower case, so that breaks, hyphens, and spacing are ignored."""
    return NOT_ALPHANUMERIC.sub("", unicodedata.normalize("NFKC", text).casefold())


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


# ---- Distances, computed bit-parallel: one bit for each character of a text -----------------------------------------
def masks(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, character in enumerate(text):
        found[character] = found.get(character, 0) | 1 << index
    return found


def common_length(left: str, right: str) -> int:
    """Return the length of the longest common subsequence (Hyyrö 2004)."""
    left, right = sorted((left, right), key=len)
    positions, every = masks(left), (1 << len(left)) - 1
    state = every
    for character in right:
        matched = state & positions.get(character, 0)
        state = ((state + matched) | (state - matched)) & every
    return len(left) - state.bit_count()


def indel_similarity(left: str, right: str) -> float:
    """Return 1 - (insertions + deletions) / (total length): the NID of public benchmarks."""
    if not left and not right:
        return 1.0
    return 2 * common_length(left, right) / (len(left) + len(right))


def edit_distance(left: str, right: str) -> int:
    """Return the Levenshtein distance."""
    if not left or not right:
        return max(len(left), len(right))
    return list(distances_at_ends(left, right, anchored=True))[-1]


def distances_at_ends(needle: str, text: str, *, anchored: bool = False) -> Iterator[int]:
    """Yield, for each position in `text`, the least edit distance of `needle` to a part that ends there (Myers 1999).

    `anchored`: whether the part must begin at the start of the text.
    """
    size = len(needle)
    positions, every, last = masks(needle), (1 << size) - 1, 1 << (size - 1)
    plus, minus, distance = every, 0, size
    for character in text:
        equal = positions.get(character, 0)
        vertical = equal | minus
        horizontal = (((equal & plus) + plus) ^ plus) | equal
        up, down = minus | ~(horizontal | plus) & every, plus & horizontal
        distance += bool(up & last) - bool(down & last)
        up, down = (up << 1 | anchored) & every, down << 1 & every
        plus, minus = down | ~(vertical | up) & every, up & vertical
        yield distance


def ends_of(needle: str, text: str, *, max_edits: int) -> list[int]:
    """Return the ends of the parts of `text` that differ from `needle` by at most `max_edits` characters."""
    if not max_edits:
        return [found.start() + len(needle) for found in re.finditer(f"(?={re.escape(needle)})", text)]
    return [end for end, edits in enumerate(distances_at_ends(needle, text), start=1) if edits <= max_edits]


def starts_of(needle: str, text: str, *, max_edits: int) -> list[int]:
    return [len(text) - end for end in ends_of(needle[::-1], text[::-1], max_edits=max_edits)]
