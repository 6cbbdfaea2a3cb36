"""Markdown for e-invoices that have no PDF."""

import html
from collections.abc import Iterator
from typing import Any

from etl.providers.local.einvoices.terms import value_at
from etl.providers.local.office import markdown

PARTY = ("name", "address.street", "address.postcode", "address.city", "address.country", "vat_id")
COLUMNS = {
    "lines": {
        "id": "No.",
        "name": "Item",
        "quantity": "Quantity",
        "unit": "Unit",
        "net_price": "Net price",
        "vat_rate": "VAT %",
        "net_amount": "Net amount",
    },
    "taxes": {"category": "VAT category", "rate": "VAT %", "basis": "Taxable amount", "amount": "VAT amount"},
}
TOTALS = {"net": "Total without VAT", "tax": "VAT", "gross": "Total with VAT", "prepaid": "Paid", "due": "Amount due"}
CREDIT_NOTES = frozenset({"381", "396", "532", "81", "83", "261", "262", "296", "308", "420", "458"})


def render(data: dict[str, Any]) -> str:
    return markdown.join(blocks(data))


def blocks(data: dict[str, Any]) -> Iterator[str]:
    kind = "Credit note" if data.get("type_code") in CREDIT_NOTES else "Invoice"
    yield markdown.heading(1, f"{kind} {plain(data.get('number', ''))}")
    payment = data.get("payment", {})
    facts = {
        "Issue date": data.get("issue_date"),
        "Currency": data.get("currency"),
        "Due date": payment.get("due_date"),
        "IBAN": payment.get("iban"),
        "Payment terms": payment.get("terms"),
    }
    yield "\n\n".join(f"{name}: {markdown.one_line(plain(value))}" for name, value in facts.items() if value)
    for role in ("seller", "buyer"):
        yield markdown.heading(2, role.capitalize())
        yield ", ".join(
            markdown.one_line(plain(value)) for member in PARTY if (value := value_at(data.get(role, {}), member))
        )
    for name, title in (("lines", "Lines"), ("taxes", "VAT")):
        if items := data[name]:
            yield markdown.heading(2, title)
            columns = COLUMNS[name]
            rows = [[plain(item.get(member, "")) for member in columns] for item in items]
            yield markdown.table([list(columns.values()), *rows])
    if totals := data.get("totals"):
        yield markdown.heading(2, "Totals")
        yield markdown.table([["Total", "Amount"], *([TOTALS[name], plain(value)] for name, value in totals.items())])
    if data["notes"]:
        yield markdown.heading(2, "Notes")
        yield "\n\n".join(markdown.one_line(plain(note)) for note in data["notes"])


def plain(value: Any) -> str:
    """Return a value as text, with HTML escaped."""
    return html.escape(str(value), quote=False)
