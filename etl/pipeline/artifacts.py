"""What stages leave in object storage, under keys that a task's row tells: whoever takes a task up finds it again.

    etl/tasks/17/ocr-1/3f9a….md              the Markdown, named by its content
    etl/tasks/17/ocr-1/result.json           the commit of OCR: pages, metadata, warnings, and which Markdown
    etl/tasks/17/result-1/output.json        the commit of post-processing
    etl/tasks/17/result-1/journal/5c1e….json     answers of models in this run, good or not
    etl/tasks/17/journal-1/5c1e….json        answers that were accepted, also for a later run

A commit is written once (If-None-Match): of two workers that finish the same run, the second takes over what the
first one stored. Numbers are those of the row's runs.
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
    """What names a task's artefacts: a row, or a run-state."""

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
    """The commit of OCR, without the Markdown. `facts` is `OCRResult.as_dict()`; `attempts`: runs that it took."""

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
    """Store what OCR found; the Markdown first, so that a commit never names what is not there.

    Returns what is stored in the end: ours, or that of another worker that was first. Raises StorageError, and what
    `check` raises.
    """
    text = clean(result.markdown).encode()
    key = f"{ocr_folder(owner)}{hashlib.sha256(text).hexdigest()}.md"
    put_once(key, text, content_type=MARKDOWN, check=check)
    ours = {"markdown_key": key, "facts": result.as_dict(), "warnings": warnings, "attempts": attempts}
    return StoredOcr(**commit(ocr_key(owner), ours, check=check))


def load_ocr(stored: StoredOcr) -> OCRResult:
    """Return the whole result of OCR. Raises Missing when the Markdown is gone, and StorageError."""
    markdown = b"".join(storage.read(stored.markdown_key)).decode()
    return OCRResult.from_dict(stored.facts, markdown=markdown)


# ---- Small JSON objects ---------------------------------------------------------------------------------------------
def find(key: str) -> dict[str, Any] | None:
    """Return a JSON object, or None when there is none. Raises StorageError."""
    try:
        found: dict[str, Any] = json.loads(b"".join(storage.read(key)))
    except storage.Missing:
        return None
    return found


def commit(key: str, ours: dict[str, Any], *, check: Callable[[], None]) -> dict[str, Any]:
    """Store a JSON object unless one is there, and return the one that is there then. Raises StorageError."""
    if put_once(key, dumped(ours), content_type=JSON, check=check):
        return clean(ours)  # type: ignore[no-any-return]
    theirs = find(key)
    if theirs is None:
        raise storage.UploadFailed("the object came and went", retryable=True)
    return theirs


def put_once(key: str, content: bytes, *, content_type: str, check: Callable[[], None]) -> bool:
    """Store an object unless there is one. Returns whether it was stored."""
    try:
        storage.put(key, content, content_type=content_type, checkpoint=check)
    except storage.Conflict:
        return False
    return True


def dumped(value: Any) -> bytes:
    """Return JSON as it is stored, here and in run-states and rows."""
    return json.dumps(clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def clean(value: Any) -> Any:
    """Return a value as JSON that Postgres can hold. What it cannot becomes another character, so that offsets stay."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean(str(name)): clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    return value
