"""Run-states: one Redis hash per open task, changed only by one script.

`script.lua` compares and sets atomically, by the Redis server's clock; `transitions.py` has the transitions. Each has
conditions (generation, lease token, status), and its verdict reports whether they were met. A state never goes back:
late or duplicate transitions change nothing.

The hash may be lost at any time: recovery recreates it under a greater generation (`etl/maintenance/recovery.py`).
"""

from etl.runstate.script import (
    TransitionResult,
    Unavailable,
    Verdict,
    find_running,
    key_of,
    new_id,
    read,
    read_many,
    scan_all,
    scan_open,
)
from etl.runstate.shared_values import get_shared, once, put_shared
from etl.runstate.state import HALF, RunState, attempts_of, whole_metadata
from etl.runstate.transitions import (
    RESULT_BYTES,
    TaskIdentity,
    advance,
    cancel,
    cancel_many,
    complete,
    create,
    create_many,
    fail,
    find_due,
    find_free,
    forget,
    forget_many,
    mark_unsent,
    max_attempts,
    record_digest,
    record_message,
    record_messages,
    record_progress,
    record_provider_task,
    record_usage,
    release,
    renew,
    start,
    wait,
)

__all__ = [
    "HALF", "RESULT_BYTES", "RunState", "TaskIdentity", "TransitionResult", "Unavailable", "Verdict", "advance",
    "attempts_of", "cancel", "cancel_many", "complete", "create", "create_many", "fail", "find_due", "find_free",
    "find_running", "forget", "forget_many", "get_shared", "key_of", "mark_unsent", "max_attempts", "new_id", "once",
    "put_shared", "read", "read_many", "record_digest", "record_message", "record_messages", "record_progress",
    "record_provider_task", "record_usage", "release", "renew", "scan_all", "scan_open", "start", "wait",
    "whole_metadata",
]  # fmt: skip
