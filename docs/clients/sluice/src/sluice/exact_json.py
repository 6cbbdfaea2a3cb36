"""JSON whose numbers keep their digits: amounts are printed and sent exactly as they were received."""

import json
from typing import Any, Self


class Number(float):
    """A number with a fraction or an exponent, or -0. It is a float that is written as it was read."""

    literal: str

    def __new__(cls, literal: str) -> Self:
        self = super().__new__(cls, literal)
        self.literal = literal
        return self


def integer(literal: str) -> int | Number:
    return Number(literal) if literal == "-0" else int(literal)


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError."""
    return json.loads(text, parse_float=Number, parse_int=integer)


def dumps(value: Any, *, indent: int | None = None, margin: str = "\n") -> str:
    """Serialize to JSON, in the layout of `json.dumps`."""
    if isinstance(value, Number):
        return value.literal
    if not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    inner = margin + " " * indent if indent else ""
    parts = [
        dumps(each, indent=indent, margin=inner) for each in (value.values() if isinstance(value, dict) else value)
    ]
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {part}" for name, part in zip(value, parts, strict=True)]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}{inner}{(f',{inner}' if indent else ', ').join(parts)}{margin if indent else ''}{end}"
