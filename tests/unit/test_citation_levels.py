"""Levels of certainty of citations for signs, parts of numbers, scales, and other notations (B31).

A value that differs from the document is never `exact` or `normalized`. A value that the document contains in some
reading is never `not_found`. Ordinary values are certain.
"""

from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from tests.unit.test_citations import SURE, citations

# ---- Signs ----------------------------------------------------------------------------------------------------------
# Texts with a sign or another mark that is missing in the value 500.
SIGNS = {
    # in the characters beside the number
    "triangle": "営業利益 △500.00",
    "bar": "残高 ―500.00",
    "em dash": "Balance —500.00",
    "superscript minus": "Balance ⁻500.00",
    "modifier minus": "Balance ˗500.00",
    "entity": "Balance &minus;500.00",
    # after white space, as in accounting formats
    "two spaces": "Balance -  500.00",
    "spaces in a cell": "| Balance | -   500.00 |",
    "tab": "Balance -\t500.00",
    "thin space": "Balance -\u2009 500.00",
    "spaces in parentheses": "| Balance | $ (  500.00) |",
    "space before the end": "| Balance | (500.00  ) |",
    "space before a minus at the end": "Balance 500.00 -",
    # in a separate cell, as in statements from spreadsheets
    "minus in a cell": "| Balance | - | 500.00 |",
    "parenthesis in the next cell": "| Balance | $ | (500.00 | ) |",
    "parentheses in cells": "| Balance | ( | 500.00 | ) |",
    # after markup
    "bold digits": "Balance -**500.00**",
    "bold minus": "Balance **-** 500.00",
    "bold digits in parentheses": "Balance (**500.00**)",
    "bold tag": "Balance -<b>500.00</b>",
    "bold tag in a cell": "<table><tr><td>Balance</td><td>- <b>500.00</b></td></tr></table>",
    "tags in parentheses": "Balance (<b>500.00</b>)",
    "escaped parentheses": r"Balance \(500.00\)",
    "footnote in parentheses": "Balance (500.00¹)",
    "footnote tag in parentheses": "Balance (500.00<sup>1</sup>)",
    "asterisk in parentheses": "Balance (500.00 *)",
    "asterisk after a minus": "Balance 500.00-*",
    # a currency or word that is not in a list
    "minus and KES": "Balance -KES 500.00",
    "minus and KSh": "Balance -KSh 500.00",
    "minus and CA$": "Balance -CA$500.00",
    "minus and TL": "Bakiye -TL 500.00",
    "KES in parentheses": "Balance (KES 500.00)",
    "KES at the end in parentheses": "Balance (500.00 KES)",
    "word in parentheses": "Balance (500.00 credit)",
    "minus as a word": "Balance minus 500.00",
    "CR before": "Balance CR 500.00",
    "debit after": "Saldo 500.00 Soll",
    "credit in parentheses after": "Balance 500.00 (CR)",
    "wide parentheses": "残高 （500.00）",
    "square brackets": "Balance [500.00]",
    "angle brackets": "Balance <500.00>",
    "quotation marks": 'Balance -"500.00"',
    "minus and Rp": "Balance -Rp500.00",
    "minus after a currency": "Balance 500.00 EUR -",
    "minus before a cell with a currency": "| Balance | - | EUR | 500.00 |",
    "minus in the next cell": "| Balance | 500.00 | - |",
    "minus in a cell of HTML": "<table><tr><td>Balance</td><td>-</td><td>500.00</td></tr></table>",
    "plus or minus": "Balance ±500.00",
    "less than": "Balance <500.00",
    # on another line
    "parenthesis at the end of a line": "Balance (\n500.00)",
    "parentheses on lines of their own": "Balance (\n500.00\n)",
    "closing parenthesis on the next line": "Balance (500.00\n)",
    "minus at the end of a line": "Balance -\n500.00",
    # as merchants and accountants write signs
    "minus and slash": "Saldo -/500.00",
    "commercial minus": "Skonto ./. 500.00",
    "commercial minus before a word": "./. Skonto 500.00",
    "less and a rate": "Less: 2 % discount 500.00",
    "less in a cell": "| Less: discount | 500.00 |",
    "division sign": "Saldo ÷ 500.00",
    "hyphen bullet": "Balance ⁃500.00",
    "minus in Japanese": "残高 マイナス500.00",
    "negative": "Balance 500.00 negative",
    "overdrawn": "Balance 500.00 overdrawn",
    "OD": "Balance 500.00 OD",
    "side in a cell": "| Saldo | 500.00 | S |",
    # bounds and estimates
    "tilde": "Balance ~500.00",
    "tilde and space": "Balance ~ 500.00",
    "at most": "Balance ≤ 500.00",
    "less than and a space": "Balance < 500.00",
    "more than as an entity": "Balance &gt; 500.00",
    "less than in a cell": "| Balance | < | 500.00 |",
    "at most in ASCII": "Balance <= 500.00",
    "plus or minus and a space": "Balance ± 500.00",
    # struck through
    "struck through": "Balance ~~500.00~~ 450.00",
    "struck through in a cell": "| Balance | ~~500.00~~ |\n| --- | --- |\n| Now | 450.00 |",
    "much text is struck through": f"~~{'Balance ' * 50} 500.00~~ 450.00",
    "struck through with a tilde": "Balance ~~A~B 500.00~~ 450.00",
    "struck through in HTML": "Balance <del>500.00</del> 450.00",
    "struck through by s": "Balance <s>500.00</s> 450.00",
}


