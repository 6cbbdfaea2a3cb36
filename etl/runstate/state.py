"""The fields of a run-state, and their parsing from a hash or a row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from config.platform import exact_json
from etl.core.stage_context import USAGE_FIELDS
from etl.core.states import ENDED, Stage, Status
from etl.models import Task
from etl.models.review import NO_REVIEW, Review

# Revisions only grow, even when a state is recreated: each generation has its own range of revisions.
REVISIONS = 1_000_000
HALF, WHOLE = 50, 100
# Fields of a hash that are fields of a RunState by the same name.
WHOLE_NUMBERS = (
    *("user_id", "run", "ocr_run", "journal_run", "revision"),
    *("progress", "rule_id", "rule_version", "size"),
)
TEXTS = (
    *("job_id", "filename", "kind", "document_key", "request_id", "markdown_key", "provider", "provider_task_id"),
    *("token", "step", "traceparent", "uuid", "sha256"),
)
# Columns of a row that are fields of a RunState by the same name.
COLUMNS = (
    *("task_id", "user_id", "generation", "run", "ocr_run", "journal_run", "progress", "rule_id", "rule_version"),
    *("uuid", "filename", "kind", "size", "document_key", "sha256", "duplicate_of", "request_id", "traceparent"),
    *("error", "previous_run", "batch_id", "review", "created_at", "updated_at"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a task, from its run-state or its row, for workers and for `GET /tasks/{id}`.

    Datetimes are aware. `lease_until` and `available_at` are epoch seconds by Redis' clock, 0 for none.
    """

    task_id: int
    uuid: str = ""  # "" for tasks of earlier releases
    user_id: int
    generation: int
    run: int
    ocr_run: int
    journal_run: int
    revision: int
    status: Status
    phase: Stage
    progress: int
    attempts: dict[str, int]
    job_id: str = ""
    rule_id: int
    rule_version: int
    filename: str
    kind: str
    size: int
    document_key: str
    sha256: str = ""  # "" until it is known
    duplicate_of: int | None = None
    request_id: str = ""
    traceparent: str = ""
    markdown_key: str = ""
    provider: str = ""
    provider_task_id: str = ""
    # Progress of the running stage in pages or calls, such as `3/10`; "" at the start.
    step: str = ""
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    # The run of the last result, until the current run has a result; 0 if there is no earlier result.
    previous_run: int = 0
    batch_id: int | None = None
    metadata: dict[str, Any]
    usage: dict[str, int] = field(default_factory=dict)
    started: bool = False
    token: str = ""
    lease_until: float = 0
    available_at: float = 0
    began_at: float = 0  # of the running attempt, by Redis' clock
    # When the storage first refused this stage: epoch seconds by Redis' clock, 0 if it did not.
    refused_at: float = 0
    # The result is too large for Redis; the row has it once the end is recorded.
    result_is_elsewhere: bool = False
    # Only rows have reviews: a review deletes the run-state.
    review: Review = NO_REVIEW
    created_at: datetime
    updated_at: datetime

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def refused_for(self, *, lease: float) -> float:
        """Return the seconds from the storage's first refusal of this stage to the start of the lease, or 0.

        `lease`: the length of the lease in seconds. Both times are by Redis' clock, because the clocks of workers
        differ. The result is 0 if the storage did not refuse this stage.
        """
        return max(self.lease_until - lease - self.refused_at, 0) if self.refused_at else 0

    @property
    def is_waiting(self) -> bool:
        """Return whether no worker has the task: it waits for one, or for its next attempt."""
        return not (self.has_ended or self.token)

    @property
    def is_cancellable(self) -> bool:
        """Return whether the task waits for OCR or post-processing. This is for display: the script decides."""
        if self.status == Status.LLM_PROCESSING:
            return self.is_waiting
        return self.status == Status.PENDING and not self.started

    @property
    def number(self) -> int:
        """The event number: the revision or, for an ended task, the last revision of its generation.

        So the end has the same number whether it is read from Redis or, later, from the row.
        """
        return last_revision(self.generation) if self.has_ended else self.revision

    @classmethod
    def of_row(cls, task: Task) -> "RunState":
        """Return the state of a task without a run-state, from its row."""
        return cls(
            **{name: getattr(task, name) for name in COLUMNS},
            result=task.current_result,
            revision=last_revision(task.generation) if task.has_ended else task.generation * REVISIONS,
            status=Status(task.status),
            phase=Stage(task.phase),
            attempts=attempts_of(task.metadata),
            markdown_key=task.metadata.get("artifact_mineru_markdown_key") or "",
            provider=task.metadata.get("provider") or "",
            provider_task_id=task.metadata.get("provider_task_id") or "",
            metadata=whole_metadata(task.metadata),
        )


