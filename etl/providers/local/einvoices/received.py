"""Validation of e-invoices from the reader process.

That process parses untrusted files, so its messages are untrusted too.
"""

import re
from collections.abc import Mapping
from typing import Any

from config.platform import exact_json
from etl.core.characters import remove_control_characters
from etl.providers.base import EInvoice

TEXT, AMOUNT = "text", "amount"
PARTY = {
    "name": TEXT,
    "vat_id": TEXT,
    "address": dict.fromkeys(("street", "city", "postcode", "country"), TEXT),
}
# The expected shape of an invoice. The single item of a list is the shape of all items.
SHAPE = {
    **dict.fromkeys(("number", "issue_date", "type_code", "currency"), TEXT),
    "seller": PARTY,
    "buyer": PARTY,
    "payment": dict.fromkeys(("iban", "due_date", "terms"), TEXT),
    "lines": [
        {
            "id": TEXT,
            "name": TEXT,
            "quantity": AMOUNT,
            "unit": TEXT,
            **dict.fromkeys(("net_price", "net_amount", "vat_rate"), AMOUNT),
        }
    ],
    "taxes": [{"category": TEXT, **dict.fromkeys(("rate", "basis", "amount"), AMOUNT)}],
    "totals": dict.fromkeys(("net", "tax", "gross", "prepaid", "due"), AMOUNT),
    "notes": [TEXT],
}
LISTS = {name for name, inner in SHAPE.items() if isinstance(inner, list)}  # every invoice has them
# No exponent, and a limited number of digits, so that no value is expensive to convert.
AMOUNT_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]{0,40})(?:\.[0-9]{1,40})?")
CODE = re.compile(r"schema|profile|BR-(?:CO-)?[0-9]{1,3}")
SYNTAXES = ("cii", "ubl")
MAX_ERRORS, MAX_TEXT = 100, 1_000


def einvoice_of(message: Any) -> EInvoice:
    """Validate a message and return its e-invoice. Raises KeyError, TypeError, AttributeError, or ValueError."""
    if message["syntax"] not in SYNTAXES:
        raise ValueError(message["syntax"])
    if not message["data"].keys() >= LISTS:
        raise ValueError("a list is missing")
    return EInvoice(
        syntax=message["syntax"],
        profile=parse_text(message["profile"])[:MAX_TEXT],
        errors=tuple(parse_error(error) for error in message["errors"][:MAX_ERRORS]),
        data=validate(message["data"], SHAPE),
    )


def parse_error(error: Mapping[str, Any]) -> dict[str, str]:
    if not CODE.fullmatch(error["code"]):
        raise ValueError(error["code"])
    return {"code": error["code"], "detail": parse_text(error["detail"])[:MAX_TEXT]}


def validate(value: Any, shape: Any) -> Any:
    """Validate a value and return it, without fields that are not in the shape, and with exact numbers as amounts."""
    if isinstance(shape, dict | list) and not isinstance(value, type(shape)):
        raise TypeError(type(value).__name__)
    if isinstance(shape, dict):
        return {name: validate(value[name], inner) for name, inner in shape.items() if name in value}
    if isinstance(shape, list):
        return [validate(each, shape[0]) for each in value]
    return parse_text(value) if shape == TEXT else parse_amount(value)


def parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return remove_control_characters(value)


def parse_amount(value: Any) -> Any:
    if not AMOUNT_PATTERN.fullmatch(value):
        raise ValueError("not a decimal number")
    return exact_json.loads(value)
