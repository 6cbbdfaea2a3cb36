"""Reading and validation of e-invoices, without the sandbox (B41)."""

import io
import time
from pathlib import Path
from typing import Any

import pytest

from config.platform import exact_json
from etl.core.formats import DocumentFormat, sniff
from etl.pages import invoices
from etl.providers.local.einvoices import reading, rules, syntaxes
from etl.providers.local.einvoices.profiles import profile_of
from etl.providers.local.einvoices.received import einvoice_of
from etl.providers.local.pages import DocumentLimits
from rules.loading import parsing
from rules.loading.system_rules import SHIPPED
from rules.schema import json_schema
from tests import samples
from tests.reading import einvoice_score

FOLDER = Path(samples.__file__).parent / "einvoices"
XML = samples.sample("einvoice.xml").read_text(encoding="utf-8")
UBL = (FOLDER / "xrechnung-testsuite/01.01a-INVOICE_ubl.xml").read_text(encoding="utf-8")
LIMITS = DocumentLimits(pages=100, pixels=10**8, text=10**8)
SUM = "<ram:SpecifiedTradeSettlementHeaderMonetarySummation>\n        <ram:LineTotalAmount>1986.20"
EXTENSION = "#conformant#urn:xeinkauf.de:kosit:extension:xrechnung_3.0"
CORE = "urn:cen.eu:en16931:2017"


def read_einvoice(xml: str) -> dict[str, Any]:
    message = next(reading.read(DocumentFormat.XML, io.BytesIO(xml.encode()), LIMITS))
    found: dict[str, Any] = message["einvoice"]
    return found


def broken_rules(xml: str) -> list[str]:
    return [error["code"] for error in read_einvoice(xml)["errors"]]


# ---- Third-party files ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("maker", ["factur-x", "xrechnung-testsuite"])
def test_third_party_files_are_read_exactly(maker: str) -> None:
    """B41: an independent parser compares the result with the XML."""
    score = einvoice_score.score(FOLDER / maker)
    assert score.faults == []
    assert score.exact == score.valid == score.files == 2
    assert max(score.milliseconds) < 200  # ms of CPU time; typically 2


def test_the_comparison_finds_a_changed_digit() -> None:
    """B41: the independent parser detects differences."""
    path = FOLDER / "factur-x/zugferd-comfort.xml"
    invoice = einvoice_score.read(path)
    assert invoice is not None
    invoice.data["totals"]["gross"] = 1
    invoice.data["lines"][0]["net_amount"] = 1
    found = list(einvoice_score.differences_from_xml(einvoice_score.xml_of(path), invoice.data))
    assert [each.partition(":")[0] for each in found] == ["totals/gross", "line 1, net_amount"]


def test_every_invoice_matches_the_schema_of_the_shipped_rule() -> None:
    """B41: this includes invoices of the smallest profile."""
    schema = parsing.parse(SHIPPED / "einvoice.yaml", 0, 0)["json_schema"]
    for path in [*FOLDER.rglob("*.xml"), samples.sample("einvoice.xml")]:
        invoice = einvoice_score.read(path)
        assert invoice is not None
        assert json_schema.errors(schema, invoice.data) == [], path


# ---- Rules ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (SUM, SUM.replace("1986.20", "1986.21"), ["BR-CO-10", "BR-CO-13"]),
        ("<ram:TaxBasisTotalAmount>1986.20", "<ram:TaxBasisTotalAmount>1986.21", ["BR-CO-13", "BR-CO-15"]),
        ('currencyID="EUR">377.38', 'currencyID="EUR">377.39', ["BR-CO-14", "BR-CO-15"]),
        ("<ram:GrandTotalAmount>2363.58", "<ram:GrandTotalAmount>2363.59", ["BR-CO-15", "BR-CO-16"]),
        ("<ram:DuePayableAmount>2363.58", "<ram:DuePayableAmount>0.00", ["BR-CO-16"]),
        ("<ram:CalculatedAmount>377.38", "<ram:CalculatedAmount>378.37", ["BR-CO-14"]),
        ("<ram:CalculatedAmount>377.38", "<ram:CalculatedAmount>378.39", ["BR-CO-14", "BR-CO-17"]),
    ],
)
def test_a_wrong_amount_breaks_its_rule(old: str, new: str, expected: list[str]) -> None:
    """B41: a tax amount may differ by up to 1 from basis times rate, but all tax amounts must add up to their total."""
    assert broken_rules(XML) == []
    assert old in XML
    assert broken_rules(XML.replace(old, new)) == expected


