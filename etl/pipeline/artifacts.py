"""Artifacts of tasks in object storage. Their keys are derived from the task's row, so that a retry finds them.

    etl/tasks/17/ocr-9405313/3f9a….md             the Markdown, named by its content
    etl/tasks/17/ocr-9405313/8b20….layout.json    the blocks of its pages with their boxes, named by their content
    etl/tasks/17/ocr-9405313/4c1d….lines.json     the lines of its pages with their boxes, named by their content
    etl/tasks/17/ocr-9405313/61e7….einvoice.json  the e-invoice in the document, named by its content
    etl/tasks/17/ocr-9405313/result.json          the commit of OCR: pages, metadata, warnings, the key of the Markdown
    etl/tasks/17/result-9405313/output.json       the commit of post-processing
    etl/tasks/17/result-9405313/answer.txt        the model's unusable response, if the run failed because of it
    etl/tasks/17/result-9405313/journal/5c1e….json model responses of this run, valid or not
    etl/tasks/17/journal-9405313/5c1e….json       accepted responses, which later runs can reuse

A commit is written once (If-None-Match): if two workers finish the same run, the second one uses the output of the
first. The numbers are `ocr_run`, `run` and `journal_run` of the row. They start at a random number, because a restored
database issues the same IDs again: with the ID alone, a new document would get the text of a lost one.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from config.platform import exact_json, storage
from config.platform.exact_json import Number
from etl.core.characters import UNSTORABLE
from etl.models import Task
from etl.providers.base import OCRResult
from etl.runstate import RunState

DOCUMENTS = "etl/documents/"
UPLOADS = "etl/uploads/"
TASKS = "etl/tasks/"
IMAGES = "etl/images/"
INBOX = "etl/inbox/"  # other systems store documents there
# Cleanup deletes only objects with keys of these forms. A dataset's folder may be below the same prefix, but its files
# have a date and an extension.
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
RUN = rf"{TASKS}(?P<task>\d+)/(?P<part>ocr|result|journal)-(?P<run>\d+)/"
RUN_FOLDER = re.compile(RUN)
ANY_RUN = re.compile(r"/(?:ocr|result|journal)-(\d+)/")
OWN_KEY = re.compile(
    rf"{DOCUMENTS}{UUID}\.[a-z0-9]+|{UPLOADS}\d+/{UUID}|{RUN}.+|{IMAGES}\d+/ocr-\d+/\d+-\d+\.(webp|jpg)"
)
JSON = "application/json"
MARKDOWN = "text/markdown; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
# Both have the task's ID and the numbers of runs, which keys of artifacts contain.
ArtifactOwner = Task | RunState


def inbox_of(user_id: int) -> str:
    """Return the folder of the bucket from which the user may submit files."""
    return f"{INBOX}{user_id}/"


class RunFolder(NamedTuple):
    """The task ID and the number of the run in the key of an artifact."""

    task_id: int
    run: int


def run_folder(key: str) -> RunFolder | None:
    """Return the task and the run of an artifact's key, or None for other keys."""
    found = RUN_FOLDER.match(key)
    return RunFolder(int(found["task"]), int(found["run"])) if found else None


def folder(owner: ArtifactOwner) -> str:
    return f"{TASKS}{owner.task_id}/"


def folders_of(task_id: int) -> tuple[str, str]:
    """Return the prefixes of all objects that are derived from a document."""
    return f"{TASKS}{task_id}/", f"{IMAGES}{task_id}/"


def is_superseded(key: str, task: Task) -> bool:
    """Return whether an artifact of a task is from an earlier run."""
    found = RUN_FOLDER.match(key)
    if found is None or int(found["task"]) != task.task_id:
        return False
    current = {"ocr": task.ocr_run, "result": task.run, "journal": task.journal_run}[found["part"]]
    return task.first_run <= int(found["run"]) < current


def is_of_runs(key: str, first: int | None, last: int | None) -> bool:
    """Return whether an object derived from a document is of one of these runs. None: of any run."""
    found = ANY_RUN.search(key)
    if found is None or not OWN_KEY.fullmatch(key):
        return False
    return first is None or last is None or first <= int(found[1]) <= last


def ocr_folder(owner: ArtifactOwner) -> str:
    return f"{folder(owner)}ocr-{owner.ocr_run}/"


def image_folder(owner: ArtifactOwner) -> str:
    return f"{IMAGES}{owner.task_id}/ocr-{owner.ocr_run}/"


def result_folder(owner: ArtifactOwner) -> str:
    return f"{folder(owner)}result-{owner.run}/"


def ocr_key(owner: ArtifactOwner) -> str:
    return f"{ocr_folder(owner)}result.json"


def output_key(owner: ArtifactOwner) -> str:
    return f"{result_folder(owner)}output.json"


def answer_key(owner: ArtifactOwner) -> str:
    return f"{result_folder(owner)}answer.txt"


