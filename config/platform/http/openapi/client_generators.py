"""Changes to the OpenAPI schema for client generators. A postprocessing hook.

docs/generated-clients.md lists the generators that these changes are tested with.
"""

from collections.abc import Iterator
from typing import Any

LARGEST_INT32 = 2**31 - 1
# Names of enum values that are not identifiers.
NAMES = {",": "COMMA", ";": "SEMICOLON", "|": "PIPE", "\t": "TAB"}


def adapt(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    for schema in result["components"]["schemas"].values():
        describe_defaults(schema)
    for node in nodes(result):
        is_integer = node.get("type") in ("integer", ["integer", "null"])
        if is_integer and node.get("maximum", LARGEST_INT32 + 1) > LARGEST_INT32:
            node.setdefault("format", "int64")  # otherwise, generators for Go, Java, C#, and others use 32 bits
        if NAMES.keys() & set(map(str, node.get("enum", ()))):
            node["x-enum-varnames"] = [NAMES.get(value, value) for value in node["enum"]]
    for operations in [*result["paths"].values(), *result["webhooks"].values()]:
        for operation in operations.values():
            operation.setdefault("security", [])  # no authentication
    return result


def describe_defaults(schema: dict[str, Any]) -> None:
    """Move the default of an optional property to its description.

    Some generators make a property with `default` required.
    """
    for name, shape in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and "default" in shape:
            default = f"Default: {format_default(shape.pop('default'))}."
            shape["description"] = " ".join(filter(None, (shape.get("description", ""), default)))


def format_default(default: Any) -> str:
    if default == "":
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of the document, except in examples."""
    if isinstance(value, dict):
        yield value
        for name, member in value.items():
            if name not in ("example", "examples"):
                yield from nodes(member)
    elif isinstance(value, list):
        for member in value:
            yield from nodes(member)
