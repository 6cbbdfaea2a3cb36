"""JSON whose numbers keep their digits, in both directions.

The standard library reads 90071992547409.93 as the nearest double, which is 90071992547409.94, and writes 1e22 as
1e+22. Here, every number that is not a small integer is a Number: a Decimal that remembers how it was written.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Self

import orjson

# Longer integers may not fit into 64 bits, which is the limit of `orjson`.
MAX_INTEGER_LENGTH = 18


class Number(Decimal):
    """A JSON number. It has its exact value, and is serialized as it was read: `1e22`, `-0.0`, `12.50`.

    Raises ValueError for an exponent of about 19 digits or more.
    """

    __slots__ = ("literal",)
    literal: str

    def __new__(cls, literal: str) -> Self:
        try:
            self = super().__new__(cls, literal)
        except InvalidOperation:
            raise ValueError("The exponent of the number is out of range.") from None
        self.literal = literal
        return self

    def __repr__(self) -> str:
        return self.literal

    __str__ = __repr__

    def __format__(self, spec: str, *options: Any) -> str:
        return super().__format__(spec, *options) if spec else self.literal

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.literal,)


def integer(literal: str) -> int | Number:
    """Parse an integer: a large one, or -0, as a Number that keeps its digits."""
    return int(literal) if len(literal) <= MAX_INTEGER_LENGTH and literal != "-0" else Number(literal)


def loads(text: str | bytes) -> Any:
    """Parse JSON that `dumps` wrote, or that was validated before. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=Number, parse_int=integer)


def dumps(value: Any, *, indent: bool = False, is_sorted: bool = False) -> bytes:
    """Serialize to JSON. `is_sorted`: sort members by name. Raises TypeError."""
    option = (orjson.OPT_INDENT_2 if indent else 0) | (orjson.OPT_SORT_KEYS if is_sorted else 0)
    return orjson.dumps(value, default=serialize_number, option=option)


def serialize_number(value: Any) -> orjson.Fragment:
    """Serialize a value of a type that `orjson` does not know. The `default` function of `orjson`."""
    if isinstance(value, Number):
        return orjson.Fragment(value.literal)
    raise TypeError(f"{type(value).__name__} is not a JSON value.")


def comparable(number: Decimal) -> str:
    """Return a text that is equal for equal numbers: `12.50` and `1.25e1` give `125E-1`.

    `Decimal.normalize` would round to 28 digits.
    """
    sign, digits, exponent = number.as_tuple()
    whole = "".join(map(str, digits)).lstrip("0")
    short = whole.rstrip("0")
    return f"{'-' * sign}{short}E{int(exponent) + len(whole) - len(short)}" if short else "0"


def nested_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than `levels`. `{}` is one level. Not recursive."""
    level = [value]
    for _ in range(levels + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return True