def response_key(owner: ArtifactOwner, entry: str, *, run: bool) -> str:
    """Return the key of a cached model response. `run`: for this run only, not for later runs of the task."""
    journal = f"{result_folder(owner)}journal/" if run else f"{folder(owner)}journal-{owner.journal_run}/"
    return f"{journal}{hashlib.sha256(entry.encode()).hexdigest()}.json"


# ---- OCR ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOcr:
    """The commit of OCR, without the Markdown.

    `facts`: `OCRResult.as_dict()`, the keys of `store_parts`, and the document's `sha256`. `attempts`: the number of
    attempts of OCR.
    """

    markdown_key: str
    facts: dict[str, Any]
    warnings: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 1

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.facts["metadata"])


def find_ocr(owner: ArtifactOwner) -> StoredOcr | None:
    """Return the commit of OCR, if there is one. Raises StorageError."""
    found = find(ocr_key(owner), load=json.loads)
    return None if found is None else StoredOcr(**found)


def store_ocr(
    owner: ArtifactOwner,
    result: OCRResult,
    *,
    sha256: str = "",
    warnings: list[dict[str, Any]],
    attempts: int,
    check: Callable[[], None],
) -> StoredOcr:
    """Store an OCR result: the Markdown first, so that the commit never names a missing object.

    `sha256`: of the document. Return the stored commit, which is that of another worker if it was first. Raises
    StorageError, and the errors of `check`.
    """
    text = clean(result.markdown).encode()
    key = f"{ocr_folder(owner)}{hashlib.sha256(text).hexdigest()}.md"
    put_once(key, text, content_type=MARKDOWN, check=check)
    facts = {**result.as_dict(), **store_parts(owner, result, check=check), "sha256": sha256}
    ours = {"markdown_key": key, "facts": facts, "warnings": warnings, "attempts": attempts}
    return StoredOcr(**commit(ocr_key(owner), ours, check=check, load=json.loads))


def store_parts(owner: ArtifactOwner, result: OCRResult, *, check: Callable[[], None]) -> dict[str, str]:
    """Store the blocks and lines of the pages, if the provider returned them, and the e-invoice, if there is one.

    Return their keys, for the commit.
    """
    kept = {
        "layout": result.layout and {"pages": result.layout},
        "lines": result.lines,
        "einvoice": result.einvoice,
    }
    return {
        f"{name}_key": store_json(owner, f"{name}.json", dumped(content), check=check)
        for name, content in kept.items()
        if content
    }


def store_json(owner: ArtifactOwner, ending: str, content: bytes, *, check: Callable[[], None]) -> str:
    """Store JSON under the hash of its content. Return its key."""
    key = f"{ocr_folder(owner)}{hashlib.sha256(content).hexdigest()}.{ending}"
    put_once(key, content, content_type=JSON, check=check)
    return key


def load_ocr(stored: StoredOcr) -> OCRResult:
    """Return the OCR result without its layout. Raises Missing if an object no longer exists, and StorageError."""
    markdown = b"".join(storage.read(stored.markdown_key)).decode()
    lines = load_part(stored, "lines", load=json.loads) or {}
    return OCRResult.from_dict(
        stored.facts,
        markdown=markdown,
        lines={int(page): content for page, content in lines.items()},
        einvoice=load_part(stored, "einvoice", load=exact_json.loads),
    )


def load_part(stored: StoredOcr, name: str, *, load: Callable[[bytes], Any]) -> Any:
    """Return a part that `store_parts` stored, or None."""
    key = stored.facts.get(f"{name}_key")
    return load(b"".join(storage.read(key))) if key else None


# ---- Small JSON objects ---------------------------------------------------------------------------------------------
def find(key: str, *, load: Callable[[bytes], Any] = exact_json.loads) -> dict[str, Any] | None:
    """Return a stored JSON object, or None. Raises StorageError."""
    try:
        found: dict[str, Any] = load(b"".join(storage.read(key)))
    except storage.Missing:
        return None
    return found


def commit(
    key: str,
    ours: dict[str, Any],
    *,
    check: Callable[[], None],
    load: Callable[[bytes], Any] = exact_json.loads,
) -> dict[str, Any]:
    """Store a JSON object unless the key exists. Return the stored object. Raises StorageError."""
    if put_once(key, dumped(ours), content_type=JSON, check=check):
        return clean(ours)  # type: ignore[no-any-return]
    theirs = find(key, load=load)
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
    """Serialize to JSON in the form that artifacts, run-states, and rows store."""
    return exact_json.dumps(clean(value))


def clean(value: Any) -> Any:
    """Return a value that Postgres can store as JSON. Characters are replaced, not removed, to keep offsets valid."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() >= 64:  # noqa: PLR2004 - the limit of `orjson`
        return Number(str(value))
    if isinstance(value, dict):
        return {clean(str(name)): clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one) for one in value]
    return value
