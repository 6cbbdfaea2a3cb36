"""Detection of signs, brackets, and scales around a number that are not directly attached to it.

Spaces, markup, cell bounds, a line break, or a currency may be in between. A reader sees `- **500.00**`,
`| (500.00 | ) |`, or `500 EUR million` as one amount. Such neighbors make a number ambiguous. `numbers` reads the
unambiguous notations.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from etl.postprocessors.citations.characters import FILLER
from etl.postprocessors.citations.units import (
    CODES,
    CURRENCY,
    CURRENCY_WORD,
    MINUS_WORDS,
    NUMBER_WORD,
    ONE,
    SCALE,
    SIDES,
    SYMBOLS,
    THAN,
    scales_of,
)

Span = tuple[int, int]
SPACES = f" \u00a0\t{FILLER}^\"'“”„«»"  # also footnote marks and quotation marks
GAP = rf"[{SPACES}]"
REACH = 300  # the maximum number of characters to skip
TABLE = 4_000  # characters of a table before and after a cell that are searched for its column
TRIANGLES = "△▲▽▼⁻˗₋÷⁃"  # minus signs, for example in Japanese and Danish accounts
DASHES = "-–—―‒−"
SHORT_SIDES = frozenset(("H", "S", "D", "C", "OD"))
COMMERCIAL_MINUS = re.compile(r"(?:\./\.|[-–—]/)\Z")  # `./. 500.00`, `-/500.00`
LABEL_OF_MINUS = re.compile(rf"(?:\./\.|(?P<word>[^\W\d_]{{3,20}}))(?![ .:]{{1,3}}(?:{THAN})\b)[^\d|]*(?:\|[^\d|]*)?\Z")
RATE = re.compile(r"\d+(?:[.,]\d+)?[ \u00a0]?%")
MAX_LABEL = 60
SIGN_HEADS = frozenset(re.findall(r"\w+", "sign vorzeichen signo signe segno"))
WORD_BEFORE = re.compile(rf"(?:[^\W\d_]{{1,20}}\.?)?[{SYMBOLS}]?\Z")
WORD_AFTER = re.compile(rf"{GAP}{{0,20}}\n?{GAP}{{0,20}}\(?(?P<word>[^\W\d_][^\s|\d,;:()/{FILLER}]{{0,15}})")
LIKE_CURRENCY = re.compile(rf"{CURRENCY}|[A-Z]{{2,4}}|[A-Z][A-Za-z]{{0,2}}[A-Z]|[A-Za-z]{{0,3}}[{SYMBOLS}]")
# The end of an amount in words or, after a word in the same cell, the code of a currency, and then at most one space or
# line break.
WORDED_AMOUNT = re.compile(
    rf"(?:(?<![^\W_])(?:{NUMBER_WORD}|{SCALE}|{CURRENCY_WORD})|[^\W\d_]{GAP}(?-i:{'|'.join(CODES)}))"
    rf"\.?{FILLER}*[ \u00a0\n]?{FILLER}*\Z",
    re.IGNORECASE,
)
# A word after one space. More spaces separate the columns of a table.
PROSE = re.compile(rf"{FILLER}*[,;]?[ \u00a0]{FILLER}*(?P<word>[^\W\d_]{{2,}})")
SHORT = 5  # letters; a longer unknown word with an attached sign or bracket is not a currency
SYMBOLS_OF_TEXT = frozenset("=|+^№©®✓✔●■►")
# Marks of bounds and estimates: `≤ 500.00`, `~500.00`.
QUALIFIERS = frozenset("<>≤≥≦≧⩽⩾≲≳≈≃≅≒~∼±≠")
ARROW_OR_QUOTE = re.compile(rf"(?:[-=–—]|(?:^|\n)[>{SPACES}]*)>\Z")


def skip(plain: str, position: int, step: int) -> int:
    """Return the first position from here that is next to text, after spaces, markup, and footnote marks."""
    limit = max(0, position - REACH) if step < 0 else min(len(plain), position + REACH)
    while position != limit and plain[position - (step < 0)] in SPACES:
        position += step
    return position


def skip_cells(plain: str, position: int, step: int) -> int:
    """Return the first position from here that is next to text, in this cell or in the next cell with text."""
    here = skip(plain, position, step)
    while plain[here - 1 : here] == "|" if step < 0 else plain[here : here + 1] == "|":
        here = skip(plain, here + step, step)
    return here


def is_of(char: str, category: str) -> bool:
    """Return whether a character's Unicode category starts with this text."""
    return bool(char) and unicodedata.category(char).startswith(category)


def is_symbol(char: str) -> bool:
    return is_of(char, "S") and not is_of(char, "Sc") and char not in SYMBOLS_OF_TEXT


def row_start(plain: str, position: int) -> int:
    return plain.rfind("\n", max(0, position - REACH), position) + 1 or max(0, position - REACH)