def test_sums_of_allowances_and_charges_are_checked() -> None:
    """B41"""
    allowance = (
        "<cac:AllowanceCharge><cbc:ChargeIndicator>{}</cbc:ChargeIndicator>"
        '<cbc:Amount currencyID="EUR">1.00</cbc:Amount></cac:AllowanceCharge><cac:TaxTotal>'
    )
    for indicator, rule in (("false", "BR-CO-11"), ("true", "BR-CO-12")):
        assert broken_rules(UBL.replace("<cac:TaxTotal>", allowance.format(indicator), 1)) == [rule]


def test_broken_rules_name_both_amounts() -> None:
    """B41"""
    errors = read_einvoice(XML.replace("<ram:DuePayableAmount>2363.58", "<ram:DuePayableAmount>0.00"))["errors"]
    detail = "The amount due (BT-115) is 0.00; the sum of its parts is 2363.58."
    assert errors == [{"code": "BR-CO-16", "detail": detail}]


@pytest.mark.parametrize(
    ("element", "rule"),
    [
        ("<ram:ID>EX-2024-0117</ram:ID>", "BR-02"),
        ("<ram:TypeCode>380</ram:TypeCode>", "BR-04"),
        ("<ram:Name>Example Trading Ltd</ram:Name>", "BR-06"),
        ("<ram:GrandTotalAmount>2363.58</ram:GrandTotalAmount>", "BR-14"),
        ("<ram:Name>Packaging and freight</ram:Name>", "BR-25"),
        ("<ram:BasisAmount>1986.20</ram:BasisAmount>", "BR-45"),
        ("<ram:ID>urn:cen.eu:en16931:2017</ram:ID>", "BR-01"),
    ],
)
def test_a_missing_term_breaks_its_rule(element: str, rule: str) -> None:
    """B41"""
    assert XML.count(element) == 1
    assert rule in broken_rules(XML.replace(element, ""))


def test_profiles_without_lines_are_not_checked_for_lines() -> None:
    """B41"""
    minimum = FOLDER / "factur-x/factur-x-minimum.xml"
    assert read_einvoice(minimum.read_text(encoding="utf-8"))["errors"] == []


def test_data_that_violates_the_schema_is_read_with_an_error() -> None:
    """B41"""
    message = read_einvoice(XML.replace("<ram:TypeCode>380", "<ram:Kind/><ram:TypeCode>380"))
    assert [error["code"] for error in message["errors"]] == ["schema"]
    assert message["errors"][0]["detail"].startswith("Line 12: Element 'Kind': This element is not expected.")
    assert message["data"]["number"] == "EX-2024-0117"


# ---- Terms ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("12.50", "12.50"), ("+1.5", "1.5"), ("007.50", "7.50"), (".5", "0.5"), ("5.", "5"), ("-0.0", "-0.0"),
        ("0", "0"), ("1e3", None), ("NaN", None), ("1,5", None), ("", None), (".", None), ("9" * 41, None),
        ("\u0661\u0662.\u0665", None),
    ],
)  # fmt: skip
def test_amounts_keep_their_digits_as_json_writes_them(text: str, literal: str | None) -> None:
    """B41, B43"""
    assert syntaxes.parse_amount(text) == literal
    assert literal is None or exact_json.dumps(exact_json.loads(literal)).decode() == literal


def test_a_line_is_named_by_its_number_in_the_invoice() -> None:
    """B41: group lines are not checked, but they are counted."""
    line = {"id": "1", "quantity": "1", "unit": "C62", "net_amount": "5", "name": "Pen", "net_price": "5"}
    without_price = {name: value for name, value in line.items() if name != "net_price"}
    invoice = rules.Invoice(
        data={"lines": [{"id": "A"}, line, without_price], "taxes": []},
        profile=profile_of(f"{CORE}#conformant#urn:factur-x.eu:1p0:extended"),
        sums={}, allowances=[], charges=[], line_states=["GROUP", "", ""],
    )  # fmt: skip
    details = [broken.detail for broken in rules.check(invoice) if broken.rule == "BR-26"]
    assert details == ["Line 3: the net price (BT-146) is missing."]


@pytest.mark.parametrize("lines", ["text", {"id": "1"}], ids=["text", "object"])
def test_data_of_another_shape_has_no_invoice_view(lines: Any) -> None:
    """B41: the schema of a user's rule may define other types."""
    provenance = {"mode": "einvoice", "source": "model"}
    assert invoices.view_of({"data": {"lines": lines}, "metadata": {"provenance": provenance}}) is None


def test_an_invoice_without_totals_is_shown() -> None:
    """B41"""
    provenance = {"mode": "einvoice", "source": "model"}
    view = invoices.view_of({"data": {"number": "7", "totals": None}, "metadata": {"provenance": provenance}})
    assert view is not None
    assert view.facts == [("Number", "7")]


