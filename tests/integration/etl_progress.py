"""State changes of tasks as workers make them, without the work, for tests of the API."""

from typing import Any

from etl import runstate
from etl.core.errors import EtlError, FileEncrypted, explain
from etl.core.stage_context import Usage
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import artifacts, completion
from etl.providers.base import OCRResult, Page
from etl.runstate import RunState

MARKDOWN = "<!-- page: 1 -->\n\n# Invoice <script>alert(1)</script>\n"
RESULT = {"markdown_s3_key": "etl/tasks/x.md", "provider_task_id": "local-1", "metadata": {}}


def begin(task: Task, stage: Stage = Stage.OCR) -> RunState:
    """Start a stage."""
    outcome = runstate.start(task.pk, stage=stage)
    assert outcome.moved, outcome.verdict
    assert outcome.state
    return outcome.state


def read(task: Task, markdown: str = MARKDOWN) -> RunState:
    """Finish OCR."""
    state = begin(task)
    result = OCRResult(
        markdown=markdown,
        pages=(Page(number=1, start=0, end=len(markdown), method="text"),),
        provider="local",
        provider_task_id="local-1",
        metadata={"pages": 1, "duration_ms": 5, "version": "1"},
    )
    stored = artifacts.store_ocr(state, result, warnings=[], attempts=1, check=lambda: None)
    completion.advance(state, stored)
    return state


def complete(task: Task, result: dict[str, Any] | None = None) -> None:
    read(task)
    end_completed(begin(task, Stage.POSTPROCESS), result)


def end_completed(state: RunState, result: dict[str, Any] | None = None) -> None:
    completion.record_end(
        runstate.complete(state, result=RESULT if result is None else result, usage=Usage().as_dict())
    )


def fail(task: Task, error: EtlError | None = None) -> None:
    """Fail the task in OCR."""
    state = begin(task)
    shown = explain(error or FileEncrypted(), stage=state.phase)
    completion.record_end(runstate.fail(state, error=shown, usage=Usage().as_dict()))
