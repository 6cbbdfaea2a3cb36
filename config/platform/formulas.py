"""Detection of text cells in CSV files that a spreadsheet would run as formulas (CSV injection).

Spreadsheets trim white space, split cells at line breaks, and accept full-width signs. The patterns treat other
invisible characters, and control characters, as white space. They are valid in Postgres and in Python.
"""

import re

# Inclusive ranges of characters that may precede a formula.
IGNORABLE = (
    (0x01, 0x20), (0x7F, 0xA0), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x1680, 0x1680),
    (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F), (0x2800, 0x2800),
    (0x3000, 0x3000), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
SIGNS = "=+@-\ufe62\ufe63\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20"
LINE_BREAKS = "\t\r\n"  # also tabs, at which spreadsheets split pasted text
# Numbers may start with the same signs, but are not formulas. `character(n)` pads them.
NUMBER = r"^[+-]?([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)? *$"


def pattern() -> str:
    ignorable = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in IGNORABLE)
    starts = "".join(rf"\U{ord(each):08x}" for each in SIGNS + LINE_BREAKS)
    return f"^[{ignorable}]*[{starts}]"


FORMULA = pattern()


def escaped(text: str) -> str:
    """Return the text of a cell, with a leading apostrophe if a spreadsheet would run it."""
    return f"'{text}" if re.match(FORMULA, text) and not re.fullmatch(NUMBER, text) else text
