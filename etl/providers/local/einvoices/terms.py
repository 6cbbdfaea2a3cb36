"""The business terms of EN 16931 in results, and their XPath expressions in CII and UBL.

Each row: the term, the field of the result, the path in CII D16B and later (Factur-X, ZUGFeRD 2, XRechnung), and the
path in UBL 2.1. ZUGFeRD 1 uses the paths of CII with other element names. If a row has several paths, the first one
with text is used.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["text", "amount", "date"]


@dataclass(frozen=True, slots=True)
class Term:
    bt: str
    member: str  # field of the result; dots separate nested fields
    cii: str
    ubl: str
    kind: Kind = "text"


def value_at(data: dict[str, Any], member: str) -> Any:
    """Return the value at a path such as `address.city`, or None."""
    value: Any = data
    for name in member.split("."):
        value = value.get(name) if value else None
    return value


DOCUMENT = "rsm:ExchangedDocument"
AGREEMENT = "rsm:SupplyChainTradeTransaction/ram:ApplicableHeaderTradeAgreement"
SETTLEMENT = "rsm:SupplyChainTradeTransaction/ram:ApplicableHeaderTradeSettlement"
SELLER, BUYER = f"{AGREEMENT}/ram:SellerTradeParty", f"{AGREEMENT}/ram:BuyerTradeParty"
SUMS = f"{SETTLEMENT}/ram:SpecifiedTradeSettlementHeaderMonetarySummation"
MEANS = f"{SETTLEMENT}/ram:SpecifiedTradeSettlementPaymentMeans"
CONDITIONS = f"{SETTLEMENT}/ram:SpecifiedTradePaymentTerms"
LINE_SETTLEMENT = "ram:SpecifiedLineTradeSettlement"

UBL_SELLER, UBL_BUYER = "cac:AccountingSupplierParty/cac:Party", "cac:AccountingCustomerParty/cac:Party"
UBL_SUMS = "cac:LegalMonetaryTotal"
# The tax total may be repeated in the accounting currency.
IN_CURRENCY = "[not(@currencyID) or @currencyID=ancestor::*/ram:InvoiceCurrencyCode]"
UBL_IN_CURRENCY = "[not(@currencyID) or @currencyID=/*/cbc:DocumentCurrencyCode]"


def party(member: str, names: tuple[str, ...], cii: str, ubl: str) -> tuple[Term, ...]:
    """Return the terms of a party. `names`: the numbers of its business terms."""
    name, vat_id, street, city, postcode, country = names
    place, ubl_place = f"{cii}/ram:PostalTradeAddress", f"{ubl}/cac:PostalAddress"
    ubl_name = f"{ubl}/cac:PartyLegalEntity/cbc:RegistrationName, {ubl}/cac:PartyName/cbc:Name"
    ubl_vat_id = f"{ubl}/cac:PartyTaxScheme[cac:TaxScheme/cbc:ID='VAT']/cbc:CompanyID"
    return (
        Term(name, f"{member}.name", f"{cii}/ram:Name", ubl_name),
        Term(vat_id, f"{member}.vat_id", f"{cii}/ram:SpecifiedTaxRegistration/ram:ID[@schemeID='VA']", ubl_vat_id),
        Term(street, f"{member}.address.street", f"{place}/ram:LineOne", f"{ubl_place}/cbc:StreetName"),
        Term(city, f"{member}.address.city", f"{place}/ram:CityName", f"{ubl_place}/cbc:CityName"),
        Term(postcode, f"{member}.address.postcode", f"{place}/ram:PostcodeCode", f"{ubl_place}/cbc:PostalZone"),
        Term(
            country,
            f"{member}.address.country",
            f"{place}/ram:CountryID",
            f"{ubl_place}/cac:Country/cbc:IdentificationCode",
        ),
    )


# ---- The table ------------------------------------------------------------------------------------------------------
PROFILE = Term(
    "BT-24",
    "profile",
    "rsm:ExchangedDocumentContext/ram:GuidelineSpecifiedDocumentContextParameter/ram:ID",
    "cbc:CustomizationID",
)
# fmt: off
HEAD = (
    Term("BT-1", "number", f"{DOCUMENT}/ram:ID", "cbc:ID"),
    Term("BT-2", "issue_date", f"{DOCUMENT}/ram:IssueDateTime/udt:DateTimeString", "cbc:IssueDate", "date"),
    Term("BT-3", "type_code", f"{DOCUMENT}/ram:TypeCode", "cbc:InvoiceTypeCode, cbc:CreditNoteTypeCode"),
    Term("BT-5", "currency", f"{SETTLEMENT}/ram:InvoiceCurrencyCode", "cbc:DocumentCurrencyCode"),
    *party("seller", ("BT-27", "BT-31", "BT-35", "BT-37", "BT-38", "BT-40"), SELLER, UBL_SELLER),
    *party("buyer", ("BT-44", "BT-48", "BT-50", "BT-52", "BT-53", "BT-55"), BUYER, UBL_BUYER),
    Term("BT-84", "payment.iban", f"{MEANS}/ram:PayeePartyCreditorFinancialAccount/ram:IBANID",
         "cac:PaymentMeans/cac:PayeeFinancialAccount/cbc:ID"),
    Term("BT-9", "payment.due_date", f"{CONDITIONS}/ram:DueDateDateTime/udt:DateTimeString",
         "cbc:DueDate, cac:PaymentMeans/cbc:PaymentDueDate", "date"),
    Term("BT-20", "payment.terms", f"{CONDITIONS}/ram:Description", "cac:PaymentTerms/cbc:Note"),
)
TOTALS = (
    Term("BT-109", "totals.net", f"{SUMS}/ram:TaxBasisTotalAmount", f"{UBL_SUMS}/cbc:TaxExclusiveAmount", "amount"),
    Term("BT-110", "totals.tax", f"{SUMS}/ram:TaxTotalAmount{IN_CURRENCY}",
         f"cac:TaxTotal/cbc:TaxAmount{UBL_IN_CURRENCY}", "amount"),
    Term("BT-112", "totals.gross", f"{SUMS}/ram:GrandTotalAmount", f"{UBL_SUMS}/cbc:TaxInclusiveAmount", "amount"),
    Term("BT-113", "totals.prepaid", f"{SUMS}/ram:TotalPrepaidAmount", f"{UBL_SUMS}/cbc:PrepaidAmount", "amount"),
    Term("BT-115", "totals.due", f"{SUMS}/ram:DuePayableAmount", f"{UBL_SUMS}/cbc:PayableAmount", "amount"),
)
NOTES = Term("BT-22", "notes", f"{DOCUMENT}/ram:IncludedNote/ram:Content", "cbc:Note")

LINES = Term("BG-25", "lines", "rsm:SupplyChainTradeTransaction/ram:IncludedSupplyChainTradeLineItem",
             "cac:InvoiceLine | cac:CreditNoteLine")
LINE = (
    Term("BT-126", "id", "ram:AssociatedDocumentLineDocument/ram:LineID", "cbc:ID"),
    Term("BT-153", "name", "ram:SpecifiedTradeProduct/ram:Name", "cac:Item/cbc:Name"),
    Term("BT-129", "quantity", "ram:SpecifiedLineTradeDelivery/ram:BilledQuantity",
         "cbc:InvoicedQuantity, cbc:CreditedQuantity", "amount"),
    Term("BT-130", "unit", "ram:SpecifiedLineTradeDelivery/ram:BilledQuantity/@unitCode",
         "cbc:InvoicedQuantity/@unitCode, cbc:CreditedQuantity/@unitCode"),
    Term("BT-146", "net_price", "ram:SpecifiedLineTradeAgreement/ram:NetPriceProductTradePrice/ram:ChargeAmount",
         "cac:Price/cbc:PriceAmount", "amount"),
    Term("BT-131", "net_amount",
         f"{LINE_SETTLEMENT}/ram:SpecifiedTradeSettlementLineMonetarySummation/ram:LineTotalAmount",
         "cbc:LineExtensionAmount", "amount"),
    Term("BT-152", "vat_rate", f"{LINE_SETTLEMENT}/ram:ApplicableTradeTax/ram:RateApplicablePercent",
         "cac:Item/cac:ClassifiedTaxCategory/cbc:Percent", "amount"),
)

TAXES = Term("BG-23", "taxes", f"{SETTLEMENT}/ram:ApplicableTradeTax", "cac:TaxTotal/cac:TaxSubtotal")
TAX = (
    Term("BT-118", "category", "ram:CategoryCode", "cac:TaxCategory/cbc:ID"),
    Term("BT-119", "rate", "ram:RateApplicablePercent", "cac:TaxCategory/cbc:Percent", "amount"),
    Term("BT-116", "basis", "ram:BasisAmount", "cbc:TaxableAmount", "amount"),
    Term("BT-117", "amount", "ram:CalculatedAmount", "cbc:TaxAmount", "amount"),
)

# Terms that only the arithmetic rules use.
OTHER_SUMS = (
    Term("BT-106", "lines", f"{SUMS}/ram:LineTotalAmount", f"{UBL_SUMS}/cbc:LineExtensionAmount", "amount"),
    Term("BT-107", "allowances", f"{SUMS}/ram:AllowanceTotalAmount", f"{UBL_SUMS}/cbc:AllowanceTotalAmount", "amount"),
    Term("BT-108", "charges", f"{SUMS}/ram:ChargeTotalAmount", f"{UBL_SUMS}/cbc:ChargeTotalAmount", "amount"),
    Term("BT-114", "rounding", f"{SUMS}/ram:RoundingAmount", f"{UBL_SUMS}/cbc:PayableRoundingAmount", "amount"),
)
OF_ALLOWANCE = "[ram:ChargeIndicator/udt:Indicator='false' or ram:ChargeIndicator/udt:Indicator='0']"
OF_CHARGE = "[ram:ChargeIndicator/udt:Indicator='true' or ram:ChargeIndicator/udt:Indicator='1']"
ALLOWANCES = Term("BT-92", "allowances",
                  f"{SETTLEMENT}/ram:SpecifiedTradeAllowanceCharge{OF_ALLOWANCE}/ram:ActualAmount",
                  "cac:AllowanceCharge[cbc:ChargeIndicator='false' or cbc:ChargeIndicator='0']/cbc:Amount", "amount")
CHARGES = Term("BT-99", "charges",
               f"{SETTLEMENT}/ram:SpecifiedTradeAllowanceCharge{OF_CHARGE}/ram:ActualAmount"
               f" | {SETTLEMENT}/ram:SpecifiedLogisticsServiceCharge/ram:AppliedAmount",
               "cac:AllowanceCharge[cbc:ChargeIndicator='true' or cbc:ChargeIndicator='1']/cbc:Amount", "amount")
# Marks group and information lines, whose amounts are not included in sums.
LINE_STATUS = Term("BT-X-8", "status", "ram:AssociatedDocumentLineDocument/ram:LineStatusReasonCode", "@none")
# fmt: on

# ---- ZUGFeRD 1 ------------------------------------------------------------------------------------------------------
ZUGFERD_1_NAMES = {
    "ExchangedDocumentContext": "SpecifiedExchangedDocumentContext",
    "ExchangedDocument": "HeaderExchangedDocument",
    "SupplyChainTradeTransaction": "SpecifiedSupplyChainTradeTransaction",
    "ApplicableHeaderTradeAgreement": "ApplicableSupplyChainTradeAgreement",
    "ApplicableHeaderTradeSettlement": "ApplicableSupplyChainTradeSettlement",
    "SpecifiedLineTradeAgreement": "SpecifiedSupplyChainTradeAgreement",
    "SpecifiedLineTradeDelivery": "SpecifiedSupplyChainTradeDelivery",
    "SpecifiedLineTradeSettlement": "SpecifiedSupplyChainTradeSettlement",
    "SpecifiedTradeSettlementHeaderMonetarySummation": "SpecifiedTradeSettlementMonetarySummation",
    "SpecifiedTradeSettlementLineMonetarySummation": "SpecifiedTradeSettlementMonetarySummation",
    "RateApplicablePercent": "ApplicablePercent",
}


def zugferd_1_path(path: str) -> str:
    """Convert a path of CII to the element names of ZUGFeRD 1."""
    return re.sub(r"(?<=:)\w+", lambda name: ZUGFERD_1_NAMES.get(name[0], name[0]), path)
