"""Comparison of an e-invoice with the pages of its PDF. A file with two different invoices is a known kind of fraud."""

from typing import Any

from config.platform import exact_json
from etl.core.stage_context import StageContext
from etl.postprocessors import document_text
from etl.postprocessors.citations.index import Index
from etl.postprocessors.citations.values import Finder
from etl.providers.base import OCRResult
from etl.providers.local.einvoices.terms import value_at

DUE = "totals.due"
# The values that determine a payment. They must be on a page, in any notation that citations recognize.
COMPARED = {
    "number": "number",
    "total with VAT": "totals.gross",
    "amount due": DUE,
    "IBAN": "payment.iban",
}
MAX_VALUE = 100


def warn_of_differences(data: dict[str, Any], ocr: OCRResult, *, context: StageContext) -> None:
    """Warn about values of the e-invoice that the pages do not show."""
    finder = Finder(Index(document_text.clean(ocr)))
    for name, member in COMPARED.items():
        value = value_at(data, member)
        is_nothing_due = member == DUE and value == 0  # pages need not show it
        if value is not None and not is_nothing_due and not any(map(finder.places, spellings(value))):
            detail = f"The e-invoice has the {name} {str(value)[:MAX_VALUE]}, which the pages do not show."
            context.warn("einvoice_differs", detail)


def spellings(value: Any) -> list[Any]:
    """Return the values to search for. An amount is also searched for with the opposite sign, because the pages of a
    credit note may show it that way."""
    if isinstance(value, str):
        return [value]
    literal = exact_json.dumps(value).decode()
    return [value, exact_json.loads(literal[1:] if literal.startswith("-") else f"-{literal}")]
