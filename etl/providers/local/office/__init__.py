"""Documents that are not printed: Office files, OpenDocument, HTML, books, mails, and delimited text (ADR 32).

- `reading`: pages into messages; `pages`: their type.
- Containers: `archive`, `xml`; limits in `bounds`.
- Formats: `word` with `word_styles`; `workbook` with `number_formats` and `sheets`; `slides`; `open_document`; `web`;
  `book`; `mail`; `delimited`.
- `markdown`: blocks as Markdown.
"""
