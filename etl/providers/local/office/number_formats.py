"""Formatting of spreadsheet numbers and dates by their format codes (ECMA-376 part 1, 18.8.31).

Formats that depend on the language are written as in English. A built-in date format without a code is written as
YYYY-MM-DD, which is unambiguous.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal

from etl.providers.local.office.format_codes import TEXT, Token, number_sections, text_section

# Codes of the built-in formats. Files refer to them only by number.
BUILT_IN = {
    1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 14: "yyyy-mm-dd",
    15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss",
    22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)",
    40: "#,##0.00;(#,##0.00)", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0",
}  # fmt: skip
GENERAL = "General"
# The placeholders of a number, without the text between them. Each trailing comma divides by 1,000.
SHAPE = re.compile(r"(?P<whole>[#0?,]*?)(?P<scale>,*)(?P<point>\.(?P<fraction>[#0?]*)(?P<late_scale>,*))?")
EMPTY = {"0": "0", "?": " ", "#": ""}  # the text of a placeholder that has no digit to show
LITERALS = {"quoted", "other"}
SHOWN = {*LITERALS, "general"}
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_SECONDS = 86_400
# Excel counts the nonexistent 29 February 1900 as day 60, so later day numbers are one too high.
EPOCH, EPOCH_1904, FALSE_DAY = datetime(1899, 12, 30), datetime(1904, 1, 1), 60  # noqa: DTZ001 - cells have no time zone
MAX_CODE = 255  # characters
# Limits the memory for formatting a number. Spreadsheet programs do not store larger exponents.
MAX_EXPONENT = 308
MAX_DIGITS = 20  # larger numbers are not rounded
DIGITS = Context(prec=1_000)


def display(value: str, code: str, *, is_1904: bool = False) -> str:
    """Return a number formatted by a format code, or in the format General if the code is not supported."""
    try:
        amount = Decimal(value)
    except ArithmeticError:
        return value
    if not amount.is_finite() or abs(amount.adjusted()) > MAX_EXPONENT:
        return value
    if code.lower() == "general" or len(code) > MAX_CODE:
        return format_general(amount)
    try:
        section = next((each for each in number_sections(code) if each.includes(amount)), None)
    except ValueError:
        section = None
    if section is None or not section.tokens:
        return format_general(amount) if code.strip(";") else ""  # `;;;` hides every value
    return format_number(section.tokens, abs(amount) if section.has_sign else amount, is_1904=is_1904)


def format_number(tokens: Sequence[Token], amount: Decimal, *, is_1904: bool) -> str:
    kinds = {kind for kind, _ in tokens}
    if kinds & {"date", "elapsed"}:
        return format_general(amount) if "number" in kinds else format_date(tokens, amount, is_1904=is_1904)
    return format_digits(tokens, amount) if "number" in kinds else format_words(tokens, amount)


def display_text(text: str, code: str) -> str:
    """Return a text formatted by a format code, which may add words around `@`."""
    found = text_section(code) if len(code) <= MAX_CODE else ()
    return "".join(text if each == TEXT else each[1] for each in found if each[0] in LITERALS) or text


def format_general(amount: Decimal) -> str:
    """Return a number in the format General: at most 11 significant digits below 1e11, otherwise at most 15."""
    value = float(f"{amount:.15g}")
    text = f"{value:.11g}" if abs(value) < 1e11 else f"{value:.15g}"  # noqa: PLR2004 - digits of a cell
    return f"{Decimal(text):f}" if "e" in text and abs(amount.adjusted()) < 21 else text  # noqa: PLR2004 - as Excel


# ---- Numbers --------------------------------------------------------------------------------------------------------
def format_words(tokens: Sequence[Token], amount: Decimal) -> str:
    """Format a number with a section without digit placeholders. The number replaces `General` or `@`."""
    number = format_general(abs(amount))
    shown = [number if each == TEXT or each[0] == "general" else each[1] for each in tokens if each[0] in SHOWN]
    return f"{'-' if amount < 0 and number in shown else ''}{''.join(shown).strip()}"


def format_digits(tokens: Sequence[Token], amount: Decimal) -> str:
    """Format a number with digit placeholders, which may have text between them, as in `000-00-0000`."""
    shape = SHAPE.fullmatch("".join(piece for kind, piece in tokens if kind == "number"))
    marks = [piece for kind, piece in tokens if kind == "other"]
    exponents = [piece for kind, piece in tokens if kind == "exponent"]
    if shape is None or "/" in marks or len(exponents) > 1:  # fractions and unusual codes are not supported
        return format_general(amount)
    scaled = amount.scaleb(2 * marks.count("%") - 3 * len(shape["scale"] + (shape["late_scale"] or "")))
    whole, fraction = shape["whole"], shape["fraction"] or ""
    power = exponent(scaled, max(len(whole.replace(",", "")), 1), len(fraction)) if exponents else 0
    number = round_absolute(scaled.scaleb(-power), len(fraction))
    digits = iter(fill_placeholders(f"{number:f}", whole, fraction, has_point=bool(shape["point"])))
    text = ""
    for kind, piece in tokens:
        if kind == "number":
            text += "".join(next(digits) for place in piece if place != ",")
        elif kind == "exponent":
            sign = "-" if power < 0 else piece[1].replace("-", "")
            text += f"E{sign}{abs(power):0{len(piece) - 2}}"
        elif kind in LITERALS:
            text += piece
    return f"{'-' if amount < 0 and number else ''}{text.strip()}"


def exponent(amount: Decimal, width: int, places: int) -> int:
    """Return the exponent for a mantissa of at most `width` digits before the point. It is a multiple of `width`."""
    power = amount.adjusted() // width * width if amount else 0
    is_next = round_absolute(abs(amount.scaleb(-power)), places) >= 10**width
    return power + width if is_next else power


def round_absolute(amount: Decimal, places: int) -> Decimal:
    """Return the absolute value, rounded to `places` decimal places."""
    if amount.adjusted() >= MAX_DIGITS:
        return abs(amount)
    return abs(amount.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP, context=DIGITS))


def fill_placeholders(number: str, whole: str, fraction: str, *, has_point: bool) -> list[str]:
    """Return the text for each placeholder, from left to right: integer digits, the point, and decimals."""
    digits, _, decimals = number.partition(".")
    digits = digits.lstrip("0")
    after = decimals_shown(decimals, fraction)
    point = "." if any(after) or not fraction else ""
    before = digits_shown(digits, whole) if whole else []
    return [*before, *([point if whole else f"{digits}{point}"] if has_point else []), *after]


def digits_shown(digits: str, whole: str) -> list[str]:
    """Return the text for each placeholder before the point. The first one also takes all excess digits."""
    places = whole.replace(",", "")
    digits = digits.rjust(len(places), "#")
    more = len(digits) - len(places)
    shown = []
    for at, (digit, place) in enumerate(zip(digits, places[0] * more + places, strict=True)):
        text = EMPTY[place] if digit == "#" else digit
        left = len(digits) - 1 - at
        shown.append(f"{text}," if "," in whole and left and left % 3 == 0 and text.strip() else text)
    return ["".join(shown[: more + 1]), *shown[more + 1 :]]


def decimals_shown(decimals: str, fraction: str) -> list[str]:
    """Return the text for each placeholder after the point."""
    shown = list(decimals.ljust(len(fraction), "0")[: len(fraction)])
    for at in reversed(range(len(fraction))):
        if fraction[at] == "0" or shown[at] != "0":
            break
        shown[at] = ""
    return shown


# ---- Dates ----------------------------------------------------------------------------------------------------------
def format_date(parts: Sequence[Token], amount: Decimal, *, is_1904: bool) -> str:
    epoch = EPOCH_1904 if is_1904 else EPOCH
    end = datetime.max - epoch  # noqa: DTZ901 - 31 December 9999
    if not 0 <= amount < end.days + 1:
        return format_general(amount)
    days = int(amount)
    has_fraction = any(kind == "date" and "." in text for kind, text in parts)
    seconds = float(amount - days) * DAY_SECONDS
    moment = timedelta(days=days, seconds=round(seconds, 3) if has_fraction else round(seconds))
    late = timedelta(days=not is_1904 and days < FALSE_DAY)
    at = epoch + min(moment + late, end)  # rounding up must not exceed the last day
    is_12_hours = any(kind == "ampm" for kind, _ in parts)
    text, before = "", ""
    for index, (kind, piece) in enumerate(parts):
        if kind == "elapsed":
            text += str(elapsed(piece, moment))
        elif kind == "ampm":
            text += "AM" if at.hour < 12 else "PM"  # noqa: PLR2004 - noon
        elif kind == "date":
            is_minutes = piece[0] in "mM" and (before in {"h", "H"} or next_unit(parts, index) in {"s", "S"})
            text += format_unit(piece.lower(), at, is_minutes=is_minutes, is_12_hours=is_12_hours)
        elif kind in LITERALS:
            text += piece
        before = piece[0] if kind in {"date", "elapsed"} else before
    return text.strip()


def next_unit(parts: Sequence[Token], index: int) -> str:
    return next((piece[0] for kind, piece in parts[index + 1 :] if kind == "date"), "")


def elapsed(piece: str, moment: timedelta) -> int:
    return int(moment.total_seconds()) // {"h": 3600, "m": 60, "s": 1}[piece[0].lower()]


def format_unit(piece: str, at: datetime, *, is_minutes: bool, is_12_hours: bool) -> str:
    length = len(piece)
    if piece[0] == "y":
        return f"{at.year % 100:02}" if length <= 2 else f"{at.year:04}"  # noqa: PLR2004 - yy
    if piece[0] == "m" and not is_minutes:
        name = MONTHS[at.month - 1]
        return {3: name[:3], 4: name, 5: name[:1]}.get(length) or str(at.month).zfill(length)
    if piece[0] == "d":
        name = DAYS[at.weekday()]
        return {3: name[:3]}.get(length) or (name if length > 3 else str(at.day).zfill(length))  # noqa: PLR2004 - ddd
    if piece[0] == "h":
        return str((at.hour - 1) % 12 + 1 if is_12_hours else at.hour).zfill(length)
    if piece[0] == "m":
        return str(at.minute).zfill(length)
    whole, _, fraction = piece.partition(".")
    text = str(at.second).zfill(len(whole))
    return f"{text}.{at.microsecond:06}"[: len(text) + 1 + len(fraction)] if fraction else text
