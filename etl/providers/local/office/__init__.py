"""Documents without printed pages: Office files, OpenDocument, HTML, EPUB, email, and delimited text (ADR 32).

- `reading` turns pages into messages for the worker. `pages` defines the type of a page.
- Containers: `archive` and `xml`, with the limits in `bounds`.
- Formats: `conversion` uses docling, for content that `parts` or `web` has checked. `workbook`, with `number_formats`,
  `format_codes`, and `sheets`, reads XLSX. `book` reads EPUB, `mail` reads EML, and `delimited` reads CSV.
- `markdown` writes headings, lists, and tables.
"""
