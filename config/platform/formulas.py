"""Detection of text cells in CSV files that a spreadsheet would run as a formula (CSV injection).

Spreadsheets trim white space, split cells at line breaks, and accept full-width signs. The patterns treat other
invisible characters, and control characters, as white space. They are valid in Postgres and in Python.
"""

import re

FORMULA = r"^[\s\u0001-\u001f\u007f]*([=+@-]|[\t\r\n])"
FORMULA_IN_UNICODE = (
    r"^[\s\u0001-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]*"
    r"([=+@\ufe62\ufe63\ufe66\ufe6b\uff0b\uff0d\uff1d\uff20-]|[\t\r\n])"
)
# Numbers may start with the same signs, but are not formulas.
NUMBER = r"^[+-]?([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def escaped(text: str) -> str:
    """Return the text of a cell, with a leading apostrophe if a spreadsheet would run it."""
    return f"'{text}" if re.match(FORMULA_IN_UNICODE, text) and not re.fullmatch(NUMBER, text) else text
