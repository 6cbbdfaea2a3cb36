"""The local OCR provider: reads documents on the worker's machine, without a server or network.

Untrusted documents are parsed in a sandboxed reader process (ADR 13).

- Worker: `provider` implements OCRProvider; `process` starts the reader process and communicates with it; `plain` reads
  text files.
- Reader process: `__main__` enters the `sandbox` and passes requests to `reading`.
- Sources of `pages`: `pdf`, with `words` (text layer) and `forms`; `images`.
- `office`: documents that are not printed, such as spreadsheets and mails.
- OCR: `recognition`. Like text layers, it results in text `boxes`.
- Blocks from boxes: `page_text` asks `layout`, which combines `regions` (a model), `rulings`, `tables`, `prose`, and
  the reading `order`; `running_heads` and `hyphens` need several pages; `page_layout` describes the boxes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because the reader process imports this package too. It must start quickly, and without
    # Django, whose settings contain secrets.
    if name == "LocalProvider":
        from etl.providers.local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(name)
