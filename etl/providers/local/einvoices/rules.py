"""Rules of EN 16931 about required terms and sums. Runs only in the reader process.

docs/e-invoices.md lists the implemented rules. The tolerances are those of the standard's validation artifacts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any

from etl.providers.local.einvoices.profiles import Profile
from etl.providers.local.einvoices.terms import value_at

ZERO, HALF, CENT = Decimal(0), Decimal("0.5"), Decimal("0.01")
# For a tax amount, because it may be the sum of rounded amounts of lines.
TAX_TOLERANCE = Decimal(1)
UNCOUNTED_STATES = frozenset({"GROUP", "INFORMATION"})
OUTSIDE_SCOPE = "O"  # the VAT category without a rate
PRECISION = 120  # digits: enough for the product of any two amounts

# Each row: the rule, the required field, and the name of the term.
HEAD_RULES = (
    ("BR-02", "number", "invoice number (BT-1)"),
    ("BR-03", "issue_date", "issue date (BT-2)"),
    ("BR-04", "type_code", "invoice type code (BT-3)"),
    ("BR-05", "currency", "currency code (BT-5)"),
    ("BR-06", "seller.name", "seller's name (BT-27)"),
    ("BR-07", "buyer.name", "buyer's name (BT-44)"),
    ("BR-09", "seller.address.country", "seller's country code (BT-40)"),
    ("BR-13", "totals.net", "total without VAT (BT-109)"),
    ("BR-14", "totals.gross", "total with VAT (BT-112)"),
    ("BR-15", "totals.due", "amount due (BT-115)"),
)
LINE_RULES = (
    ("BR-21", "id", "identifier (BT-126)"),
    ("BR-22", "quantity", "quantity (BT-129)"),
    ("BR-23", "unit", "unit of the quantity (BT-130)"),
    ("BR-24", "net_amount", "net amount (BT-131)"),
    ("BR-25", "name", "item name (BT-153)"),
    ("BR-26", "net_price", "net price (BT-146)"),
)
TAX_RULES = (
    ("BR-45", "basis", "taxable amount (BT-116)"),
    ("BR-46", "amount", "tax amount (BT-117)"),
    ("BR-47", "category", "category code (BT-118)"),
    ("BR-48", "rate", "rate (BT-119)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """An invoice to check. `sums`: the totals of `terms.OTHER_SUMS`, which are not part of `data`."""

    data: dict[str, Any]
    profile: Profile
    sums: dict[str, str]
    allowances: list[str]
    charges: list[str]
    line_states: list[str]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A broken rule. `detail` names the values that break it."""

    rule: str
    detail: str


def check(invoice: Invoice) -> list[BrokenRule]:
    """Return the broken rules. ZUGFeRD 1 is older than the standard, so no rules apply to it."""
    if not invoice.profile.is_en_16931:
        return []
    with localcontext(prec=PRECISION):
        return [*missing_terms(invoice), *wrong_sums(invoice)]


# ---- Required terms -------------------------------------------------------------------------------------------------
def missing_terms(invoice: Invoice) -> Iterator[BrokenRule]:
    profile = invoice.profile
    yield from (BrokenRule(rule, f"The {name} is missing.") for rule, name in missing_head_terms(invoice))
    if profile.has_lines:
        yield from missing_members(counted_lines(invoice), LINE_RULES, "Line")
    yield from missing_members(dict(enumerate(invoice.data["taxes"], start=1)), TAX_RULES, "VAT breakdown")


def missing_head_terms(invoice: Invoice) -> Iterator[tuple[str, str]]:
    """Yield the rules that require terms of the whole invoice, and the names of the terms."""
    data, profile = invoice.data, invoice.profile
    if not profile.name:
        yield "BR-01", "specification identifier (BT-24)"
    yield from ((rule, name) for rule, member, name in HEAD_RULES if value_at(data, member) is None)
    if profile.has_sums and "lines" not in invoice.sums:
        yield "BR-12", "sum of the line net amounts (BT-106)"
    if profile.has_lines and not data["lines"]:
        yield "BR-16", "first line (BG-25)"
    if profile.has_sums and not data["taxes"]:
        yield "BR-CO-18", "VAT breakdown (BG-23)"


def missing_members(
    items: dict[int, dict[str, str]], rules: Iterable[tuple[str, str, str]], item: str
) -> Iterator[BrokenRule]:
    """Yield a broken rule for each field that items lack, with the number of the first such item.

    `items`: by number.
    """
    for rule, member, name in rules:
        lacking = [
            number
            for number, each in items.items()
            if member not in each and not (member == "rate" and each.get("category") == OUTSIDE_SCOPE)
        ]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            yield BrokenRule(rule, f"{item} {lacking[0]}{more}: the {name} is missing.")


