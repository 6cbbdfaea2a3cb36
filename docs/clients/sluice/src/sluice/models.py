"""Responses of the API as objects.

`raw` is the unchanged response, with fields of newer servers that this release does not know.
"""

from dataclasses import dataclass, field, fields
from datetime import date, datetime
from functools import cache
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

Raw = dict[str, Any]


def named(name: str) -> Any:
    """Return a field that has another name in JSON."""
    return field(metadata={"json": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An object of the API."""

    raw: Raw = field(repr=False, compare=False)

    @classmethod
    def of(cls, document: Any) -> Self:
        """Convert a JSON object. Raises InvalidResponse if a field is missing or has another type."""
        try:
            return cls(raw=document, **{name: convert(document[key], kind) for name, key, kind in shape(cls, document)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            from sluice.errors import InvalidResponse

            raise InvalidResponse(f"The response is not {cls.__name__} of the API: {error!r}.") from None


def shape(cls: type, document: Raw) -> list[tuple[str, str, Any]]:
    """Return the name, the JSON key, and the type of each field. Missing fields with a default are omitted."""
    found = []
    for each, kind in types_of(cls):
        snake = each.metadata.get("json", each.name)
        head, *rest = snake.split("_")
        key = snake if snake in document else head + "".join(word.title() for word in rest)
        if key in document or not (type(None) in get_args(kind) or get_origin(kind) is list):
            found.append((each.name, key, kind))
    return found


@cache
def types_of(cls: type) -> list[tuple[Any, Any]]:
    hints = get_type_hints(cls)
    return [(each, hints[each.name]) for each in fields(cls) if each.name != "raw"]


def convert(value: Any, kind: Any) -> Any:
    """Convert a JSON value to the type of a field."""
    if get_origin(kind) is UnionType:
        return None if value is None else convert(value, get_args(kind)[0])
    if get_origin(kind) is list:
        return [convert(each, get_args(kind)[0]) for each in value]
    if kind in (datetime, date):
        return kind.fromisoformat(value)
    if isinstance(kind, type) and issubclass(kind, Model):
        return kind.of(value)
    return value


M = TypeVar("M", bound=Model)


# ---- Exports --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Model):
    """The reason for the failure of an export, a chunk, or a document. `stage`: only of documents."""

    code: str
    detail: str
    retryable: bool
    title: str | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Model):
    """The number of chunks in each state. `done` includes `reused` and `degraded`."""

    total: int
    pending: int
    running: int
    retrying: int
    done: int
    failed: int
    cancelled: int
    reused: int
    degraded: int
    rows: int
    bytes: int
    percent: float
    eta_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Model):
    """The file of a successful export. `state`: active, redeemed, link_expired or expired."""

    signed_url: str | None = field(default=None, repr=False)
    expires_at: datetime
    delivery_expires_at: datetime
    checksum: str
    size_bytes: int
    rows: int
    files: int
    degraded: bool
    content_type: str
    file_name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(Model):
    """An export. `status`: pending, running, retrying, success, failed or cancelled."""

    id: str = named("jobId")
    name: str | None = None
    dataset: str
    status: str
    format: str
    compression: str
    delivery: str
    columns: list[str] | None = None
    schedule_id: str | None = None
    planned_at: datetime | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    purge_at: datetime
    queue_position: int
    progress: Progress
    error: Failure | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedExport(Model):
    """A new export."""

    id: str = named("jobId")
    status: str
    total_chunks: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Model):
    """The chunks that an export would contain, and the number that would count toward the daily quota."""

    total_chunks: int
    duplicates: int
    reusable: int
    quota_cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(Model):
    """One chunk of an export. `status`: pending, running, retrying, done, failed or cancelled."""

    key: str
    effective_date: date
    status: str
    attempts: int
    source: str | None = None
    rows: int | None = None
    bytes: int | None = None
    checksum: str | None = None
    data_as_of: datetime | None = None
    error: Failure | None = None
    source_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Model):
    """A link that works once."""

    signed_url: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Model):
    """A column of a dataset, with its type in Postgres."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Model):
    """A dataset. `kind`: function or documents. `columns`: only from `exports.dataset`."""

    name: str
    kind: str | None = None
    schema_version: int
    formats: list[str]
    key_pattern: str
    granted_key_patterns: list[str] | None = None
    columns: list[Column] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLimit(Model):
    """A daily quota."""

    limit: int
    used: int
    remaining: int
    resets_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Model):
    """The limits of exports. `rate`: of POST requests, such as `60/min`."""

    jobs_per_day: DayLimit
    chunks_per_day: DayLimit
    max_chunks_per_job: int
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun(Model):
    """The last run of a schedule. `export_id`: None if it created no export."""

    export_id: str | None = field(default=None, metadata={"json": "jobId"})
    status: str
    started_at: datetime
    planned_at: datetime | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Model):
    """A recurring export. `window`: `{"unit": "day", "from": -1, "to": -1}`."""

    id: str
    name: str
    cron: str
    timezone: str
    request: dict[str, Any]
    window: dict[str, Any]
    misfire: str
    since_last_success: bool | None = None
    enabled: bool
    disabled_reason: str | None = None
    next_run_at: datetime | None = None
    last_run: LastRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(Model):
    """A webhook. `secret`: only in the response to its creation."""

    id: str
    url: str
    events: list[str]
    enabled: bool
    disabled_reason: str | None = None
    created_at: datetime
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Model):
    """An API token. `token`: only in the response to its creation."""

    id: str
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    token: str | None = field(default=None, repr=False)