def test_a_number_without_its_sign_is_not_sure() -> None:
    for text in SIGNS.values():
        for quotes in ({"/balance": text}, {}):
            [found] = citations({"balance": 500}, quotes, pages=[text]).values()
            assert found["match"] not in SURE, (text, quotes)


UNSURE_TEXTS = {
    "minus": ("EUR 12.50", "Sum -EUR 12.50"),
    "minus and space": ("EUR 12.50", "Sum - EUR 12.50"),
    "parentheses": ("EUR 12.50", "Sum (EUR 12.50)"),
    "dollar": ("$12.50", "Sum -$12.50"),
    "dollar in parentheses": ("$12.50", "Sum ($12.50)"),
    "minus at the end": ("€ 12,50", "Summe € 12,50-"),
    "credit": ("€ 12,50", "Summe € 12,50 CR"),
    "triangle": ("12.50", "合計 △12.50"),
    "markup": ("12.50", "Sum (**12.50**)"),
    "tilde": ("12.50", "Sum ~12.50"),
    "parenthesis at the end of a line": ("12.50", "Sum (\n12.50)"),
    "less than": ("12.50 EUR", "Sum < 12.50 EUR"),
    "struck through": ("12.50", "Sum ~~12.50~~ 11.00"),
    "struck date": ("2024-03-14", "Due ~~14 March 2024~~ 20 March 2024"),
    "table header": ("500", "| Item | TEUR |\n|---|---|\n| Cash | 500 |"),
    "groups with a space": ("500.00", "Sum 2, 500.00"),
}


@pytest.mark.parametrize(("value", "text"), UNSURE_TEXTS.values(), ids=UNSURE_TEXTS)
def test_a_text_without_its_sign_or_another_mark_is_not_sure(value: str, text: str) -> None:
    [found] = citations({"sum": value}, {"/sum": text}, pages=[text]).values()
    assert found["match"] not in SURE


# Amounts in brackets in prose, which repeat an amount in words or may be negative.
WORDED = {
    "currency": "The fee is ten thousand dollars ($10,000.00).",
    "capitals": "TEN THOUSAND AND 00/100 DOLLARS ($10,000.00)",
    "number word": "The fee is fixed at ten thousand ($10,000.00).",
    "line break": "The fee is ten thousand dollars\n($10,000.00).",
    "bold": "The fee is ten thousand dollars (**$10,000.00**).",
    "code": "The fee is ten thousand USD (10,000.00).",
    "German": "Der Preis beträgt zehntausend Euro (10.000,00 €).",
    "German number word": "in Worten: zehntausend (10.000,00 €)",
    "French": "la somme de dix mille euros (10 000,00 €)",
    "Spanish": "la suma de diez mil pesos ($10,000.00)",
    "in a cell": "| Fee | ten thousand dollars ($10,000.00) |",
    "word after it": "An amount ($10,000.00) is due.",
    "word after a comma": "An amount ($10,000.00), payable at once, is due.",
}
# Amounts in accounting notation.
LOSSES = {
    "cell": "| Loss | (10,000.00) |",
    "cell with a currency": "| Loss | EUR (10,000.00) |",
    "cell with a symbol": "| Loss | $(10,000.00) |",
    "label": "Net loss (10,000.00)",
    "label in a row": "Net loss (10,000.00) (9,000.00)",
    "columns": "Net loss   (10,000.00)   Note",
    "currency after it": "Net loss (10,000.00) EUR",
}


