"""The two stages of a task, and the differences between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etl.core.errors import OcrTimeout, StageTimeout, TimeLimitExceeded
from etl.core.stage_context import StageContext, ignore
from etl.core.states import Stage
from etl.pipeline import artifacts, completion
from etl.pipeline.stages import ocr, postprocess
from etl.runstate import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDefinition:
    """The differences between the two stages.

    `find`: returns the stored output, if any. `warn`: adds warnings to a failure without output. `end`: the last
    argument is the transition ID. `span`: the percent of progress at the start and at the end.
    """

    run: Callable[[RunState, StageContext], Any]
    find: Callable[[RunState], Any]
    warn: Callable[[RunState, StageContext], None]
    end: Callable[[RunState, Any, str], None]
    timeout: type[TimeLimitExceeded]
    code: str  # of internal errors
    span: tuple[int, int]


STAGES = {
    Stage.OCR: StageDefinition(
        run=ocr.run,
        find=artifacts.find_ocr,
        warn=ignore,
        end=completion.advance,
        timeout=OcrTimeout,
        code="ocr_failed",
        span=(0, 50),
    ),
    Stage.POSTPROCESS: StageDefinition(
        run=postprocess.run,
        find=postprocess.find,
        warn=postprocess.warn_of_loss,
        end=completion.complete,
        timeout=StageTimeout,
        code="timeout",
        span=(50, 100),
    ),
}
