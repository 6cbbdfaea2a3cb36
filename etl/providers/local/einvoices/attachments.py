"""Files that are embedded in a PDF. Runs only in the reader process."""

from dataclasses import dataclass, field
from typing import Any

import pypdfium2.raw as pdfium

from etl.providers.local.einvoices.unreadable import MAX_BYTES, Unreadable

# The file names that the versions of ZUGFeRD, Factur-X, and XRechnung require, in lower case.
NAMES = frozenset({"factur-x.xml", "zugferd-invoice.xml", "xrechnung.xml"})
# Only the first attachments are searched, because a PDF portfolio may have thousands.
MAX_ATTACHMENTS = 200


@dataclass(slots=True)
class XmlFiles:
    """The contents of XML files. `named`: files with the standard name of an e-invoice."""

    named: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)


def find(document: Any) -> XmlFiles:
    """Return the XML files of a PDF. Raises Unreadable."""
    files = XmlFiles()
    for index in range(min(document.count_attachments(), MAX_ATTACHMENTS)):
        attachment = document.get_attachment(index)
        name = attachment.get_name().lower()
        if name in NAMES:
            files.named.append(content(attachment))
        elif name.endswith(".xml") and size_of(attachment) <= MAX_BYTES:
            files.others.append(content(attachment))
    return files


def content(attachment: Any) -> bytes:
    if size_of(attachment) > MAX_BYTES:
        raise Unreadable("too_large")
    return bytes(attachment.get_data())


def size_of(attachment: Any) -> int:
    """Return the size in bytes after decompression, or 0 for an attachment without data."""
    size = pdfium.c_ulong()
    return size.value if pdfium.FPDFAttachment_GetFile(attachment, None, 0, size) else 0