@pytest.mark.parametrize("text", WORDED.values(), ids=WORDED)
def test_an_amount_in_brackets_in_prose_may_be_positive_or_negative(text: str) -> None:
    for value, quotes in product((10_000, -10_000), ({"/fee": text}, {})):
        [found] = citations({"fee": value}, quotes, pages=[text]).values()
        assert found["match"] == "ambiguous", (value, quotes)


@pytest.mark.parametrize("text", LOSSES.values(), ids=LOSSES)
def test_an_amount_in_brackets_elsewhere_is_negative(text: str) -> None:
    found = citations({"loss": -10_000, "gain": 10_000}, {}, pages=[text])
    assert found["/loss"]["match"] in SURE
    assert found["/gain"]["match"] == "not_found"


@pytest.mark.parametrize("text", ["Kugelschreiber –,50 €", "Kugelschreiber -,50 €", "| Stift | –,50 |", "nur € –,50"])
def test_a_dash_before_cents_may_stand_for_the_euros(text: str) -> None:
    """A regression test: `–,50 €`, a German price of 50 cents, was read as a negative amount."""
    for value, quotes in product((Decimal("0.5"), Decimal("-0.5")), ({"/price": text}, {})):
        [found] = citations({"price": value}, quotes, pages=[text]).values()
        assert found["match"] == "ambiguous", (value, quotes)


def test_a_minus_before_a_point_is_a_minus() -> None:
    found = citations({"change": Decimal("-0.5"), "gain": Decimal("0.5")}, {}, pages=["Change -.50 points"])
    assert found["/change"]["match"] in SURE
    assert found["/gain"]["match"] == "not_found"


# ---- Part of a number -----------------------------------------------------------------------------------------------
PARTS: dict[str, tuple[Any, str]] = {
    "groups with a space, and a currency": ("500 EUR", "Balance 12 500 EUR"),
    "groups with a space, decimals, and a currency": ("500,00 EUR", "Solde 12 500,00 EUR"),
    "scale after a currency": ("USD 100", "Sum USD 100 million"),
    "scale": ("12.50", "Sum 12.50 Mio."),
    "six-per-em space": (500, "Price 1\u2006500.00"),
    "punctuation space": (500, "Price 1\u2008500.00"),
    "mathematical space": (500, "Price 1\u205f500.00"),
    "ideographic space": (500, "Price 1\u3000500.00"),
    "middle dot": (500, "Price 1·500,00"),
    "acute accent": (500, "Price 1´500.00"),
    "grave accent": (500, "Price 1`500.00"),
    "prime": (500, "Price 1′500.00"),
    "entity of a space": (500, "Price 1&nbsp;500.00"),
    "entity of an apostrophe": (500, "Price 1&#39;500.00"),
    "bold digits": (500, "Price 1<b>500.00</b>"),
    "cut digits": (500, "Price 500.00…"),
    "article and quantity": ("471112", "4711 12 pcs of screws"),
    "comma and space": (500, "Price 2, 500.00"),
    "space and comma": (500, "Price 2 ,500.00"),
    "point and space": (500, "Preis 2. 500,00"),
    "groups on two lines": (500, "a price of 1\n500.00"),
    "groups with a comma on two lines": (500, "a price of 1,\n500.00"),
    "decimals after a space": (500, "Preis 500, 25"),
    "decimals after a space and a point": (500, "Price 500 .25"),
    "first part of a number on two lines": (2, "a price of 2\n500.00 EUR"),
    "bar": (500, "Price 1|500.00"),
    "bar before decimals": (500, "Preis 500|25"),
    "address": ("b@c.com", "Contact a+b@c.com"),
    "path": ("https://a.com/x", "See https://a.com/x/y"),
}


