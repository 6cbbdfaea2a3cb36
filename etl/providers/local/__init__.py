"""The local OCR provider: reads documents on the worker's machine, without a server or network.

Untrusted documents are parsed in a sandboxed reader process (ADR 13).

- Worker: `provider` implements OCRProvider. `process` starts the reader process and communicates with it. `plain`
  reads text files.
- Reader process: `__main__` enters the `sandbox` and passes requests to `reading`.
- Page sources: `pdf`, with `words` (the text layer) and `forms`; `images`.
- `office`: documents without printed pages, such as spreadsheets and emails. A separate package reads e-invoices.
- OCR: `ocr_engine`, with `rapid_ocr`. Like a text layer, it produces text `boxes`. `onnx_models` loads the models.
- Layout: `page_recognition` turns boxes into blocks with `layout`, which combines `layout_model`, `rulings`, `tables`,
  `prose`, and the reading `order`. `running_heads` and `hyphens` compare several pages. `page_json` converts the
  blocks to the JSON of the API.
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
