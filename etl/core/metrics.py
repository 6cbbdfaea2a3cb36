"""Counters and histograms of document processing. `docs/metrics.md` explains them."""

from prometheus_client import Counter, Histogram

from config.platform.observability.counters import counter
from etl.core import errors
from etl.core.states import Stage, Status

# No run of a stage is longer than ETL_TASK_TIMEOUT, which is 10 minutes by default.
STAGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
OUTCOMES = ("done", "retried", "failed", "lost", "released")

TASKS = counter("etl_task_status_total", "Tasks that moved to a status.", status=Status.values)
STAGES = counter(
    "etl_stage_runs_total",
    "Runs of stages by outcome: done, failed, retried, lost to another worker, or released.",
    stage=Stage.values,
    outcome=OUTCOMES,
)
SECONDS = Histogram(
    "etl_stage_duration_seconds", "Duration of runs of stages, with any outcome.", ["stage"], buckets=STAGE_BUCKETS
)
FAILURES = counter("etl_task_failures_total", "Failed tasks by error code.", code=sorted(errors.codes()))
TOKENS = counter(
    "etl_model_tokens_total",
    "Tokens as counted by language models, of all attempts, tests of rules, and evaluations.",
    kind=["prompt", "completion"],
)
QUOTA_REFUSED = Counter("etl_quota_refused_total", "Requests rejected because the user's quota is used up.")
RECOVERED = counter(
    "etl_recovered_total",
    "Repairs by recovery: lost run-states, lost messages, stages of lost workers, and outcomes missing in the row.",
    what=["state", "hint", "lease", "end"],
)
ROWS_LOST = Counter(
    "etl_rows_lost_total", "Open run-states without a row, at each run of recovery: the database lost commits."
)
TICKS = counter("etl_ticks_total", "Completed runs of periodic tasks.", tick=["recover", "sweep"])
for _stage in Stage.values:
    SECONDS.labels(_stage)


def count_task_status(status: str) -> None:
    """Count a change of a task's status. `pending` is counted at the submission."""
    TASKS.labels(str(status)).inc()


def count_stage_run(stage: str, outcome: str, seconds: float) -> None:
    STAGES.labels(str(stage), outcome).inc()
    SECONDS.labels(str(stage)).observe(seconds)


def count_tokens(prompt: int, completion: int) -> None:
    TOKENS.labels("prompt").inc(prompt)
    TOKENS.labels("completion").inc(completion)


# ---- The API --------------------------------------------------------------------------------------------------------
STREAMS_OPENED = Counter("etl_streams_opened_total", "Opened event streams.")
STREAMS_CLOSED = counter(
    "etl_streams_closed_total",
    "Closed event streams: the task ended, the client disconnected, the stream reached its maximum duration, or access "
    "was revoked.",
    reason=["ended", "left", "renewed", "revoked"],
)
WAITS_BEGUN = Counter("etl_waits_begun_total", "Requests that started to wait for a task to change.")
WAITS_ENDED = counter(
    "etl_waits_ended_total",
    "Requests that stopped waiting: the task changed, or the waiting time was over.",
    reason=["changed", "unchanged"],
)
