"""Detection of the character encoding of a text.

The byte order mark decides. Without one, the text is UTF-8 if it is valid UTF-8. Otherwise, the encoding is guessed.
"""

import codecs
import re
import unicodedata

from charset_normalizer import from_bytes

from etl.core.errors import FileCorrupt

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, because this mark begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
BYTE_ORDER_MARKS = tuple(mark for mark, _ in MARKS)
MAX_ASCII = 127
SAMPLE = 32_768  # bytes that are examined
# For UTF-16 without a mark: the minimum number of bytes, and the maximum share of printable ASCII bytes. Content with a
# larger share is ASCII with a few other bytes.
MIN_WIDE, MAX_NARROW = 16, 0.8
PRINTABLE = frozenset(range(32, 127)).__contains__
WIDE = ("utf_16_le", "utf_16_be")
WESTERN = "cp1252"
# Characters that do not occur in text: control characters except tabs, line ends, form feeds, and ESC. Vertical
# tabs are allowed, too: some databases export them as the line ends within cells.
# https://mimesniff.spec.whatwg.org/#binary-data-byte
CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Maximum share of control characters in a text, and a number that is always accepted: text from PDFs has some, and DOS
# files end with one.
MAX_CONTROLS, FEW_CONTROLS = 0.001, 2
# Common encodings. Of several that are equally likely, the first is used. UTF-16 is last, because almost any bytes are
# valid in it. Without this list, short texts would often be detected as a rare encoding that is similar.
COMMON = (
    "cp1252", "cp1250", "cp1253", "cp1251", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r", "iso8859_2",
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp874", *WIDE,
)  # fmt: skip
# Maximum differences of noise and coherence at which the Western encoding is preferred to the best match.
NOISE, COHERENCE = 0.05, 0.1
# Unicode categories that do not occur in text: unassigned, private use, and surrogates.
NOT_TEXT = frozenset({"Cn", "Co", "Cs"})


def detect(content: bytes) -> str | None:
    """Return the encoding of a text, or None if it is unknown. The beginning of the text is enough."""
    for mark, name in MARKS:
        if content.startswith(mark):
            return name
    return "utf-8" if is_utf_8(content) else guess(sample(content))


def is_utf_8(content: bytes) -> bool:
    """Return whether the content is UTF-8. Its last character may be incomplete.

    Content with many control characters is not accepted: ASCII text in UTF-16 is valid UTF-8 with many null characters.
    """
    try:
        return not is_binary(codecs.getincrementaldecoder("utf-8")().decode(content, final=False))
    except UnicodeDecodeError:
        return False


def is_binary(text: str) -> bool:
    return "\0" in text or len(CONTROL.findall(text)) > max(FEW_CONTROLS, MAX_CONTROLS * len(text))


def without_controls(text: str) -> str:
    """Remove the control characters that do not occur in text. Vertical tabs become spaces."""
    return CONTROL.sub("", text.replace("\v", " "))


def guess(content: bytes) -> str | None:
    """Return the encoding with the least noise, or the Western one if it is nearly as good.

    Of equal ones, return the first in COMMON.
    """
    encodings_by_length: dict[int, list[str]] = {}
    for encoding in COMMON:
        encodings_by_length.setdefault(complete_length(content, encoding), []).append(encoding)
    found = sorted(
        match
        for length, encodings in encodings_by_length.items()
        if length
        for match in from_bytes(content[:length], cp_isolation=encodings)
    )
    matches = [each for each in found if is_possible(content, each.encoding)]
    if not matches:
        return None
    best = matches[0]
    if best.encoding in WIDE:
        return best.encoding
    alike = [each.encoding for each in matches if (each.chaos, each.coherence) == (best.chaos, best.coherence)]
    western = next((each for each in matches if each.encoding == WESTERN), None)
    if western and western.chaos <= best.chaos + NOISE and western.coherence >= best.coherence - COHERENCE:
        return WESTERN
    return min(alike, key=COMMON.index)


def complete_length(content: bytes, encoding: str) -> int:
    """Return the length of the content without an incomplete last character, in bytes."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    decoder.decode(content)
    return len(content) - len(decoder.getstate()[0])


def is_possible(content: bytes, encoding: str) -> bool:
    """Return whether the decoded content has only characters that occur in text.

    Valid bytes alone prove little: almost any bytes are valid UTF-16.
    """
    if encoding in WIDE and (len(content) < MIN_WIDE or sum(map(PRINTABLE, content)) > MAX_NARROW * len(content)):
        return False
    text = content[: len(content) // 2 * 2 if encoding in WIDE else None].decode(encoding, "replace")
    if encoding not in WIDE:
        return not is_binary(text)
    return not CONTROL.search(text) and not any(
        unicodedata.category(each) in NOT_TEXT or each == "\ufffd" for each in text
    )


def sample(content: bytes) -> bytes:
    """Return the part of the content to examine.

    This is its beginning or, if that is ASCII, the part around the first byte that is not. It never begins within a
    character, but may end within one if the text has no line ends.
    """
    if len(content) <= SAMPLE:
        return content
    start = 0
    if content[:SAMPLE].isascii() and not content.isascii():
        start = max(0, next((at for at, byte in enumerate(content) if byte > MAX_ASCII), 0) - SAMPLE // 2)
    start -= start % 2
    end = content.rfind(b"\n", start, start + SAMPLE) + 1 or start + SAMPLE
    return content[start : end - end % 2] if end - start > SAMPLE // 2 + 2 else content[start : start + SAMPLE]


def decode(content: bytes) -> str:
    """Decode a text in its detected encoding, without control characters. Raises FileCorrupt."""
    encoding = detect(content)
    if encoding is None:
        raise FileCorrupt
    try:
        return without_controls(content.decode(encoding))
    except UnicodeDecodeError:
        if encoding.startswith("utf"):
            raise FileCorrupt from None
        return without_controls(content.decode(encoding, "replace"))
