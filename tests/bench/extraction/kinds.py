"""Kinds of documents: printed columns, the schema of the result, and invented items.

The members of a schema are in a different order from the printed columns, so that a reader without the head of a table
confuses numbers.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.bench.extraction.documents import Schema, schema_of
from tests.bench.extraction.languages import DUTIES, GOODS, PARTIES, TRANSACTIONS, Language

TEXT, NUMBER, WHOLE = {"type": "string", "minLength": 1}, {"type": "number"}, {"type": "integer"}
DATE = {"type": "string", "format": "date"}
BEGINNING = dt.date(2024, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item. `values`: as in the result. `printed`: the cells by member."""

    values: dict[str, Any]
    printed: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of document.

    - `columns`: the members in printed order.
    - `groups`: members that are printed in separate rows above the items, outermost first.
    - `running`: the member whose sum is carried forward.
    """

    columns: tuple[str, ...]
    groups: tuple[str, ...] = ()
    running: str
    schema: Schema
    make: Callable[[Random, Language, int], Item]


def money(rng: Random) -> float:
    return rng.randrange(1_00, 2_000_00) / 100


def invoice_line(rng: Random, language: Language, number: int) -> Item:
    quantity, cents = rng.randrange(2, 40), rng.choice((3_15, 12_50, 62_50, 148_20, 1_099_00, 7_95, 84_10))
    values = {
        "sku": f"{rng.choice('ABCD')}-{1000 + number}",
        "description": rng.choice(GOODS[language.code]),
        "quantity": quantity,
        "unit_price": cents / 100,
        "amount": quantity * cents / 100,
    }
    return Item(values=values, printed=cells(values, language))


def booking(rng: Random, language: Language, number: int) -> Item:
    amount = money(rng) * rng.choice((1, -1))
    values = {
        "date": (BEGINNING + dt.timedelta(days=number // 4)).isoformat(),
        "text": f"{rng.choice(TRANSACTIONS[language.code])} {rng.randrange(1000, 9999)}",
        "amount": amount,
        "balance": 0.0,  # set by the writer
    }
    return Item(values=values, printed=cells(values, language))


def stock_item(rng: Random, language: Language, number: int) -> Item:
    stock = rng.randrange(3, 2400)
    values = {
        "sku": f"{rng.choice('KLMN')}{20000 + number}",
        "description": rng.choice(GOODS[language.code]),
        "location": f"{rng.choice('EFGH')}{rng.randrange(1, 9)}" if rng.random() < 0.8 else None,
        "stock": stock,
        "value": rng.choice((12_00, 19_50, 250_00, 1_500_00, 88_80)) / 100,
    }
    return Item(values=values, printed=cells(values, language))


def branch_stock(rng: Random, language: Language, number: int) -> Item:
    """Return an item with a site, which changes every 26 items, and a region, which changes every 78 items."""
    stock = stock_item(rng, language, number)
    site = number // 26
    groups = {"region": ("North", "East", "South", "West")[site // 3 % 4], "site": f"Branch {101 + 7 * site}"}
    values = groups | {name: value for name, value in stock.values.items() if name != "location"}
    return Item(values=values, printed=cells(values, language))


def duty(rng: Random, language: Language, number: int) -> Item:
    values = {
        "clause": f"{4 + number // 60}.{1 + number % 60}",
        "obligation": f"{rng.choice(DUTIES[language.code])} {number + 1}",
        "party": rng.choice(PARTIES[language.code]),
        "due": (BEGINNING + dt.timedelta(days=5 * number)).isoformat(),
        "amount": rng.choice((500_00, 1_250_00, 9_900_00, 500_00)) / 100,
    }
    return Item(values=values, printed=cells(values, language))


def cells(values: Mapping[str, Any], language: Language) -> dict[str, str]:
    return {name: printed(name, value, language) for name, value in values.items()}


def printed(name: str, value: Any, language: Language) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return language.yes if value else language.no
    if name in ("date", "due", "issue_date"):
        return language.date(dt.date.fromisoformat(value))
    if isinstance(value, int):
        return language.number(value, 0)
    return language.number(value) if isinstance(value, float) else str(value)


KINDS = {
    "invoice": Kind(
        columns=("sku", "description", "unit_price", "quantity", "amount"),
        running="amount",
        schema=schema_of(
            {"sku": TEXT, "description": TEXT, "quantity": WHOLE, "unit_price": NUMBER, "amount": NUMBER},
            {
                "number": TEXT,
                "issue_date": DATE,
                "total": {**NUMBER, "x-merge": "last", "x-sum-of": "/rows/*/amount"},
            },
        ),
        make=invoice_line,
    ),
    "statement": Kind(
        columns=("date", "text", "amount", "balance"),
        running="amount",
        schema=schema_of(
            {"date": DATE, "text": TEXT, "balance": NUMBER, "amount": NUMBER},
            {
                "account": TEXT,
                "opening_balance": {**NUMBER, "x-merge": "first"},
                "closing_balance": {
                    **NUMBER,
                    "x-merge": "last",
                    "description": "The last one that is printed: pages show the balance at their end",
                },
            },
        ),
        make=booking,
    ),
    "inventory": Kind(
        columns=("sku", "description", "location", "value", "stock"),
        running="stock",
        schema=schema_of(
            {
                "sku": TEXT,
                "description": TEXT,
                "location": {"type": ["string", "null"]},
                "stock": WHOLE,
                "value": NUMBER,
            },
            {"warehouse": TEXT, "date": DATE, "total": {**WHOLE, "x-sum-of": "/rows/*/stock"}},
        ),
        make=stock_item,
    ),
    "branches": Kind(
        columns=("sku", "description", "value", "stock"),
        groups=("region", "site"),
        running="stock",
        schema=schema_of(
            {"sku": TEXT, "description": TEXT, "stock": WHOLE, "value": NUMBER, "region": TEXT, "site": TEXT},
            {"warehouse": TEXT, "date": DATE, "total": {**WHOLE, "x-sum-of": "/rows/*/stock"}},
        ),
        make=branch_stock,
    ),
    "contract": Kind(
        columns=("clause", "obligation", "party", "due", "amount"),
        running="amount",
        schema=schema_of(
            {"clause": TEXT, "obligation": TEXT, "amount": NUMBER, "party": TEXT, "due": DATE},
            {
                "number": TEXT,
                "supplier": {
                    "type": "object",
                    "properties": {"name": TEXT, "tax_id": TEXT},
                    "required": ["name", "tax_id"],
                    "additionalProperties": False,
                    "description": "The last one that is named: a contract may pass on to another supplier",
                },
                "contract_value": {**NUMBER, "description": "The last one that is printed: it may have been amended"},
                "renewal": {"type": "boolean"},
            },
        ),
        make=duty,
    ),
}