# ---- Documents ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedTask(Model):
    """A document that was submitted, retried, or cancelled. `duplicate_of`: an earlier document with the same bytes."""

    id: int = named("task_id")
    status: str
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Model):
    """A document. `status`: pending, mineru_parsing, llm_processing, completed, failed or cancelled.

    `result` is None until the document is completed, and in lists. Numbers in `result` keep the digits of the document.
    """

    id: int = named("task_id")
    batch_id: int | None = None
    status: str
    phase: str
    progress: int
    filename: str
    rule_id: int
    rule_version: int
    approved_at: datetime | None = None
    approved_by: str | None = None
    corrected: bool | None = None
    duplicate_of: int | None = None
    error: Failure | None = None
    einvoice: dict[str, Any] | None = None
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    result: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def data(self) -> Any:
        """The data that the rule extracted, or None if the rule produces Markdown only."""
        return (self.result or {}).get("data")

    @property
    def warnings(self) -> list[str]:
        return [str(each.get("detail") or each.get("code")) for each in self.metadata.get("warnings", [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile(Model):
    """A file of a batch that was not accepted."""

    filename: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedBatch(Model):
    """A new batch."""

    id: int = named("batch_id")
    total: int
    refused: list[RefusedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Model):
    """Documents that were submitted together. `status`: running, completed, completed_with_errors or cancelled."""

    id: int = named("batch_id")
    name: str
    status: str
    total: int
    completed: int
    failed: int
    cancelled: int
    deleted: int
    rule_id: int
    rule_version: int
    created_at: datetime
    updated_at: datetime
    refused: list[RefusedFile] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """The number of documents that have ended."""
        return self.completed + self.failed + self.cancelled + self.deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Model):
    """A rule that converts documents."""

    id: int = named("rule_id")
    name: str
    description: str
    json_schema: dict[str, Any] | None = None
    system_prompt: str
    postprocess_mode: str
    postprocess_strategy: str | None = None
    version: int
    is_system: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Model):
    """A document with the data that a rule should extract from it."""

    id: int = named("sample_id")
    task_id: int
    filename: str
    expected: Any
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFailure(Model):
    """The reason for the failure of an evaluation."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Model):
    """A run of a version of a rule on its samples. `status`: running, completed, failed or cancelled.

    `accuracy`: the share of correct values, from 0 to 1. `fields`: the same for each field, by JSON Pointer.
    """

    number: int
    version: int
    status: str
    samples: int
    ended: int
    failed: int
    accuracy: float | None = None
    fields: dict[str, float]
    error: EvaluationFailure | None = None
    created_at: datetime
    ended_at: datetime | None = None
