"""JSON Pointers, RFC 6901: `/items/17/effectiveDate`."""


def join(pointer: str, name: object) -> str:
    """Return the pointer to a member, with `~` and `/` escaped in its name."""
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"


def tokens(pointer: str) -> list[str]:
    """Return the names and indexes in a pointer. The pointer to the whole document has none."""
    return [unescaped(token) for token in pointer.split("/")[1:]]


def unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
