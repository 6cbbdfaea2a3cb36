"""Text around a number, beyond spaces, markup, cell bounds, and a currency: signs, brackets, scales, and other digits.

A reader sees `- **500.00**`, `| (500.00 | ) |`, or `500 EUR million` as one amount. What is found here makes a number
ambiguous; the notations that have one meaning are read in `numbers`.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from etl.postprocessors.citations.characters import FILLER
from etl.postprocessors.citations.units import CURRENCY, ONE, SCALE, SYMBOLS, scales_of

Span = tuple[int, int]
SPACES = f" \u00a0\t{FILLER}^\"'“”„«»"  # and footnote marks and quotation marks
GAP = rf"[{SPACES}]"
REACH = 300  # characters that are skipped
TABLE = 4_000  # characters of a table before and after a cell that are compared
TRIANGLES = "△▲▽▼⁻˗₋"  # a minus in Japanese accounts
DASHES = "-–—―‒−"
MINUS_WORDS = frozenset(re.findall(r"\w+", "minus moins menos meno negative less abzüglich abzgl cr dr"))
SIDES = frozenset(re.findall(r"\w+", "cr dr db soll haben credit debit debet avoir"))
SIGN_HEADS = frozenset(re.findall(r"\w+", "sign vorzeichen signo signe segno"))
WORD_BEFORE = re.compile(rf"(?:[^\W\d_]{{1,20}}\.?)?[{SYMBOLS}]?\Z")
WORD_AFTER = re.compile(rf"{GAP}{{0,20}}\n?{GAP}{{0,20}}\(?(?P<word>[^\W\d_][^\s|\d,;:()/{FILLER}]{{0,15}})")
LIKE_CURRENCY = re.compile(rf"{CURRENCY}|[A-Z]{{2,4}}|[A-Z][A-Za-z]{{0,2}}[A-Z]|[A-Za-z]{{0,3}}[{SYMBOLS}]")
SHORT = 5  # letters of a word that may be a currency, if a sign or bracket is attached to it
POWER = re.compile(rf"{GAP}{{0,4}}[×x·⋅]?{GAP}{{0,4}}10[\^⁻]")
FRACTION = re.compile(r"[ \u00a0]\d{1,2}/\d{1,2}(?![\d/])")
GLUE = (FILLER, "\u00a0")
# Between digits, these are read elsewhere, or separate numbers.
SEPARATORS = frozenset(' \u00a0\t\n|-–—/:;=()[]"%‰^')
SYMBOLS_OF_TEXT = frozenset("=|+^№~©®✓✔●■►")


def skip(plain: str, place: int, step: int) -> int:
    """Return the first position from here that has a text beside it: not spaces, markup, or footnote marks."""
    limit = max(0, place - REACH) if step < 0 else min(len(plain), place + REACH)
    while place != limit and plain[place - (step < 0)] in SPACES:
        place += step
    return place


def skip_cells(plain: str, place: int, step: int) -> int:
    """Return the first position from here that has a text beside it: in the same cell or in the next one with text."""
    here = skip(plain, place, step)
    while plain[here - 1 : here] == "|" if step < 0 else plain[here : here + 1] == "|":
        here = skip(plain, here + step, step)
    return here


def is_part(plain: str, start: int, end: int, core: Span) -> bool:
    """Whether digits beside a number belong to it, or an unknown symbol is attached to its start."""
    before, after = glued(plain, start, -1), glued(plain, end, 1)
    left, right = plain[before - 1 : before], plain[after : after + 1]
    if left.isdecimal() or right.isdecimal() or right == "…" or (is_symbol(left) and before == start):
        return True
    beyond, further = glued(plain, before - 1, -1), glued(plain, after + 1, 1)
    if is_joint(left, plain[beyond - 1 : beyond]) or is_joint(right, plain[further : further + 1]):
        return True
    is_raised = plain.startswith("^^", core[1]) and plain[core[0] : core[1]].isdecimal()  # cents
    is_power = plain[core[0] : core[1]] == "10" and right in ("^", "⁻")
    return is_raised or is_power or bool(POWER.match(plain, core[1]) or FRACTION.match(plain, core[1]))


def glued(plain: str, place: int, step: int) -> int:
    """Return the first position from here that has something other than markup and hard spaces beside it."""
    while plain[place - 1 : place] in GLUE if step < 0 else plain[place : place + 1] in GLUE:
        place += step
    return place


def is_joint(mark: str, beyond: str) -> bool:
    return bool(mark) and beyond.isdecimal() and mark not in SEPARATORS and not mark.isalnum() and not is_of(mark, "Sc")


def is_of(char: str, category: str) -> bool:
    """Whether a character is of a Unicode category, or of one that starts so."""
    return bool(char) and unicodedata.category(char).startswith(category)


def is_symbol(char: str) -> bool:
    return is_of(char, "S") and not is_of(char, "Sc") and char not in SYMBOLS_OF_TEXT


# ---- Signs ----------------------------------------------------------------------------------------------------------
def sign_around(plain: str, start: int, end: int, *, is_amount: bool) -> Span | None:
    """Return the span of a number with a sign, brackets, or a side of an account around it, or None."""
    lefts, rights = list(places_before(plain, start)), list(places_after(plain, end))
    for place, is_attached in lefts:
        if is_minus_before(plain, place - 1, start, end, is_attached=is_attached):
            return place - 1, end
    for word, low in words_before(plain, start):
        if word.casefold() in MINUS_WORDS:
            return low, end
    for place, is_near in rights:
        if is_near and is_minus_after(plain, place):
            return start, place + 1
    lows, highs = [place for place, _ in lefts], [place for place, _ in rights]
    brackets = brackets_around(plain, lows, highs, is_amount=is_amount)
    return brackets or side_after(plain, start, end, is_amount=is_amount)


def brackets_around(plain: str, lows: list[int], highs: list[int], *, is_amount: bool) -> Span | None:
    """Return the span of a number in brackets. A word may be in them if the number is an amount."""
    first = next((each for each, place in enumerate(lows) if is_of(plain[place - 1 : place], "Ps")), None)
    last = next((each for each, place in enumerate(highs) if is_of(plain[place : place + 1], "Pe")), None)
    if first is None or last is None:
        return None
    opening, closing = lows[first] - 1, highs[last] + 1
    return (opening, closing) if is_amount or (plain[opening] == "(" and first + last == 0) else None


def places_before(plain: str, start: int) -> Iterator[tuple[int, bool]]:
    """Yield the position after the text before a number, and that before a short word between them, with whether the
    word is attached to it."""
    here = skip_cells(plain, start, -1)
    yield here, True
    word = WORD_BEFORE.search(plain, max(0, here - 12), here)
    if word and word.group():
        far = skip_cells(plain, word.start(), -1)
        is_like = bool(LIKE_CURRENCY.fullmatch(word.group().rstrip(".")))
        if is_like or (far == word.start() and len(word.group()) <= SHORT):
            yield far, far == word.start()


def places_after(plain: str, end: int) -> Iterator[tuple[int, bool]]:
    """Yield the position before the text after a number, and that behind a word between them, with whether only a
    currency can be between them."""
    here = skip_cells(plain, end, 1)
    yield here, True
    if word := WORD_AFTER.match(plain, here):
        yield skip_cells(plain, word.end(), 1), bool(LIKE_CURRENCY.fullmatch(word["word"]))


def words_before(plain: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield the word before a number with its start, and the one before that if it can be a currency."""
    for _ in range(2):
        here = skip(plain, start, -1)
        here -= plain[here - 1 : here] == ")"
        word = WORD_BEFORE.search(plain, max(0, here - 24), here)
        if word is None or not word.group():
            return
        start, text = word.start(), word.group().rstrip(".")
        yield text, start
        if not LIKE_CURRENCY.fullmatch(text):
            return