def is_qualified(plain: str, start: int) -> bool:
    """Return whether a number is a bound or an estimate, such as `< 5` or `≈ 5`. A `>` may also be an email quote."""
    for position, _ in positions_before(plain, start):
        mark = plain[position - 1 : position]
        if mark == "=" and plain[position - 2 : position - 1] in (*QUALIFIERS, "!"):
            return True
        if mark in QUALIFIERS and not ARROW_OR_QUOTE.search(plain, max(0, position - REACH), position):
            return True
    return False


# ---- Signs ----------------------------------------------------------------------------------------------------------
def sign_around(plain: str, start: int, end: int, *, is_amount: bool) -> Span | None:
    """Return the span of a number with its sign, brackets, or debit or credit mark, or None if it has none of them."""
    low = minus_before(plain, start, end)
    if low is not None:
        return low, end
    rights = list(positions_after(plain, end))
    for position, is_near in rights:
        if is_near and is_minus_after(plain, position):
            return start, position + 1
    lows = [*(position for position, _ in positions_before(plain, start)), line_above(plain, start)]
    highs = [*(position for position, _ in rights), line_below(plain, end)]
    brackets = brackets_around(plain, lows, highs, is_amount=is_amount)
    return brackets or side_after(plain, start, end, is_amount=is_amount)


def minus_before(plain: str, start: int, end: int) -> int | None:
    """Return the start of the sign before a number, or None. The sign is a mark or word beside it, in the line above,
    or in its label."""
    for position, is_attached in positions_before(plain, start):
        is_mark = plain[position - 1 : position] in ("/", ".")
        if is_mark and COMMERCIAL_MINUS.search(plain, max(0, position - 3), position):
            return position - 2
        if is_minus_before(plain, position - 1, start, end, is_attached=is_attached):
            return position - 1
    for word, low in words_before(plain, start):
        if word.casefold() in MINUS_WORDS:
            return low
    above = line_above(plain, start)
    return above - 1 if is_minus_above(plain, above) else label_of_minus(plain, start)


def line_above(plain: str, start: int) -> int:
    """Return the end of the line above if the number is the first text of its line, or 0."""
    here = skip(plain, start, -1)
    return skip(plain, here - 1, -1) if plain[here - 1 : here] == "\n" else 0


def line_below(plain: str, end: int) -> int:
    """Return the start of the line below if the number is the last text of its line, or 0."""
    here = skip(plain, end, 1)
    return skip(plain, here + 1, 1) if plain[here : here + 1] == "\n" else 0


def is_minus_above(plain: str, position: int) -> bool:
    """Return whether a line ends with a sign, as opposed to a hyphenated word or a line of dashes."""
    mark, before = plain[position - 1 : position], plain[position - 2 : position - 1]
    return mark in tuple(DASHES + TRIANGLES) and before in tuple(SPACES)


def label_of_minus(plain: str, start: int) -> int | None:
    """Return the start of a number's row if it starts with a word for minus, as in `Less: discount of 2 % 500.00`."""
    row = row_start(plain, start)
    label = RATE.sub("", plain[row:start].strip(SPACES + "|"))
    found = LABEL_OF_MINUS.match(label) if start - row <= MAX_LABEL else None
    if found is None or (found["word"] and found["word"].casefold() not in MINUS_WORDS):
        return None
    return row


def brackets_around(plain: str, lows: list[int], highs: list[int], *, is_amount: bool) -> Span | None:
    """Return the span of a number in brackets, or None. If it is an amount, the brackets may also contain a word."""
    first = next((each for each, position in enumerate(lows) if is_of(plain[position - 1 : position], "Ps")), None)
    last = next((each for each, position in enumerate(highs) if is_of(plain[position : position + 1], "Pe")), None)
    if first is None or last is None:
        return None
    opening, closing = lows[first] - 1, highs[last] + 1
    return (opening, closing) if is_amount or (plain[opening] == "(" and first + last == 0) else None


def is_prose_around(plain: str, opening: int, end: int) -> bool:
    """Return whether an amount in brackets may be in prose. It can repeat an amount in words: `ten dollars ($10.00)`.

    A number word or a currency precedes it, or a word follows it.
    """
    if WORDED_AMOUNT.search(plain, max(0, opening - MAX_LABEL), opening):
        return True
    word = PROSE.match(plain, end)
    return word is not None and not LIKE_CURRENCY.fullmatch(word["word"]) and word["word"].casefold() not in SIDES


def positions_before(plain: str, start: int) -> Iterator[tuple[int, bool]]:
    """Yield the position where the text before a number ends. If the number follows a short word, such as a currency,
    also yield the position where the text before the word ends. The flag is false if a space precedes the word."""
    here = skip_cells(plain, start, -1)
    yield here, True
    word = WORD_BEFORE.search(plain, max(0, here - 12), here)
    if word and word.group():
        far = skip_cells(plain, word.start(), -1)
        is_like = bool(LIKE_CURRENCY.fullmatch(word.group().rstrip(".")))
        if is_like or (far == word.start() and len(word.group()) <= SHORT):
            yield far, far == word.start()