QUOTED: dict[str, tuple[Any, str]] = {
    "raised cents": (12, "Preis 12⁵⁰ €"),
    "cents in a tag": (12, "Preis 12<sup>50</sup> €"),
    "fraction after a space": (1, "Hours 1 ½"),
    "common fraction": (1, "Hours 1 1/2"),
    "power of ten": (Decimal("1.2"), "Factor 1.2×10³"),
    "power of ten in ASCII": (500, "Balance 500.00 * 10^6"),
    "dozen": (500, "Balance 500 dozen"),
    "basis points": (500, "Rate 500 basis points"),
    "scale in parentheses": (500, "Balance (in thousands) 500.00"),
}


@pytest.mark.parametrize(("value", "text"), PARTS.values(), ids=PARTS)
def test_a_part_of_a_number_is_not_sure(value: Any, text: str) -> None:
    [found] = citations({"value": value}, {}, pages=[text]).values()
    assert found["match"] not in SURE


@pytest.mark.parametrize(("value", "text"), QUOTED.values(), ids=QUOTED)
def test_a_part_of_a_quoted_number_is_not_sure(value: Any, text: str) -> None:
    [found] = citations({"value": value}, {"/value": text}, pages=[text]).values()
    assert found["match"] not in SURE


def test_a_part_of_a_number_at_a_page_break_is_not_sure() -> None:
    """`by_page_break` searches for the value in the words of the quote without regard to the bounds of numbers."""
    quote = "The amount due 1 500.00 to be paid by the buyer"
    pages = ["The amount due 1 500.00", "to be paid by the buyer"]
    [found] = citations({"due": "500.00"}, {"/due": quote}, pages=pages).values()
    assert found["match"] not in SURE


# ---- Scales ---------------------------------------------------------------------------------------------------------
SCALES = {
    "Japanese million": (500, "売上高 500百万円", 500_000_000),
    "Korean": (5, "매출 5억원", 500_000_000),
    "Chinese thousand": (3, "收入 3千元", 3_000),
    "MM": (5, "Revenue $5 MM", 5_000_000),
    "Mill.": (5, "Umsatz 5 Mill. €", 5_000_000),
    "Russian": (5, "Итого 5 миллионов рублей", 5_000_000),
    "Arabic": (5, "المبلغ 5 مليون ريال", 5_000_000),
    "Hindi": (5, "कुल 5 करोड़ रुपये", 50_000_000),
    "Polish": (5, "Razem 5 tys. zł", 5_000),
    "Turkish": (5, "Toplam 5 milyon TL", 5_000_000),
    "Indonesian": (5, "Total 5 juta rupiah", 5_000_000),
    "Vietnamese": (5, "Tổng 5 triệu đồng", 5_000_000),
    "Thai": (5, "รวม 5 ล้านบาท", 5_000_000),
    "after a currency": (500, "Betrag 500 € Mio.", 500_000_000),
    "after a code": (500, "Sum 500 EUR million", 500_000_000),
    "before the number": (500, "Betrag Mio. € 500", 500_000_000),
    "before, in English": (500, "Sum USD million 500", 500_000_000),
    "on the next line": (500, "a cap of 500\nmillion euros", 500_000_000),
    "bold": (500, "a cap of 500 **million** euros", 500_000_000),
}


@pytest.mark.parametrize(("value", "text", "_whole"), SCALES.values(), ids=SCALES)
def test_a_number_without_its_scale_is_not_sure(value: int, text: str, _whole: int) -> None:
    """`5` is not a certain reading of `5 Mio.`, in any language or notation of the scale."""
    [found] = citations({"value": value}, {"/value": text}, pages=[text]).values()
    assert found["match"] not in SURE


@pytest.mark.parametrize(("_value", "text", "whole"), SCALES.values(), ids=SCALES)
def test_a_number_with_its_scale_is_found(_value: int, text: str, whole: int) -> None:
    [found] = citations({"value": whole}, {"/value": text}, pages=[text]).values()
    assert found["match"] != "not_found"