def test_a_long_amount_is_refused_in_linear_time() -> None:
    """B41"""
    began = time.process_time()
    assert syntaxes.parse_amount("0" * 20_000 + "x") is None
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("20240229", "2024-02-29"), ("2024-02-29", "2024-02-29"), ("2024-02-29+01:00", "2024-02-29"), ("soon", "soon"),
        ("\uff12\uff10\uff12\uff14\uff10\uff11\uff10\uff12", "\uff12\uff10\uff12\uff14\uff10\uff11\uff10\uff12"),
    ],
)  # fmt: skip
def test_dates_are_converted_to_iso_8601(text: str, day: str) -> None:
    """B41"""
    assert syntaxes.parse_date(text) == day


def test_the_tax_total_is_the_one_in_the_currency_of_the_invoice() -> None:
    """B41"""
    own = '<ram:TaxTotalAmount currencyID="EUR">'
    xml = XML.replace(own, f'<ram:TaxTotalAmount currencyID="GBP">320.77</ram:TaxTotalAmount>{own}')
    assert read_einvoice(xml)["data"]["totals"]["tax"] == "377.38"


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        ("urn:factur-x.eu:1p0:minimum", "MINIMUM"),
        ("urn:zugferd.de:2p0:basicwl", "BASIC WL"),
        (f"{CORE}#compliant#urn:factur-x.eu:1p0:basic", "BASIC"),
        (f"{CORE}:compliant:factur-x.eu:1p0:basic", "BASIC"),
        (CORE, "EN 16931"),
        (f"{CORE}#conformant#urn:factur-x.eu:1p0:extended", "EXTENDED"),
        ("urn:ferd:CrossIndustryDocument:invoice:1p0:comfort", "ZUGFERD 1 COMFORT"),
        (f"{CORE}#compliant#urn:xeinkauf.de:kosit:xrechnung_3.0", "XRECHNUNG 3.0"),
        (
            f"{CORE}#compliant#urn:xeinkauf.de:kosit:xrechnung_3.0{EXTENSION}",
            "XRECHNUNG EXTENSION 3.0",
        ),
        (f"{CORE}#compliant#urn:fdc:peppol.eu:2017:poacc:billing:3.0", "PEPPOL BIS BILLING 3.0"),
    ],
)
def test_profiles_have_short_names(identifier: str, name: str) -> None:
    """B41"""
    profile = profile_of(identifier)
    assert profile.name == name
    assert profile.is_known


# ---- Messages -------------------------------------------------------------------------------------------------------
NO_ITEMS: dict[str, Any] = {"lines": [], "taxes": [], "notes": []}


@pytest.mark.parametrize(
    "change",
    [
        {"syntax": "fatturapa"},
        {"profile": 3},
        {"errors": [{"code": "<b>", "detail": ""}]},
        {"data": {**NO_ITEMS, "lines": [{"net_amount": "1e9"}]}},
        {"data": {**NO_ITEMS, "lines": {"id": 3}}},
        {"data": {**NO_ITEMS, "number": ["a"]}},
        {"data": {"lines": [], "taxes": []}},
        {"data": []},
    ],
)
def test_invalid_messages_of_the_reader_process_are_refused(change: dict[str, Any]) -> None:
    """B41, B18"""
    message = read_einvoice(XML)
    assert einvoice_of(message).data["number"] == "EX-2024-0117"
    assert einvoice_of(message | {"data": NO_ITEMS}).data == NO_ITEMS
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        einvoice_of(message | change)


def test_unknown_members_and_unstorable_characters_are_dropped() -> None:
    """B41"""
    message = read_einvoice(XML)
    message["data"]["evil"] = "x"
    message["data"]["seller"]["name"] += "\x00\ud800"
    data = einvoice_of(message).data
    assert "evil" not in data
    assert data["seller"]["name"] == "Example Trading Ltd"


# ---- Formats --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"<?xml version='1.0'?><note/>", DocumentFormat.XML),
        (b"\xef\xbb\xbf\n<Invoice xmlns='urn:oasis:names:specification:ubl:schema:xsd:Invoice-2'>", DocumentFormat.XML),
        (b"<rsm:CrossIndustryInvoice>", DocumentFormat.XML),
        (b"<?xml version='1.0'?><!DOCTYPE html><html>", DocumentFormat.HTML),
        (b"<Invoices> are late", DocumentFormat.TEXT),
    ],
)
def test_xml_is_recognized_by_its_beginning(content: bytes, kind: DocumentFormat) -> None:
    """B41"""
    assert sniff(content, "a") == kind
