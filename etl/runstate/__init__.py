"""A task's run-state: one Redis hash a task, changed by one script. What passes between a row's making and its end.

`script.lua` compares and advances in one step, by the server's clock; `moves` has what it can be asked for. Every move
names what must hold (the fence, the holder's token, the status before), and the verdict says whether it did. A state
never goes back: whoever comes late or twice is told so, and nothing changes.

The hash may be gone at any time: recovery makes it anew, under a greater fence (`etl/maintenance/recovery.py`).
"""

from etl.runstate.script import (
    TransitionResult,
    Unavailable,
    Verdict,
    all_of_them,
    key_of,
    new_id,
    read,
    read_many,
    scan,
)
from etl.runstate.shared_values import get_shared, once, put_shared
from etl.runstate.state import HALF, RunState, attempts_of, whole_metadata
from etl.runstate.transitions import (
    RESULT_BYTES,
    advance,
    cancel,
    complete,
    create,
    enqueued,
    fail,
    forget,
    look,
    most_attempts,
    note_progress,
    note_provider_task,
    note_usage,
    release,
    renew,
    start,
    unsent,
    wait,
)

__all__ = [
    "HALF",
    "RESULT_BYTES",
    "RunState",
    "TransitionResult",
    "Unavailable",
    "Verdict",
    "advance",
    "all_of_them",
    "attempts_of",
    "cancel",
    "complete",
    "create",
    "enqueued",
    "fail",
    "forget",
    "get_shared",
    "key_of",
    "look",
    "most_attempts",
    "new_id",
    "note_progress",
    "note_provider_task",
    "note_usage",
    "once",
    "put_shared",
    "read",
    "read_many",
    "release",
    "renew",
    "scan",
    "start",
    "unsent",
    "wait",
    "whole_metadata",
]
