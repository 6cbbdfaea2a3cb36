"""Numbers and dates of spreadsheets as they are displayed, by their format codes (ECMA-376 part 1, 18.8.31).

A format that depends on the reader's language is written as in English; a built-in date without a format of its own is
written YYYY-MM-DD, which is unambiguous.
"""

import re
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache

# The built-in formats that every program knows by their numbers, without a code in the file.
BUILT_IN = {
    1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 14: "yyyy-mm-dd",
    15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss",
    22: "yyyy-mm-dd h:mm", 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)",
    40: "#,##0.00;(#,##0.00)", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0",
}  # fmt: skip
GENERAL = "General"
TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[(?P<elapsed>h+|m+|s+)\]|\[[^\]]*\]'
    r"|[_*].|(?P<ampm>AM/PM|A/P)|(?P<date>y+|m+|d+|h+|s+(?:\.0+)?)|(?P<number>[#0?][#0?,]*(?:\.[#0?]*)?(?:E[+-]0+)?"
    r"|\.[#0?]+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_SECONDS = 86_400
# Excel counts 29 February 1900, which did not exist, as day 60, so later day numbers are one too high.
EPOCH, EPOCH_1904, FALSE_DAY = datetime(1899, 12, 30), datetime(1904, 1, 1), 60  # noqa: DTZ001 - cells have no time zone
MAX_DAYS = 2_958_466  # 31 December 9999
MAX_CODE = 255  # characters
# Writing larger numbers could take any amount of memory. Programs do not store them.
MAX_EXPONENT = 308
MAX_DIGITS = 20  # of numbers that are rounded
DIGITS = Context(prec=1_000)


def display(value: str, code: str, *, is_1904: bool = False) -> str:
    """Return a number formatted by a format code, or unchanged if that is not possible."""
    try:
        amount = Decimal(value)
    except ArithmeticError:
        return value
    if not amount.is_finite() or abs(amount.adjusted()) > MAX_EXPONENT:
        return value
    if code.lower() == "general" or len(code) > MAX_CODE:
        return general(amount)
    section, amount = choose(sections(code), amount)
    parts = tokens(section)
    if any(kind in {"date", "elapsed"} for kind, _ in parts):
        return dated(parts, amount, is_1904=is_1904)
    if any(kind == "number" for kind, _ in parts):
        return numeric(section, parts, amount)
    return "".join(text for kind, text in parts if kind in {"quoted", "other"}).replace("@", general(amount)).strip()


@lru_cache(maxsize=1_000)
def tokens(section: str) -> list[tuple[str, str]]:
    """Return the tokens of a section: kind and text. Conditions, colors, and padding are left out."""
    found = []
    for match in TOKEN.finditer(section):
        kind, text = match.lastgroup, match[match.lastgroup or 0]
        if kind in {"escaped", "currency"}:
            kind = "quoted"
        if kind == "other" and section[match.start() :].lower().startswith("general"):
            kind = "number"
        if kind is not None:
            found.append((kind, text))
    return found


@lru_cache(maxsize=1_000)
def sections(code: str) -> list[str]:
    """Split a code at semicolons that are not text."""
    found, part, at = [], "", 0
    for match in re.finditer(r'"[^"]*"|\\.|\[[^\]]*\]|;', code, re.DOTALL):
        if match[0] == ";":
            found.append(part + code[at : match.start()])
            part, at = "", match.end()
    return [*found, code[at:]]


def choose(found: list[str], amount: Decimal) -> tuple[str, Decimal]:
    """Return the section for a number, and the number without the sign that the section writes itself."""
    if amount < 0 and len(found) > 1 and found[1]:
        return found[1], -amount
    if amount == 0 and len(found) > 2 and found[2]:  # noqa: PLR2004 - positive, negative, zero
        return found[2], amount
    return found[0], amount


def general(amount: Decimal) -> str:
    """Return a number with at most 11 digits after its integer part, as cells without a format show it."""
    rounded = float(f"{amount:.15g}")
    text = f"{rounded:.11g}" if abs(rounded) < 1e11 else f"{rounded:.15g}"  # noqa: PLR2004 - digits of a cell
    return f"{Decimal(text):f}" if "e" in text and abs(amount.adjusted()) < 21 else text  # noqa: PLR2004 - as Excel