def words_after(plain: str, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield the word after a number with its start and end, and the one after that if it can be a currency."""
    for _ in range(2):
        word = WORD_AFTER.match(plain, end)
        if word is None:
            return
        end = word.end()
        yield word["word"], word.start("word"), end
        if not LIKE_CURRENCY.fullmatch(word["word"]):
            return


def is_minus_before(plain: str, at: int, start: int, end: int, *, is_attached: bool) -> bool:
    """Whether a character before a number may be its sign. A bullet, a hyphen of a word, and an empty cell are not."""
    mark = plain[at : at + 1] if at >= 0 else ""
    if not mark or mark not in DASHES + TRIANGLES or not (is_attached or plain[at + 1 : at + 2] in SPACES):
        return False
    row = plain.rfind("\n", max(0, at - REACH), at) + 1
    if "|" in plain[at:start]:
        return is_sign_cell(plain, at)
    is_first = not plain[max(row, at - REACH) : at].strip(SPACES)
    if is_first and mark == "-" and plain[at + 1 : at + 2] in SPACES:
        return not plain[end : end + REACH].partition("\n")[0].strip(SPACES + "|")
    return not (at + 1 == start and plain[at - 1 : at].isalnum()) and not (
        plain[at + 1 : at + 2].isalpha() and plain[at - 1 : at].isalnum()
    )


def is_minus_after(plain: str, place: int) -> bool:
    """Whether a dash after a number is a sign: at the end of its cell, before a currency, or in its own cell."""
    if plain[place : place + 1] not in tuple(DASHES):
        return False
    if plain[skip(plain, place, -1) - 1 : place].strip(SPACES).startswith("|"):
        return is_sign_cell(plain, place)
    after = skip(plain, place + 1, 1)
    if plain[after : after + 1] in ("|", "\n", ")", ""):
        return True
    word = WORD_AFTER.match(plain, after)
    return bool(word and LIKE_CURRENCY.fullmatch(word["word"]))


def is_sign_cell(plain: str, at: int) -> bool:
    """Whether a cell has nothing but a sign, in a column that has neither numbers nor words."""
    low = max(0, at - TABLE)
    rows = plain[low : at + TABLE].split("\n")
    own = plain.count("\n", low, at)
    column = plain.count("|", plain.rfind("\n", low, at) + 1 or low, at)
    cells = [cells[column] for row in rows[low > 0 :] if column < len(cells := row.split("|"))]
    cell = rows[own].split("|")[column].strip(SPACES)
    return not set(cell) - set(DASHES + TRIANGLES) and not any(map(is_content, cells))


def is_content(cell: str) -> bool:
    words = re.findall(r"[^\W\d_]{3,}", cell.casefold())
    return any(map(str.isdecimal, cell)) or bool(words and not SIGN_HEADS & set(words))


def side_after(plain: str, start: int, end: int, *, is_amount: bool) -> Span | None:
    """Return the span of a number before `CR`, debit, and the like."""
    for text, low, high in words_after(plain, end):
        is_side = text.rstrip(".").casefold() in SIDES or (is_amount and text in ("H", "S"))
        if is_side and "\n" not in plain[end:low]:
            return start, high
    word = WORD_AFTER.match(plain, skip_cells(plain, end, 1))
    return (start, word.end()) if word and word["word"].casefold() in ("cr", "dr") else None


# ---- Scales ---------------------------------------------------------------------------------------------------------
SCALE_WORD = re.compile(SCALE, re.IGNORECASE)


@lru_cache(maxsize=20_000)
def scale_of(word: str) -> str:
    """Return the scale that a text starts with, or an empty text."""
    match = SCALE_WORD.match(word)
    return match.group() if match else ""


def scale_around(plain: str, start: int, end: int) -> tuple[str, Span] | None:
    """Return a scale word beside a number, also beyond its currency, with the span of both."""
    for word, _, high in words_after(plain, end):
        if scale := scale_of(word):
            return scale, (start, high - len(word) + len(scale))
        if not LIKE_CURRENCY.fullmatch(word):
            break
    for word, low in words_before(plain, start):
        if scale_of(word) == word and scales_of(word, "")[0] != ONE:
            return word, (low, end)
        if not LIKE_CURRENCY.fullmatch(word):
            break
    return None