FAR_SCALES = {
    "column header": "| Item | TEUR |\n|---|---|\n| Cash | 500 |",
    "header with a year": "| Item | 2023 T€ | 2022 T€ |\n|---|---|---|\n| Cash | 500 | 400 |",
    "header in words": "| Item | Amount (in thousands) |\n|---|---|\n| Cash | 500 |",
    "header of the first column": "| In thousands | 2023 | 2022 |\n|---|---|---|\n| Cash | 500 | 400 |",
    "zeros": "| Item | $'000 |\n|---|---|\n| Cash | 500 |",
    "zeros after a currency": "| Item | $000 |\n|---|---|\n| Cash | 500 |",
    "second header row": "| Item | 2023 |\n|---|---|\n| | TEUR |\n| Cash | 500 |",
    "HTML": "<table><tr><th>Item</th><th>TEUR</th></tr><tr><td>Cash</td><td>500</td></tr></table>",
    "HTML without th": "<table><tr><td>Item</td><td>in thousands</td></tr>\n<tr><td>Cash</td><td>500</td></tr></table>",
    "HTML with a cell that spans columns": (
        '<table><tr><th></th><th colspan="2">TEUR</th></tr><tr><td>Cash</td><td>500</td><td>400</td></tr></table>'
    ),
    "caption": "Balance sheet (in thousands of USD)\n\n| Item | 2023 |\n|---|---|\n| Cash | 500 |",
    "caption in German": "(Beträge in TEUR)\n\n| Posten | 2023 |\n|---|---|\n| Kasse | 500 |",
    "on a line of its own": "In Tsd. EUR\n\n| Posten | 2023 |\n|---|---|\n| Kasse | 500 |",
    "note": "All amounts are stated in thousands of dollars.\n\nCash 500",
    "Japanese note": "（単位：千円）\n\n売掛金 500",
    "aligned columns": "Item        TEUR\nCash         500",
    "label": "Umsatz in TEUR: 500",
    "label in brackets": "Umsatz (k€): 500",
    "label with zeros": "Revenue (000s) 500",
    "cell after the number": "| Umsatz | 500 | T€ |",
    "cell before the number": "| Umsatz | TEUR | 500 |",
    "factor": "Revenue 500 x 1,000",
}


def test_a_number_with_a_scale_elsewhere_is_ambiguous_with_and_without_it() -> None:
    for text, value in product(FAR_SCALES.values(), (500, 500_000)):
        for quotes in ({"/value": text.splitlines()[-1]}, {}):
            [found] = citations({"value": value}, quotes, pages=[text]).values()
            assert found["match"] == "ambiguous", (text, value, quotes)


def test_a_table_continued_on_the_next_page_keeps_the_scale_of_its_header() -> None:
    rows = "".join(f"| Item {number} | {number}1.50 |\n" for number in range(1, 6))
    pages = [f"| Item | TEUR |\n|---|---|\n{rows}", "| Cash | 500.00 |\n| Bank | 20.00 |\n"]
    [found] = citations({"cash": 500}, {"/cash": (2, "Cash | 500.00")}, pages=pages).values()
    assert found["match"] == "ambiguous"


# ---- Notations ------------------------------------------------------------------------------------------------------
CONVENTIONS = {
    "section number": "§ 3.2 der AGB gilt.\n\nGesamt: 1.234 EUR",
    "headings and a time": "1.1 Gegenstand\n\n1.2 Preis\n\nDer Preis beträgt 1.234 EUR und ist um 10.30 Uhr fällig.",
    "version": "Version 1.75\n\nDer Preis beträgt 1.234 EUR und ist zu zahlen.",
}


@pytest.mark.parametrize("text", CONVENTIONS.values(), ids=CONVENTIONS)
def test_section_numbers_do_not_decide_the_decimal_mark(text: str) -> None:
    """In a German document, 1.234 EUR is 1234 euros, even if section numbers and times have points."""
    found = citations({"wrong": Decimal("1.234"), "true": 1234}, {}, pages=[text])
    assert found["/wrong"]["match"] not in SURE
    assert found["/true"]["match"] != "not_found"


DATES = {
    "street": "Invoice date 03/04/2024\nCasa de la Cruz LLC, Los Angeles, CA\nEl Camino Real 12\nAmount due USD 12.50",
    "bank": "Invoice date 03/04/2024\nBanco de la Nación, Calle de la Paz, Los Angeles\nAmount due USD 12.50",
    "code": "Invoice date 03/04/2024\nLot 25-04-12\nAmount due USD 12.50",
}


@pytest.mark.parametrize("text", DATES.values(), ids=DATES)
def test_names_and_codes_do_not_decide_the_order_of_dates(text: str) -> None:
    [found] = citations({"date": "2024-04-03"}, {"/date": "03/04/2024"}, pages=[text]).values()
    assert found["match"] == "ambiguous"


