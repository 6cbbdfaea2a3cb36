"""Documents that are not printed: Office files, OpenDocument, HTML, books, mails, and delimited text (ADR 32).

- `reading`: pages into messages; `pages`: their type.
- Containers: `archive`, `xml`; limits in `bounds`.
- Formats: `conversion` by docling, of what `parts` and `web` have checked; `workbook` with `number_formats` and
  `sheets`; `book`; `mail`; `delimited`.
- `markdown`: blocks as Markdown.
"""