def last_revision(generation: int) -> int:
    return generation * REVISIONS + REVISIONS - 1


def attempts_of(metadata: Mapping[str, Any]) -> dict[str, int]:
    known = metadata.get("attempts") or {}
    return {stage: int(known.get(stage, 0)) for stage in Stage.values}


def whole_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's metadata with every field of the API."""
    return {
        "attempts": attempts_of(metadata),
        "artifact_mineru_markdown_key": metadata.get("artifact_mineru_markdown_key"),
        "provider": metadata.get("provider"),
        "provider_task_id": metadata.get("provider_task_id"),
        "ocr": metadata.get("ocr") or {},
        "postprocess": {
            "strategy": None,
            "model": None,
            "usage": dict.fromkeys(USAGE_FIELDS, 0),
            "earlier_usage": dict.fromkeys(USAGE_FIELDS, 0),
        }
        | (metadata.get("postprocess") or {}),
        "warnings": metadata.get("warnings") or [],
        "failed_attempts": metadata.get("failed_attempts") or [],
    }


class Unreadable(Exception):
    """The hash is not a valid run-state."""


def parsed(task_id: int, fields: Mapping[str, str]) -> RunState:
    """Parse a hash. Raises Unreadable."""
    try:
        return read_fields(task_id, fields)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise Unreadable(type(error).__name__) from None


def read_fields(task_id: int, fields: Mapping[str, str]) -> RunState:
    attempts = {stage: int(fields.get(f"attempts_{stage}", 0)) for stage in Stage.values}
    usage = {name: int(fields.get(name, 0)) for name in USAGE_FIELDS}
    plain: dict[str, Any] = {
        **{name: int(fields[name]) for name in WHOLE_NUMBERS},
        **{name: fields.get(name, "") for name in TEXTS},
        **{name: float(fields.get(name) or 0) for name in ("lease_until", "available_at", "began_at", "refused_at")},
    }
    return RunState(
        task_id=task_id,
        generation=int(fields["fence"]),
        **plain,
        status=Status(fields["status"]),
        phase=Stage(fields["phase"]),
        attempts=attempts,
        usage=usage,
        error=json.loads(fields.get("error") or "null"),
        result=exact_json.loads(fields.get("result") or "null"),
        result_is_elsewhere=fields.get("result_is_elsewhere") == "1",
        previous_run=int(fields.get("previous_run") or 0),
        batch_id=int(fields.get("batch_id") or 0) or None,
        duplicate_of=int(fields.get("duplicate_of") or 0) or None,
        started=fields.get("started") == "1",
        metadata=whole_metadata(
            {
                "attempts": attempts,
                "artifact_mineru_markdown_key": fields.get("markdown_key") or None,
                "provider": fields.get("provider") or None,
                "provider_task_id": fields.get("provider_task_id") or None,
                "ocr": json.loads(fields.get("ocr") or "{}"),
                "postprocess": json.loads(fields.get("postprocess") or "{}")
                | {"usage": usage, **earlier_usage(fields)},
                "warnings": json.loads(fields.get("warnings") or "[]"),
                "failed_attempts": json.loads(fields.get("failed_attempts") or "[]"),
            }
        ),
        created_at=moment(fields["created_at"]),
        updated_at=moment(fields["updated_at"]),
    )


def earlier_usage(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the usage of the runs before a retry. Run-states of earlier releases do not have it."""
    return {"earlier_usage": json.loads(fields["earlier_usage"])} if fields.get("earlier_usage") else {}


def moment(seconds: str) -> datetime:
    return datetime.fromtimestamp(float(seconds), UTC)
