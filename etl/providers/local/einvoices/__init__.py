"""E-invoices: XML of EN 16931 that a PDF carries, or that is the document (ADR 41).

- Reader process: `reading` recognizes and reads the XML with `terms`, the table of business terms, and checks it by the
  `schemas` of its profile and the `rules` of the standard; `attachments` takes it out of a PDF.
- Worker: `received` checks what the reader process sent; `rendering` writes Markdown for a document that is XML alone.
"""
