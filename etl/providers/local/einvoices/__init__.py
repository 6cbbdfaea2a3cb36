"""E-invoices: XML of EN 16931, embedded in a PDF or as a separate document (ADR 41).

- Reader process: `attachments` extracts the XML from a PDF. `reading` recognizes and reads it with `terms`, the table
  of business terms, and validates it against the `schemas` of its profile and the `rules` of the standard.
- Worker: `received` validates the message of the reader process. `rendering` writes Markdown for an invoice without a
  PDF.
"""
