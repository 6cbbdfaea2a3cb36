"""Safe XML parser for Office documents: no document types, entities, or network access, and the default limits."""

from collections.abc import Iterator
from typing import IO, Any

from lxml import etree

from etl.core.errors import FileCorrupt

DOCTYPES = tuple("<!DOCTYPE".encode(encoding) for encoding in ("ascii", "utf-16-le", "utf-16-be"))
OPTIONS = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False, "remove_pis": True}


def parse(content: bytes) -> Any:
    """Return the root element. Raises FileCorrupt, also for a document type, which Office documents never declare."""
    if any(each in content for each in DOCTYPES):
        raise FileCorrupt
    try:
        root = etree.fromstring(content, etree.XMLParser(remove_comments=True, **OPTIONS))
    except etree.LxmlError:
        raise FileCorrupt from None
    if root.getroottree().docinfo.internalDTD is not None:  # in an encoding that the search above does not cover
        raise FileCorrupt
    return root


def stream(file: IO[bytes], *names: str) -> Iterator[Any]:
    """Yield complete elements with these local names, and free their memory afterwards. Raises FileCorrupt."""
    try:
        for _, element in etree.iterparse(
            file, tag=[f"{{*}}{name}" for name in names], remove_comments=True, **OPTIONS
        ):
            if element.getroottree().docinfo.internalDTD is not None:
                raise FileCorrupt
            yield element
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]
    except etree.LxmlError:
        raise FileCorrupt from None


def local_name(element: Any) -> str:
    """Return the name without its namespace, which differs between strict and transitional Office files."""
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def namespace(element: Any) -> str:
    return str(element.tag)[1:].partition("}")[0]


def attribute(element: Any, name: str, default: str = "") -> str:
    """Return an attribute by its local name."""
    if (value := element.get(name)) is not None:
        return str(value)
    return next((str(value) for key, value in element.attrib.items() if key.rpartition("}")[2] == name), default)


def child(element: Any, *names: str) -> Any:
    """Return the descendant at a path of local names, or None. `element` may be None."""
    for name in names:
        if element is None:
            return None
        element = next((each for each in element if local_name(each) == name), None)
    return element


def children(element: Any, *names: str) -> Iterator[Any]:
    return (each for each in element if local_name(each) in names) if element is not None else iter(())


def number(text: str, default: int = 0) -> int:
    """Return the integer in an attribute, or the default if the text is not an integer of at most nine characters."""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else default  # noqa: PLR2004 - digits
