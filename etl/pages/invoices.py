"""Invoice view of a result, for rules with the mode `einvoice`."""

from dataclasses import dataclass, field
from typing import Any

from etl.providers.local.einvoices.rendering import COLUMNS, TOTALS
from etl.providers.local.einvoices.terms import value_at

MODE = "einvoice"
MAX_ROWS = 200  # of a table; the JSON tree has all rows
FACTS = {
    "number": "Number",
    "issue_date": "Issue date",
    "type_code": "Type code",
    "payment.due_date": "Due date",
    "payment.iban": "IBAN",
    "payment.terms": "Payment terms",
}
PARTY = {
    "name": "Name",
    "address.street": "Street",
    "address.postcode": "Postcode",
    "address.city": "City",
    "address.country": "Country",
    "vat_id": "VAT ID",
}
NUMBERS = frozenset({"quantity", "net_price", "vat_rate", "net_amount", "rate", "basis", "amount"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceTable:
    """A table. `columns`: the title of each, and whether it has numbers; `left_out`: the number of omitted rows."""

    title: str
    columns: list[tuple[str, bool]]
    rows: list[list[tuple[Any, bool]]]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceView:
    """An invoice. `is_exact`: it was read from an e-invoice, not extracted by a language model."""

    is_exact: bool
    model: str
    currency: str
    facts: list[tuple[str, Any]]
    parties: list[tuple[str, list[tuple[str, Any]]]]
    tables: list[InvoiceTable]
    totals: list[tuple[str, Any]]
    notes: list[str] = field(default_factory=list)


def provenance_of(output: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = output.get("metadata", {}).get("provenance", {})
    return found


def is_exact(output: dict[str, Any]) -> bool:
    """Return whether a result was read from an e-invoice. Such values need no citations."""
    return provenance_of(output).get("source") == MODE


def view_of(output: dict[str, Any]) -> InvoiceView | None:
    """Return the invoice of a result, or None if the result is of another mode or has another shape."""
    provenance, data = provenance_of(output), output["data"]
    if provenance.get("mode") != MODE or not isinstance(data, dict):
        return None
    try:
        return build(provenance, data)
    except (AttributeError, TypeError):
        return None  # the data has another shape, by the schema of a user's rule


def build(provenance: dict[str, Any], data: dict[str, Any]) -> InvoiceView:
    return InvoiceView(
        is_exact=provenance.get("source") == MODE,
        model=provenance.get("model") or "",
        currency=data.get("currency", ""),
        facts=pairs(FACTS, data),
        parties=[(role.capitalize(), pairs(PARTY, data[role])) for role in ("seller", "buyer") if data.get(role)],
        tables=[
            table(title, COLUMNS[name], items)
            for name, title in (("lines", "Lines"), ("taxes", "VAT"))
            if (items := items_of(data, name))
        ],
        totals=[(title, data["totals"][name]) for name, title in TOTALS.items() if name in (data.get("totals") or {})],
        notes=items_of(data, "notes"),
    )


def items_of(data: dict[str, Any], name: str) -> list[Any]:
    """Return the items of a list, or [] if it is missing or null. Raises TypeError for other values."""
    items = data.get(name) or []
    if not isinstance(items, list):
        raise TypeError(type(items).__name__)
    return items


def pairs(names: dict[str, str], data: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(title, value) for member, title in names.items() if (value := value_at(data, member))]


def table(title: str, names: dict[str, str], items: list[dict[str, Any]]) -> InvoiceTable:
    used = [member for member in names if any(member in item for item in items)]
    return InvoiceTable(
        title=title,
        columns=[(names[member], member in NUMBERS) for member in used],
        rows=[[(item.get(member, ""), member in NUMBERS) for member in used] for item in items[:MAX_ROWS]],
        left_out=max(0, len(items) - MAX_ROWS),
    )
