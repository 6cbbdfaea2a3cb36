"""Run a reader of documents in a separate process: python -m tests.reading.readers NAME

The process reads one path per line, and writes one line of JSON for each: `markdown` and `seconds`, or `error`. Peer
readers run in a separate venv, so this module imports only the standard library and the reader.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Read = Callable[[Path], dict[str, Any]]

KINDS = {".jpeg": "jpg", ".tif": "tiff", ".htm": "html"}  # formats that differ from the suffix
LIMITS = {"pages": 1000, "pixels": 100_000_000, "text": 100_000_000}


def local() -> Read:
    """Return the local provider's reader, without its sandbox and worker."""
    from etl.core.formats import DocumentFormat
    from etl.providers.local import ocr_engine, reading

    ocr_engine.warm_up()

    def read(path: Path) -> dict[str, Any]:
        suffix = path.suffix.lower()
        kind = DocumentFormat(KINDS.get(suffix, suffix[1:]))
        request = {"kind": kind.value, "limits": LIMITS}
        messages = list(reading.read(ocr_engine.Engine(), request, io.BytesIO(path.read_bytes())))
        if error := messages[-1].get("error") or messages[-1].get("startup_error"):
            return {"error": error}
        texts = [str(message["text"]) for message in messages if "page" in message]
        warnings = [f"page_failed {message['reason']}" for message in messages if "failed" in message]
        warnings += ["hidden_text" for message in messages if message.get("hidden")]
        return {"markdown": "\n\n".join(texts), "warnings": warnings}

    return read


def markitdown() -> Read:
    from markitdown import MarkItDown

    converter = MarkItDown(enable_plugins=False)
    return lambda path: {"markdown": converter.convert(str(path)).text_content}


def kreuzberg() -> Read:
    from kreuzberg import ExtractionConfig, extract_file_sync

    config = ExtractionConfig(output_format="markdown", use_cache=False)
    return lambda path: {"markdown": extract_file_sync(str(path), config=config).content}


def edgeparse() -> Read:
    from edgeparse import convert

    return lambda path: {"markdown": convert(str(path), format="markdown")}


def pdf_oxide() -> Read:
    from pdf_oxide import PdfDocument

    return lambda path: {"markdown": PdfDocument(str(path)).to_markdown_all()}


READERS: dict[str, Callable[[], Read]] = {
    "local": local,
    "markitdown": markitdown,
    "kreuzberg": kreuzberg,
    "edgeparse": edgeparse,
    "pdf-oxide": pdf_oxide,
}


def main(name: str) -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not part of the responses
    read = READERS[name]()
    for line in sys.stdin:
        began = time.monotonic()
        try:
            response = read(Path(line.rstrip("\n")))
        except Exception as error:  # noqa: BLE001 - any error of a peer is its result for this document
            response = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps({"seconds": time.monotonic() - began, **response}), file=responses, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
