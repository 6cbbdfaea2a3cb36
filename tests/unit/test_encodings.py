"""Detection of text encodings (B28)."""

import os

import pytest

from etl.core import encodings
from etl.core.errors import FileCorrupt

GERMAN = "Sehr geehrte Damen und Herren, für die Lieferung vom 3. März berechnen wir 1.234,50 €. Grüße, Jürgen Müller"
RUSSIAN = "Счёт-фактура № 15 от 3 марта 2024 г. Сумма к оплате: 1 234,50 руб."
TELUGU = "ఇన్వాయిస్ సంఖ్య 12 మొత్తం చెల్లించవలసినది రూపాయలు 1234"
POLISH = "Zażółć gęślą jaźń. Faktura VAT nr 12/2024, wartość brutto: 123,45 zł"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "utf-8"), (GERMAN, "utf-8-sig"), (GERMAN, "cp1252"), (GERMAN, "utf-16"), (GERMAN, "utf-16-le"),
        (GERMAN, "utf-32"), (POLISH, "cp1250"), (RUSSIAN, "cp1251"), (RUSSIAN.replace("№", "N"), "koi8-r"),
        (RUSSIAN, "utf-16-be"), (TELUGU, "utf-16-le"), (TELUGU, "utf-16-be"),
        ("発票番号は１２です。合計は千円です。", "shift_jis"),
        ("发票号码十二。总金额为一千二百三十四元。", "gb18030"), ("发票号码十二。总金额", "gb18030"),
    ],
)  # fmt: skip
def test_a_text_is_decoded_in_its_encoding(text: str, encoding: str) -> None:
    """B28"""
    assert encodings.decode(text.encode(encoding)) == text
    assert encodings.decode("\n".join([text] * 3_000).encode(encoding)) == "\n".join([text] * 3_000)


def test_a_character_near_the_end_can_determine_the_encoding() -> None:
    """The beginning of a long text may be pure ASCII."""
    text = "a line\n" * 20_000 + GERMAN
    assert encodings.decode(text.encode("cp1252")) == text


@pytest.mark.parametrize("encoding", ["shift_jis", "euc_jp"])
def test_a_long_line_is_decoded_although_the_sample_ends_within_a_character(encoding: str) -> None:
    text = "A" + "発票番号は１２です。合計は千円です。" * 3_000
    assert encodings.decode(text.encode(encoding)) == text


@pytest.mark.parametrize("content", [b"words \xff\xfe\x00\x01", b"text, and then \0", b"\x89\0\0\x01" * 9])
def test_binary_content_is_not_text(content: bytes) -> None:
    with pytest.raises(FileCorrupt):
        encodings.decode(content)


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_few_control_characters_are_removed(encoding: str) -> None:
    """Text from PDFs often has some, and DOS files end with one."""
    content = f"{GERMAN} Zusam\x02\nmen\x0bfassung\n\x1a".encode(encoding)
    assert encodings.decode(content) == f"{GERMAN} Zusam\nmen fassung\n"


def test_many_control_characters_are_not_text() -> None:
    with pytest.raises(FileCorrupt):
        encodings.decode(f"{GERMAN}\x01\x02\x03".encode())


def test_random_bytes_are_not_text() -> None:
    # With a byte order mark at the beginning, any bytes count as text. One of 33,000 random samples has one.
    samples = [os.urandom(300) for _ in range(100)]
    assert not any(encodings.detect(each) for each in samples if not each.startswith(encodings.BYTE_ORDER_MARKS))
