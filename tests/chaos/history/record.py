"""The record of a soak test: a file with a JSON line for each response, object, stream, webhook, action, and fault."""

import csv
import gzip
import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Line = dict[str, Any]
ENDED = ("success", "failed", "cancelled")
MAX_BODY = 300_000  # bytes of a JSON body that is recorded as a whole


class Record:
    """The file, written by many threads. Times are monotonic, except `at`, the wall-clock time at the end."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", buffering=1)
        self.lock = threading.Lock()
        self.is_final = False  # set when all work has ended: later responses describe the final state

    def add(self, kind: str, began: float, **facts: Any) -> Line:
        line: Line = {"kind": kind, "began": began, "ended": time.monotonic(), "at": time.time(), **facts}
        if self.is_final:
            line["final"] = True
        with self.lock:
            self.file.write(json.dumps(line) + "\n")
        return line

    def close(self) -> None:
        self.file.close()


def read(path: Path) -> list[Line]:
    """Return the lines in the order of their start."""
    with path.open() as file:
        return sorted(map(json.loads, file), key=lambda line: float(line["began"]))


def body_facts(content: bytes) -> Line:
    """Return the checksum of a body, and its JSON unless it is large."""
    facts: Line = {"sha256": hashlib.sha256(content).hexdigest(), "body": None}
    if content.startswith((b"{", b"[")) and len(content) <= MAX_BODY:
        facts["body"] = json.loads(content)
    return facts


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def link_in(path: str) -> str:
    """Return the token of a link."""
    return parse_qs(urlsplit(path).query)["token"][0]


# ---- Files ----------------------------------------------------------------------------------------------------------


def file_facts(content: bytes) -> Line:
    """Return the checksum, size, and contents of a download: of a zip, a manifest, or rows.

    `plain`: the checksum of the decompressed rows. `columns`: those of all rows. `slices`: key, date, versions, and
    number of rows of each slice.
    """
    facts: Line = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            files = {name: file_facts(archive.read(name)) for name in names if name != "manifest.json"}
            manifest = json.loads(archive.read("manifest.json"))
        return {**facts, "names": names, "files": files, "manifest": manifest}
    if content.startswith(b'{"jobId"'):
        return {**facts, "manifest": json.loads(content)}
    plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    rows = list(rows_of(plain))
    return {
        **facts,
        "plain": hashlib.sha256(plain).hexdigest(),
        "format": "jsonl" if plain.startswith(b"{") else "csv",
        "columns": list(dict.fromkeys(name for row in rows for name in row)),
        "slices": slices_of(rows),
    }


def rows_of(plain: bytes) -> Iterator[dict[str, Any]]:
    if plain.startswith(b"{"):
        return map(json.loads, plain.splitlines())
    return csv.DictReader(io.StringIO(plain.decode(), newline=""))


def slices_of(rows: Iterable[dict[str, Any]]) -> list[Any]:
    """Return the slices in order, with all versions in each."""
    found = []
    for (key, day), group in groupby(rows, key=lambda row: (row["k"], row.get("day"))):
        its = list(group)
        found.append([key, day, sorted({int(row["version"]) for row in its if "version" in row}), len(its)])
    return found