# ---- Sums -----------------------------------------------------------------------------------------------------------
def wrong_sums(invoice: Invoice) -> Iterator[BrokenRule]:
    profile, sums = invoice.profile, to_decimals(invoice.sums)
    totals, taxes = to_decimals(invoice.data.get("totals", {})), invoice.data["taxes"]
    for total in [
        *(sums_of_lines(invoice, sums) if profile.has_sums else ()),
        *document_totals(totals, sums, taxes, profile),
    ]:
        yield from total.broken(profile)
    for number, tax in enumerate(taxes, start=1):
        yield from wrong_tax(number, to_decimals(tax))


@dataclass(frozen=True, slots=True)
class Total:
    """A total and the parts that it must be the sum of."""

    rule: str
    name: str
    stated: Decimal
    parts: list[Decimal]

    def broken(self, profile: Profile) -> Iterator[BrokenRule]:
        """Yield the rule if the total is not the rounded sum of its parts."""
        expected = round_to_cents(sum(self.parts, ZERO))
        tolerance = CENT * max(len(self.parts), 1) if profile.is_extended else ZERO
        if abs(self.stated - expected) > tolerance:
            yield BrokenRule(self.rule, f"The {self.name} is {self.stated:f}; the sum of its parts is {expected:f}.")


def sums_of_lines(invoice: Invoice, sums: dict[str, Decimal]) -> Iterator[Total]:
    """Yield the sums of the lines, allowances, and charges."""
    if invoice.profile.has_lines and "lines" in sums:
        amounts = [line.get("net_amount", "0") for line in counted_lines(invoice).values()]
        yield Total("BR-CO-10", "sum of the line net amounts (BT-106)", sums["lines"], list(map(Decimal, amounts)))
    for rule, name, term, parts in (
        ("BR-CO-11", "allowances", "BT-107", invoice.allowances),
        ("BR-CO-12", "charges", "BT-108", invoice.charges),
    ):
        yield Total(rule, f"sum of the {name} ({term})", sums.get(name, ZERO), list(map(Decimal, parts)))


def document_totals(
    totals: dict[str, Decimal], sums: dict[str, Decimal], taxes: list[dict[str, str]], profile: Profile
) -> Iterator[Total]:
    """Yield the totals of the invoice that its profile has."""
    if "net" in totals and "lines" in sums:
        parts = [sums["lines"], -sums.get("allowances", ZERO), sums.get("charges", ZERO)]
        yield Total("BR-CO-13", "total without VAT (BT-109)", totals["net"], parts)
    if "tax" in totals and taxes and all("amount" in tax for tax in taxes):
        yield Total("BR-CO-14", "total VAT (BT-110)", totals["tax"], [Decimal(tax["amount"]) for tax in taxes])
    if {"net", "gross"} <= totals.keys():
        yield Total("BR-CO-15", "total with VAT (BT-112)", totals["gross"], [totals["net"], totals.get("tax", ZERO)])
    if profile.has_sums and profile.has_only_prepaid and {"gross", "due"} <= totals.keys():
        parts = [totals["gross"], -totals.get("prepaid", ZERO), sums.get("rounding", ZERO)]
        yield Total("BR-CO-16", "amount due (BT-115)", totals["due"], parts)


def counted_lines(invoice: Invoice) -> dict[int, dict[str, str]]:
    """Return the lines whose amounts are included in sums, by their number in the invoice."""
    lines = enumerate(zip(invoice.data["lines"], invoice.line_states, strict=True), start=1)
    return {number: line for number, (line, state) in lines if state not in UNCOUNTED_STATES}


def wrong_tax(number: int, tax: dict[str, Decimal]) -> Iterator[BrokenRule]:
    if not {"basis", "amount"} <= tax.keys():
        return
    expected = round_to_cents(abs(tax["basis"]) * tax.get("rate", ZERO) / 100)
    if abs(abs(tax["amount"]) - expected) > TAX_TOLERANCE:
        detail = (
            f"VAT breakdown {number}: the tax amount (BT-117) is {tax['amount']:f}; "
            f"basis and rate result in {expected:f}."
        )
        yield BrokenRule("BR-CO-17", detail)


def to_decimals(members: dict[str, str]) -> dict[str, Decimal]:
    return {name: Decimal(text) for name, text in members.items() if name != "category"}


def round_to_cents(amount: Decimal) -> Decimal:
    """Round to cents, half up, like XPath's `round` in the validation artifacts."""
    return (amount * 100 + HALF).to_integral_value(ROUND_FLOOR) * CENT
