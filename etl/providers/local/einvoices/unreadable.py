"""Reasons why an e-invoice cannot be read. The pages of the document are read instead."""

MAX_BYTES = 32 * 1024**2  # of an XML file, after decompression
MAX_LINES = 20_000  # of an invoice

REASONS = {
    "crashed": "The reader failed, or exceeded its limit of memory or time.",
    "invalid_xml": "The XML is not well-formed, or it is nested too deeply.",
    "document_type": "The XML declares a document type or entities, which are not allowed in an invoice.",
    "no_invoice": "The attachment has the file name of an e-invoice, but its content is not an invoice.",
    "several": "The PDF contains several different invoices.",
    "too_large": f"The invoice has more than {MAX_BYTES:,} bytes or {MAX_LINES:,} lines.",
}


class Unreadable(Exception):
    """Raised for an e-invoice that cannot be read. `reason`: a key of REASONS."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