# ---- Numbers --------------------------------------------------------------------------------------------------------
def numeric(section: str, parts: list[tuple[str, str]], amount: Decimal) -> str:
    if "/" in section and "%" not in section:
        return general(amount)  # a fraction
    if "%" in (text for kind, text in parts if kind == "other"):
        amount *= 100 ** section.count("%")
    shape = "".join(text for kind, text in parts if kind == "number")
    is_written, text = False, ""
    for kind, piece in parts:
        if kind == "number" and not is_written:
            is_written = True
            text += shaped(abs(amount), shape)
        elif kind in {"quoted", "other"}:
            text += piece
    sign = "-" if amount < 0 and re.search(r"[1-9]", text) else ""
    return f"{sign}{text.strip()}"


def shaped(amount: Decimal, shape: str) -> str:
    """Format a positive number by a shape such as `#,##0.00`."""
    if shape.lower() == GENERAL[0].lower():  # `tokens` marks only its first letter as a number
        return general(amount)
    if match := re.search(r"\.?([0#?]*)E([+-])(0+)$", shape, re.IGNORECASE):
        text = f"{amount:.{len(match[1])}E}"
        mantissa, _, exponent = text.partition("E")
        return f"{mantissa}E{exponent[0]}{exponent[1:].zfill(len(match[3]))}"
    whole, _, fraction = shape.partition(".")
    scale = len(whole) - len(whole.rstrip(","))
    amount = amount.scaleb(-3 * scale)
    places = len(fraction.rstrip(","))
    is_short = amount.adjusted() < MAX_DIGITS
    step = Decimal(1).scaleb(-places)
    rounded = amount.quantize(step, rounding=ROUND_HALF_UP, context=DIGITS) if is_short else amount
    digits, _, decimals = f"{rounded:f}".partition(".")
    optional = len(fraction) - len(fraction.rstrip("#?,"))
    while optional and decimals.endswith("0"):
        decimals, optional = decimals[:-1], optional - 1
    digits = digits.lstrip("0").zfill(whole.count("0"))
    if "," in whole.rstrip(","):
        digits = f"{int(digits):,}" if digits else ""
    return f"{digits}.{decimals}" if decimals else digits or "0"


# ---- Dates ----------------------------------------------------------------------------------------------------------
def dated(parts: list[tuple[str, str]], amount: Decimal, *, is_1904: bool) -> str:
    if not 0 <= amount < MAX_DAYS:
        return general(amount)
    days = int(amount)
    has_fraction = any(kind == "date" and "." in text for kind, text in parts)
    seconds = float(amount - days) * DAY_SECONDS
    moment = timedelta(days=days, seconds=round(seconds, 3) if has_fraction else round(seconds))
    late = timedelta(days=not is_1904 and days < FALSE_DAY)
    at = (EPOCH_1904 if is_1904 else EPOCH) + moment + late
    is_12_hours = any(kind == "ampm" for kind, _ in parts)
    text, before = "", ""
    for index, (kind, piece) in enumerate(parts):
        if kind == "elapsed":
            text += str(elapsed(piece, moment))
        elif kind == "ampm":
            text += "AM" if at.hour < 12 else "PM"  # noqa: PLR2004 - noon
        elif kind == "date":
            is_minutes = piece[0] in "mM" and (before in {"h", "H"} or next_unit(parts, index) in {"s", "S"})
            text += unit(piece.lower(), at, is_minutes=is_minutes, is_12_hours=is_12_hours)
        elif kind in {"quoted", "other"}:
            text += piece
        before = piece[0] if kind in {"date", "elapsed"} else before
    return text.strip()


def next_unit(parts: list[tuple[str, str]], index: int) -> str:
    return next((piece[0] for kind, piece in parts[index + 1 :] if kind == "date"), "")


def elapsed(piece: str, moment: timedelta) -> int:
    return int(moment.total_seconds()) // {"h": 3600, "m": 60, "s": 1}[piece[0].lower()]


def unit(piece: str, at: datetime, *, is_minutes: bool, is_12_hours: bool) -> str:
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
