"""Validation of an e-invoice from the reader process, which is untrusted: it has parsed an untrusted file."""

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
# The shape of a result's data. A list has one item: the shape of all its items.
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
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,40})(?:\.[0-9]{1,40})?")
CODE = re.compile(r"schema|profile|BR-(?:CO-)?[0-9]{1,3}")
SYNTAXES = ("cii", "ubl")
MAX_ERRORS, MAX_TEXT = 100, 1_000


def einvoice_of(message: Any) -> EInvoice:
    """Return the e-invoice of a message. Raises KeyError, TypeError, AttributeError, or ValueError."""
    if message["syntax"] not in SYNTAXES:
        raise ValueError(message["syntax"])
    return EInvoice(
        syntax=message["syntax"],
        profile=text(message["profile"])[:MAX_TEXT],
        errors=tuple(error_of(error) for error in message["errors"][:MAX_ERRORS]),
        data=checked(message["data"], SHAPE),
    )


def error_of(error: Mapping[str, Any]) -> dict[str, str]:
    if not CODE.fullmatch(error["code"]):
        raise ValueError(error["code"])
    return {"code": error["code"], "detail": text(error["detail"])[:MAX_TEXT]}


def checked(value: Any, shape: Any) -> Any:
    """Return a value with only the members that the shape has, and amounts as numbers with their digits."""
    if isinstance(shape, dict | list) and not isinstance(value, type(shape)):
        raise TypeError(type(value).__name__)
    if isinstance(shape, dict):
        return {name: checked(value[name], inside) for name, inside in shape.items() if name in value}
    if isinstance(shape, list):
        return [checked(each, shape[0]) for each in value]
    return text(value) if shape == TEXT else number(value)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return remove_control_characters(value)


def number(value: Any) -> Any:
    if not JSON_NUMBER.fullmatch(value):
        raise ValueError(type(value).__name__)
    return exact_json.loads(value)
