"""Equivalent characters, word boundaries, and removal of markup. Replacements keep all positions in a text."""

import html
import re
import unicodedata

TAG = re.compile(r"<[a-zA-Z/][^<>\n]{0,300}>")
CELL_TAG = re.compile(r"</?t([dhr])\b[^<>\n]{0,300}>", re.IGNORECASE)
SUPERSCRIPT = re.compile(r"<sup>([^<>\n]{0,20})</sup>", re.IGNORECASE)
ENTITY = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{1,5}|#x[\da-fA-F]{1,4});")
MARKUP = re.compile(r"[*`\\]|~~")
TILDES = re.compile(r"(?<!\w)~(?=\S)([^~\n]{1,100}?)(?<![\s,;(])~(?![\w~])")  # pairs; a single tilde means "about"
# Struck-through text. `DocumentText` contains `< s >` instead of `<s>`. Python before 3.11.5 matches possessive groups,
# such as `(?:…)++`, incorrectly.
STRUCK = re.compile(r"~~(?=\S)(?:(?!~~).)+~~|< ?(del|s|strike)\b[^<>\n]{0,100}>[^\n]{1,300}?< ?/ ?\1 ?>", re.IGNORECASE)
FILLER = "\u2060"  # replaces markup that must not become a space
FOOTNOTE = re.compile(r"\[\^[^\]\n]{1,20}\]")
MINUSES = "−‐‑‒﹣－"
WIDE_SPACES = " \u2002\u2003\u3000"  # spaces that separate words
FRACTIONS = {
    "½": "0.5",
    "¼": "0.25",
    "¾": "0.75",
    "⅕": "0.2",
    "⅖": "0.4",
    "⅗": "0.6",
    "⅘": "0.8",
    "⅛": "0.125",
    "⅜": "0.375",
    "⅝": "0.625",
    "⅞": "0.875",
}
UNSPACED_SCRIPTS = (
    ("\u2e80", "\udfff"),
    ("\uf900", "\U0010ffff"),
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
)
# Characters that join words if letters or digits are on both sides, as in `INV-2024-17` and `info@acme.com`.
JOINERS = "-–_@.'’&+"
URL_JOINERS = JOINERS + "/?#=%:"
WIDE = 0xFEE0  # the offset from ASCII characters to their full-width forms
NUMBER_JOINERS = JOINERS + "/:,"


class AsciiTable(dict[int, int]):
    """A table for `str.translate` that maps digits, signs, and wide spaces to ASCII. Other spaces become no-break
    spaces, and footnote marks become `^`."""

    def __missing__(self, code: int) -> int:
        self[code] = made = ord(to_ascii(chr(code)))
        return made


def to_ascii(char: str) -> str:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if char in MINUSES:
        return "-"
    if unicodedata.category(char) == "Zs":
        return " " if char in WIDE_SPACES else "\u00a0"
    if char in "’ʼ‘＇":
        return "'"
    if is_mark(char):
        return "^"
    return chr(ord(char) - WIDE) if "\uff01" <= char <= "\uff5e" else char


def is_mark(char: str) -> bool:
    """Return whether a character is a superscript or circled digit, which marks a footnote or an exponent."""
    return unicodedata.category(char) == "No" and unicodedata.decomposition(char).startswith(("<super>", "<circle>"))


ASCII_TABLE = AsciiTable()


def blank_tags(text: str) -> str:
    """Replace HTML tags with spaces, because their attributes are not words of the document."""
    return TAG.sub(blank, text) if "<" in text else text


def search_text(text: str, filler: str = " ") -> str:
    """Return a text to search for numbers and dates, without tags and footnotes, and with ASCII digits and signs."""
    if "<" in text:
        text = CELL_TAG.sub(lambda tag: " " * (len(tag.group()) - 1) + ("\n" if tag[1] in "rR" else "|"), text)
        text = SUPERSCRIPT.sub(lambda mark: superscript_marks(mark[1]).ljust(len(mark.group()), filler), text)
        text = TAG.sub(lambda tag: filler * len(tag.group()), text)
    if "[^" in text:
        text = FOOTNOTE.sub(blank, text)
    if "&" in text:
        text = ENTITY.sub(lambda entity: plain_entity(entity, filler), text)
    return text.translate(ASCII_TABLE)


def without_markup(text: str) -> str:
    """Return a text to search for numbers, in which fillers replace tags and Markdown."""
    text = MARKUP.sub(lambda mark: FILLER * len(mark.group()), search_text(text, FILLER))
    return TILDES.sub(lambda marked: f"{FILLER}{marked[1]}{FILLER}", text) if "~" in text else text


def superscript_marks(text: str) -> str:
    """Return a footnote mark for each superscript digit, and at least one. Two of them may be cents."""
    return "^" * max(1, sum(map(str.isdecimal, text)))


def plain_entity(entity: re.Match[str], filler: str) -> str:
    """Return the character of an HTML entity, padded to the length of the entity."""
    char = html.unescape(entity.group())
    return char.rjust(len(entity.group()), filler) if len(char) == 1 else entity.group()


def blank(match: re.Match[str]) -> str:
    return " " * len(match.group())


# ---- Word bounds ----------------------------------------------------------------------------------------------------
def is_wordlike(char: str) -> bool:
    """Return whether a character is part of a word. Footnote marks are not."""
    if char.isascii():
        return char.isalnum()
    return (char.isalnum() and not is_mark(char)) or "\ue000" <= char <= "\uefff"  # `folding` maps exponents to these


def has_no_bounds(char: str) -> bool:
    """Return whether a character belongs to a script without spaces between words, as in East and Southeast Asia, or to
    another script in the same ranges, such as Korean."""
    return any(first <= char <= last for first, last in UNSPACED_SCRIPTS)


def is_inside_word(before: str, after: str) -> bool:
    """Return whether a position between these two characters is inside a word."""
    if not before or not after:
        return False
    if unicodedata.combining(after):
        return True
    if not (is_wordlike(before) and is_wordlike(after)):
        return False
    return not (has_no_bounds(before) or has_no_bounds(after))


def cuts(text: str, start: int, end: int) -> tuple[bool, bool]:
    """Return whether `text[start:end]` starts or ends inside a word or number, and inside a compound such as
    `INV-2024-17`."""
    joiners = URL_JOINERS if "://" in text[start:end] else JOINERS
    edges = [cut_kind(text, start, start, -1, joiners), cut_kind(text, end - 1, end, 1, joiners)]
    return "word" in edges, "compound" in edges


def cut_kind(text: str, inside: int, bound: int, step: int, joiners: str = JOINERS) -> str:
    """Return what a bound cuts: "word", "compound", or "" for nothing. `step`: -1 for a start, 1 for an end."""
    inner, outer = text[inside : inside + 1], text[bound - 1 : bound] if step < 0 else text[bound : bound + 1]
    if is_inside_word(*((outer, inner) if step < 0 else (inner, outer))):
        return "word"
    if not is_wordlike(inner) or has_no_bounds(inner) or not outer:
        return ""
    far = text[bound - 2 : bound - 1] if step < 0 else text[bound + 1 : bound + 2]
    if inner.isdecimal() and far.isdecimal() and outer in ".,'’٫٬":
        return "word"
    joiners = NUMBER_JOINERS if inner.isdecimal() and joiners == JOINERS else joiners
    is_joined = outer in joiners and bool(far) and is_wordlike(far)
    if outer in ",:" and not far.isdecimal():
        return ""
    return "compound" if is_joined else ""
