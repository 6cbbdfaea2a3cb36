"""What document ETL counts when it happens. `docs/metrics.md` says what each is for."""

from prometheus_client import Counter, Histogram

from config.platform.observability.counters import counter
from etl.core import errors
from etl.core.states import Phase, Status

# No run of a stage is longer than ETL_TASK_TIMEOUT, 10 minutes unless set.
STAGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
OUTCOMES = ("done", "retried", "failed", "lost", "released")

TASKS = counter("etl_task_status_total", "Moves of tasks into a status.", status=Status.values)
STAGES = counter(
    "etl_stage_runs_total",
    "Runs of stages by how they ended: done, failed for good, to be tried again, lost to another worker, or handed on.",
    stage=Phase.values,
    outcome=OUTCOMES,
)
SECONDS = Histogram(
    "etl_stage_duration_seconds", "Runs of stages, however they ended.", ["stage"], buckets=STAGE_BUCKETS
)
FAILURES = counter(
    "etl_task_failures_total",
    "Tasks that failed, by the code of their error.",
    code=sorted(errors.codes()),
)
TOKENS = counter(
    "etl_model_tokens_total", "What language models counted, of all attempts.", kind=["prompt", "completion"]
)
RECOVERED = counter(
    "etl_recovered_total",
    "What recovery mended: run-states that were gone, messages that were lost, stages whose worker was not heard of, "
    "ends that were not in the row.",
    what=["state", "hint", "lease", "end"],
)
TICKS = counter("etl_ticks_total", "Runs of periodic work to their end.", tick=["recover", "sweep"])
for _stage in Phase.values:
    SECONDS.labels(_stage)


def task_moved(status: str) -> None:
    """A task is in this status now, and was in another before. `pending` is counted at its submission."""
    TASKS.labels(str(status)).inc()


def task_failed(code: str) -> None:
    FAILURES.labels(code).inc()


def stage_ended(stage: str, outcome: str, seconds: float) -> None:
    STAGES.labels(str(stage), outcome).inc()
    SECONDS.labels(str(stage)).observe(seconds)


def tokens_spent(prompt: int, completion: int) -> None:
    TOKENS.labels("prompt").inc(prompt)
    TOKENS.labels("completion").inc(completion)


def recovered(what: str) -> None:
    RECOVERED.labels(what).inc()


def ticked(tick: str) -> None:
    TICKS.labels(tick).inc()


# ---- The API --------------------------------------------------------------------------------------------------------
STREAMS_OPENED = Counter("etl_streams_opened_total", "Event streams that began to listen.")
STREAMS_CLOSED = counter(
    "etl_streams_closed_total",
    "Event streams that listen no more: the task ended, the client left, or it was time to come again.",
    reason=["ended", "left", "renewed"],
)


def stream_opened() -> None:
    """Open ones are those opened without those closed."""
    STREAMS_OPENED.inc()


def stream_closed(reason: str) -> None:
    STREAMS_CLOSED.labels(reason).inc()


WAITS_BEGUN = Counter("etl_waits_begun_total", "Requests that began to wait for a task to change.")
WAITS_ENDED = counter(
    "etl_waits_ended_total",
    "Requests that wait no more: the task changed, or it did not in time.",
    reason=["changed", "unchanged"],
)


def wait_begun() -> None:
    """Those that wait are those that began without those that ended."""
    WAITS_BEGUN.inc()


def wait_ended(*, changed: bool) -> None:
    WAITS_ENDED.labels("changed" if changed else "unchanged").inc()