def positions_after(plain: str, end: int) -> Iterator[tuple[int, bool]]:
    """Yield the position where the text after a number starts. If it starts with a word, also yield the position after
    the word. The flag is whether nothing but a currency is in between."""
    here = skip_cells(plain, end, 1)
    yield here, True
    if word := WORD_AFTER.match(plain, here):
        yield skip_cells(plain, word.end(), 1), bool(LIKE_CURRENCY.fullmatch(word["word"]))


def words_before(plain: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield the word before a number and its start and, if it may be a currency, also the word before it."""
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
    """Yield the word after a number and its bounds and, if it may be a currency, also the word after it."""
    for _ in range(2):
        word = WORD_AFTER.match(plain, end)
        if word is None:
            return
        end = word.end()
        yield word["word"], word.start("word"), end
        if not LIKE_CURRENCY.fullmatch(word["word"]):
            return


def is_minus_before(plain: str, position: int, start: int, end: int, *, is_attached: bool) -> bool:
    """Return whether a character before a number may be its sign, as opposed to a bullet, a hyphen, or the mark of an
    empty cell."""
    mark = plain[position : position + 1] if position >= 0 else ""
    if not mark or mark not in DASHES + TRIANGLES or not (is_attached or plain[position + 1 : position + 2] in SPACES):
        return False
    row = row_start(plain, position)
    if "|" in plain[position:start]:
        return is_sign_cell(plain, position)
    is_first = not plain[row:position].strip(SPACES)
    if is_first and mark == "-" and plain[position + 1 : position + 2] in SPACES:
        return not plain[end : end + REACH].partition("\n")[0].strip(SPACES + "|")
    return not (position + 1 == start and plain[position - 1 : position].isalnum()) and not (
        plain[position + 1 : position + 2].isalpha() and plain[position - 1 : position].isalnum()
    )


def is_minus_after(plain: str, position: int) -> bool:
    """Return whether a dash after a number is a sign: at the end of a cell, before a currency, or in the next cell."""
    if plain[position : position + 1] not in tuple(DASHES):
        return False
    if plain[skip(plain, position, -1) - 1 : position].strip(SPACES).startswith("|"):
        return is_sign_cell(plain, position)
    after = skip(plain, position + 1, 1)
    if plain[after : after + 1] in ("|", "\n", ")", ""):
        return True
    word = WORD_AFTER.match(plain, after)
    return bool(word and LIKE_CURRENCY.fullmatch(word["word"]))


def is_sign_cell(plain: str, position: int) -> bool:
    """Return whether a cell contains only a sign, and its column contains neither numbers nor words."""
    cell, cells = column_at(plain, position)
    return not set(cell) - set(DASHES + TRIANGLES) and not any(map(is_content, cells))


def column_at(plain: str, position: int) -> tuple[str, list[str]]:
    """Return the text of the cell at a position, and the texts of its column."""
    low = max(0, position - TABLE)
    rows = plain[low : position + TABLE].split("\n")
    own = plain.count("\n", low, position)
    column = plain.count("|", plain.rfind("\n", low, position) + 1 or low, position)
    cells = [cells[column].strip(SPACES) for row in rows[low > 0 :] if column < len(cells := row.split("|"))]
    return rows[own].split("|")[column].strip(SPACES), cells


def is_content(cell: str) -> bool:
    words = re.findall(r"[^\W\d_]{3,}", cell.casefold())
    return any(map(str.isdecimal, cell)) or bool(words and not SIGN_HEADS & set(words))


def side_after(plain: str, start: int, end: int, *, is_amount: bool) -> Span | None:
    """Return the span of a number with the debit or credit mark after it, such as `CR`, or None."""
    for text, low, high in words_after(plain, end):
        is_side = text.rstrip(".").casefold() in SIDES or (is_amount and text in SHORT_SIDES)
        if is_side and "\n" not in plain[end:low]:
            return start, high
    position = skip_cells(plain, end, 1)
    is_cell = "|" in plain[end:position] and plain[position : position + 1].isalpha()
    return (start, position + 1) if is_cell and is_side_cell(plain, position, is_amount=is_amount) else None


def is_side_cell(plain: str, position: int, *, is_amount: bool) -> bool:
    """Return whether a cell contains only a debit or credit mark. A letter is a mark only if its column contains no
    other letters, because S, M, and L may be sizes."""
    cell, cells = column_at(plain, position)
    if cell.rstrip(".").casefold() in SIDES:
        return True
    return is_amount and cell in SHORT_SIDES and {each for each in cells if 0 < len(each) <= 2} <= SHORT_SIDES  # noqa: PLR2004 - letters


# ---- Scales ---------------------------------------------------------------------------------------------------------
SCALE_WORD = re.compile(SCALE, re.IGNORECASE)


@lru_cache(maxsize=20_000)
def scale_of(word: str) -> str:
    """Return the scale word that a text starts with, or ""."""
    match = SCALE_WORD.match(word)
    return match.group() if match else ""


def scale_around(plain: str, start: int, end: int) -> tuple[str, Span] | None:
    """Return a scale word beside a number or its currency, and the span of both, or None."""
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
