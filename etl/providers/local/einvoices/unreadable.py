"""Reasons why a file that should be an e-invoice is not read. The page is read instead."""

MAX_BYTES = 32 * 1024**2  # of an XML file, after decompression
MAX_LINES = 20_000  # of an invoice

REASONS = {
    "crashed": "Reading it failed, or took more memory or time than allowed.",
    "invalid_xml": "It is not well-formed XML, or it is nested too deeply.",
    "document_type": "It declares a document type or entities, which invoices do not have.",
    "no_invoice": "The attached file with an invoice's name is not an invoice.",
    "several": "The PDF carries several different invoices.",
    "too_large": f"It has more than {MAX_BYTES:,} bytes or {MAX_LINES:,} lines.",
}


class Unreadable(Exception):
    """`reason`: one of REASONS."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