RANGES = {
    "named": "vom 1.-3. Mai 2026 in Köln",
    "named, en dash": "vom 1.–3. Mai 2026 in Köln",
    "named, spaces": "vom 1. – 3. Mai 2026 in Köln",
    "in words": "vom 1. bis 3. Mai 2026 in Köln",
    "in more words": "vom 1. bis zum 3. Mai 2026 in Köln",
    "numeric, en dash": "Reise 01.–03.05.2026, Köln",
    "numeric, hyphen": "Reise 01.-03.05.2026, Köln",
    "numeric, two digits of the year": "Rechnung vom 12.04.2026\nReise 01.-03.05.26, Köln",
    "both months": "Reise 01.05.-03.05.2026, Köln",
    "both names": "Reise 1. Mai bis 3. Mai 2026, Köln",
    "in a cell": "| Reise | 1.-3. Mai 2026 |",
}


@pytest.mark.parametrize("text", RANGES.values(), ids=RANGES)
def test_the_ends_of_a_german_range_of_days_are_dates(text: str) -> None:
    for value, quotes in product(("2026-05-01", "2026-05-03"), ({"/day": text}, {})):
        [found] = citations({"day": value}, quotes, pages=[text]).values()
        assert found["match"] == "normalized", (value, quotes)


def test_a_slash_is_between_two_days() -> None:
    found = citations({"first": "2026-05-01", "second": "2026-05-02"}, {}, pages=["am 1./2. Mai 2026"])
    assert [each["match"] for each in found.values()] == ["normalized", "normalized"]


def test_a_range_of_days_over_two_months_has_the_month_of_each() -> None:
    days = {"first": "2026-04-28", "last": "2026-05-03", "wrong": "2026-05-28"}
    for text in ("28.04.–03.05.2026", "28. April bis 3. Mai 2026"):
        found = citations(days, {}, pages=[f"Reise {text}"])
        assert [each["match"] for each in found.values()] == ["normalized", "normalized", "not_found"]


def test_days_in_the_wrong_order_or_without_a_month_are_no_range() -> None:
    for text in ("vom 30.-3. Mai 2026", "Punkte 1.-3. Absatz 2026", "Version 4.1.-3.5.2026.7"):
        [found] = citations({"day": "2026-05-30"}, {}, pages=[text]).values()
        assert found["match"] == "not_found", text


def test_a_range_of_days_without_a_year_is_ambiguous() -> None:
    found = citations({"first": "2026-05-01", "last": "2026-05-03"}, {}, pages=["vom 1.-3. Mai in Köln"])
    assert [each["match"] for each in found.values()] == ["ambiguous", "ambiguous"]


TIMES = {
    "within another time": ("2024-03-04T10:00:00", "Signed 2024-03-04 22:10:00"),
    "afternoon": ("2024-03-04T10:00:00", "Signed 2024-03-04 10:00 PM"),
    "seconds": ("2024-03-04T10:00:59", "Signed 2024-03-04 10:00:01"),
    "zone": ("2024-03-04T10:00:00+05:00", "Signed 2024-03-04 10:00 UTC"),
    "midnight": ("2024-03-04T00:00:00", "Signed 2024-03-04 17:30"),
}


@pytest.mark.parametrize(("value", "text"), TIMES.values(), ids=TIMES)
def test_another_time_of_the_day_is_not_sure(value: str, text: str) -> None:
    [found] = citations({"signed": value}, {"/signed": text}, pages=[text]).values()
    assert found["match"] not in SURE


