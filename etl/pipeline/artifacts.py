"""Artifacts of tasks in object storage. Their keys follow from the task's row, so that a retry finds them.

    etl/tasks/17/ocr-1/3f9a….md              the Markdown, named by its content
    etl/tasks/17/ocr-1/result.json           the commit of OCR: pages, metadata, warnings, and which Markdown
    etl/tasks/17/result-1/output.json        the commit of post-processing
    etl/tasks/17/result-1/journal/5c1e….json     model responses of this run, valid or not
    etl/tasks/17/journal-1/5c1e….json        accepted responses, which later runs can reuse

A commit is written once (If-None-Match): when two workers finish the same run, the second one uses the output of the
first. The numbers are `ocr_run`, `run` and `journal_run` of the row.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from config.platform import storage
from etl.core.characters import UNSTORABLE
from etl.providers.base import OCRResult

DOCUMENTS = "etl/documents/"
UPLOADS = "etl/uploads/"
TASKS = "etl/tasks/"
JSON = "application/json"
MARKDOWN = "text/markdown; charset=utf-8"


class ArtifactOwner(Protocol):
    """A row or a run-state: it has the numbers in the keys of its artifacts."""

    @property
    def task_id(self) -> int: ...
    @property
    def run(self) -> int: ...
    @property
    def ocr_run(self) -> int: ...
    @property
    def journal_run(self) -> int: ...


def folder(task_id: int) -> str:
    return f"{TASKS}{task_id}/"


def ocr_folder(owner: ArtifactOwner) -> str:
    return f"{folder(owner.task_id)}ocr-{owner.ocr_run}/"


def result_folder(owner: ArtifactOwner) -> str:
    return f"{folder(owner.task_id)}result-{owner.run}/"


def ocr_key(owner: ArtifactOwner) -> str:
    return f"{ocr_folder(owner)}result.json"


def output_key(owner: ArtifactOwner) -> str:
    return f"{result_folder(owner)}output.json"


def response_key(owner: ArtifactOwner, entry: str, *, run: bool) -> str:
    digest = hashlib.sha256(entry.encode()).hexdigest()
    of_task = f"{folder(owner.task_id)}journal-{owner.journal_run}/{digest}.json"
    return f"{result_folder(owner)}journal/{digest}.json" if run else of_task


# ---- OCR ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOcr:
    """The commit of OCR, without the Markdown. `facts`: `OCRResult.as_dict()`; `attempts`: how many OCR took."""

    markdown_key: str
    facts: dict[str, Any]
    warnings: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 1

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.facts["metadata"])


def find_ocr(owner: ArtifactOwner) -> StoredOcr | None:
    """Return the commit of OCR, if there is one. Raises StorageError."""
    found = find(ocr_key(owner))
    return None if found is None else StoredOcr(**found)


def keep_ocr(
    owner: ArtifactOwner, result: OCRResult, *, warnings: list[dict[str, Any]], attempts: int, check: Callable[[], None]
) -> StoredOcr:
    """Store an OCR result: the Markdown first, so that the commit never names a missing object.

    Return the stored commit, which is another worker's if that one was first. Raises StorageError, and the errors of
    `check`.
    """
    text = clean(result.markdown).encode()
    key = f"{ocr_folder(owner)}{hashlib.sha256(text).hexdigest()}.md"
    put_once(key, text, content_type=MARKDOWN, check=check)
    ours = {"markdown_key": key, "facts": result.as_dict(), "warnings": warnings, "attempts": attempts}
    return StoredOcr(**commit(ocr_key(owner), ours, check=check))


def load_ocr(stored: StoredOcr) -> OCRResult:
    """Return the whole OCR result. Raises Missing if the Markdown no longer exists, and StorageError."""
    markdown = b"".join(storage.read(stored.markdown_key)).decode()
    return OCRResult.from_dict(stored.facts, markdown=markdown)


# ---- Small JSON objects ---------------------------------------------------------------------------------------------
def find(key: str) -> dict[str, Any] | None:
    """Return a stored JSON object, or None. Raises StorageError."""
    try:
        found: dict[str, Any] = json.loads(b"".join(storage.read(key)))
    except storage.Missing:
        return None
    return found


def commit(key: str, ours: dict[str, Any], *, check: Callable[[], None]) -> dict[str, Any]:
    """Store a JSON object unless the key exists. Return the object that is stored then. Raises StorageError."""
    if put_once(key, dumped(ours), content_type=JSON, check=check):
        return clean(ours)  # type: ignore[no-any-return]
    theirs = find(key)
    if theirs is None:
        raise storage.UploadFailed("the object was deleted while it was written", retryable=True)
    return theirs


def put_once(key: str, content: bytes, *, content_type: str, check: Callable[[], None]) -> bool:
    """Store an object unless the key exists. Return whether it was stored."""
    try:
        storage.put(key, content, content_type=content_type, checkpoint=check)
    except storage.Conflict:
        return False
    return True


def dumped(value: Any) -> bytes:
    """Serialize to JSON as artifacts, run-states and rows store it."""
    return json.dumps(clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def clean(value: Any) -> Any:
    """Return a value that Postgres can store as JSON. Characters are replaced, not removed: offsets must not change."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean(str(name)): clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    return value