NOTATIONS: dict[str, tuple[Any, str]] = {
    "triangle": (-500, "営業利益 △500"),
    "fraction after a space": (Decimal("1.5"), "Hours 1 ½"),
    "Prozent": (Decimal("0.19"), "Satz 19 Prozent"),
    "percent before": (Decimal("0.19"), "KDV %19"),
    "Czech": ("2024-03-14", "Datum: 14. března 2024"),
    "Turkish": ("2024-03-14", "Tarih: 14 Mart 2024"),
    "Russian": ("2024-03-14", "Дата: 14 марта 2024 г."),
    "Ukrainian": ("2024-03-14", "Дата: 14 березня 2024"),
    "Finnish": ("2024-03-14", "14. maaliskuuta 2024"),
    "Hungarian": ("2024-03-14", "Kelt: 2024. március 14."),
    "Romanian": ("2024-03-14", "14 martie 2024"),
    "Greek": ("2024-03-14", "14 Μαρτίου 2024"),
    "Arabic": ("2024-03-14", "التاريخ ١٤ مارس ٢٠٢٤"),
    "Hebrew": ("2024-03-14", "תאריך 14 במרץ 2024"),
    "Indonesian": ("2024-03-14", "Tanggal 14 Maret 2024"),
    "Vietnamese": ("2024-03-14", "Hà Nội, ngày 14 tháng 3 năm 2024"),
    "Japanese era": ("2024-03-14", "発行日 令和6年3月14日"),
    "Chinese numerals": ("2024-03-14", "日期 二〇二四年三月十四日"),
    "Roman month": ("2024-03-14", "Date 14/III/2024"),
}


@pytest.mark.parametrize(("value", "text"), NOTATIONS.values(), ids=NOTATIONS)
def test_a_value_in_another_notation_is_found(value: Any, text: str) -> None:
    [found] = citations({"value": value}, {"/value": text}, pages=[text]).values()
    assert found["match"] != "not_found"


# ---- Ordinary values ------------------------------------------------------------------------------------------------
TABLE = """\
| Item | Qty | Discount | Note | Amount |
|---|---|---|---|---|
| Desk | 2 | - | new | 199.00 |
| Lamp | 1 | 5.00 | - | 31.50 |
| Chair | 3 | - | - | 189.00 |"""
ORDINARY = {
    "dash for no discount": (199, TABLE),
    "dash for no note": (Decimal("31.5"), TABLE),
    "two dashes": (189, TABLE),
    "column without values": (199, "| Item | Discount | Amount |\n|---|---|---|\n| Desk | - | 199.00 |"),
    "list": (12, "- 12 apples"),
    "list with amounts": (Decimal("12.5"), "- EUR 12.50 for rent"),
    "dash in the text": (500, "INV - Office rent 500.00 monthly"),
    "number of items": (3, "see the annex (3 items)"),
    "remark in parentheses": (Decimal("12.5"), "Total (incl. VAT): 12.50"),
    "bold": (Decimal("12.5"), "Price: **EUR 12.50**"),
    "currency in a cell": (Decimal("12.5"), "| Rent | $ | 12.50 |"),
    "unknown currency": (Decimal("1250.5"), "KES 1,250.50"),
    "price of a unit": (Decimal("12.5"), "12.50/month"),
    "dots": (Decimal("12.5"), "Subtotal......12.50"),
    "equation": (Decimal("37.5"), "3 × 12.50 = 37.50"),
    "label of a side": (500, "Haben: 500,00 EUR"),
    "street": (5, "5 Main Street"),
    "unit": (5, "5 mm"),
    "Japanese": (500, "500円（税込）"),
    "copyright": (2024, "Copyright ©2024 ACME"),
    "column beside one with a scale": (12, "| Item | Shares | TEUR |\n|---|---|---|\n| A | 12 | 500 |"),
    "amount outside of a table with a scale": (
        Decimal("12.5"),
        "| Item | TEUR |\n|---|---|\n| Cash | 500 |\n\nFee: EUR 12.50",
    ),
    "year on a page with a scale": (2024, "(in thousands)\n\nFiscal year 2024"),
    "word in the text": (12, "Two million people bought 12 cars"),
    "name with zeros": (7, "| Article 000 | 7 |"),
    "size": (Decimal("12.5"), "| Shirt | 12.50 | S |\n| Shirt | 12.50 | M |\n| Coat | 12.50 | S |"),
    "quoted mail": (Decimal("12.5"), "> 12.50 EUR"),
    "arrow": (Decimal("12.5"), "Price -> 12.50"),
    "numbers in a list": (112, "rooms 110, 112, 114"),
    "numbered list": (Decimal("12.5"), "2) 12.50 EUR for rent"),
    "next line": (Decimal("12.5"), "Qty 3\n12.50 EUR"),
    "no less than": (12, "Less than that: no, 12 items"),
    "cells without outer marks": (12, "Item | Qty\n--- | ---\nDesk|12"),
}


@pytest.mark.parametrize(("value", "text"), ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_value_is_sure_by_its_quote_or_by_a_search(value: Any, text: str) -> None:
    [found] = citations({"value": value}, {"/value": text.splitlines()[-1]}, pages=[text]).values()
    [searched] = citations({"value": value}, {}, pages=[text]).values()
    assert {found["match"], searched["match"]} & set(SURE)


ORDINARY_DATES = {
    "time": ("2024-03-04T22:10:00", "Signed 2024-03-04 22:10:00"),
    "afternoon": ("2024-03-04T22:10:00", "Signed 2024-03-04 10:10 PM"),
    "German time": ("2024-03-04T22:10:00", "Unterzeichnet am 04.03.2024 um 22:10 Uhr"),
    "zone": ("2024-03-04T22:10:00Z", "Signed 2024-03-04 22:10 UTC"),
    "order by the name of a month": ("2024-04-03", "Bestellt: 28 März 2024\nGeliefert: 03/04/2024"),
}


@pytest.mark.parametrize(("value", "text"), ORDINARY_DATES.values(), ids=ORDINARY_DATES)
def test_a_time_or_date_with_one_meaning_is_sure(value: str, text: str) -> None:
    [found] = citations({"value": value}, {"/value": text.splitlines()[-1]}, pages=[text]).values()
    assert found["match"] == "normalized"


def test_the_name_of_a_month_with_two_meanings_is_ambiguous() -> None:
    """Listopad means October in Croatian, but November in Czech and Polish."""
    for day in ("2024-10-05", "2024-11-05"):
        [found] = citations({"date": day}, {}, pages=["5. listopada 2024"]).values()
        assert found["match"] == "ambiguous"


# ---- Columns and rows -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("net", "gross", "is_sure"), [(10, 19, True), (19, 10, False)])
def test_the_header_of_another_column_makes_a_number_ambiguous(net: int, gross: int, *, is_sure: bool) -> None:
    text = "| sku | Net | Gross |\n|---|---:|---:|\n" + "".join(
        f"| A-{n} | {n}10.00 | {n}19.00 |\n" for n in range(1, 6)
    )
    lines = [{"sku": f"A-{n}", "net": n * 100 + net, "gross": n * 100 + gross} for n in range(1, 6)]
    found = citations({"lines": lines}, {}, pages=[text])
    for pointer, citation in found.items():
        assert citation["match"] in SURE if is_sure or pointer.endswith("sku") else citation["match"] == "ambiguous"


def test_the_same_number_in_another_column_of_the_row_does_not_matter() -> None:
    text = "| No | Amount |\n|---|---|\n" + "".join(f"| {n} | {2 if n == 2 else n * 10} |\n" for n in range(1, 6))
    lines = [{"no": n, "amount": 2 if n == 2 else n * 10} for n in range(1, 6)]
    found = citations({"lines": lines}, {}, pages=[text])
    assert all(found[f"/lines/{n}/amount"]["match"] == "exact" for n in range(5))


@pytest.mark.parametrize(
    ("name", "text", "level"),
    [
        ("total", "Total carried forward 117,017.00", "ambiguous"),
        ("total", "| Übertrag | 117,017.00 |", "ambiguous"),
        ("carried_forward", "Total carried forward 117,017.00", "normalized"),
        ("total", "Grand total 117,017.00", "normalized"),
    ],
)
def test_a_total_carried_forward_is_not_the_total(name: str, text: str, level: str) -> None:
    [found] = citations({name: 117_017}, {f"/{name}": text}, pages=[text]).values()
    assert found["match"] == level


# ---- Items that share a row -----------------------------------------------------------------------------------------
def test_one_row_is_not_sure_evidence_for_two_items() -> None:
    """A model may return a row twice. A row is evidence for one item only, so at least one of them is not sure."""
    text = "| sku | amount |\n|---|---|\n" + "".join(f"| A-{n} | {n}.50 |\n" for n in range(10))
    lines = [{"sku": f"A-{n}", "amount": n + 0.5} for n in (*range(10), 0)]
    found = citations({"lines": lines}, {}, pages=[text])
    assert {found["/lines/0/sku"]["match"], found["/lines/10/sku"]["match"]} - set(SURE)
