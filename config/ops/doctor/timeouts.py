"""Whether times fit into each other: what waits for another thing has to wait longer than that may take.

From the inside out: a request to S3, a call into the source, a task's soft limit, its hard limit, and the broker's
patience with a message that nobody has acknowledged. docs/adr/0003 has the reasons.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from config.ops.doctor import environment
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform import broker
from config.platform.db.base import WAIT_SECONDS
from etl.runstate import script

HEARTBEATS = 3  # within a lease
GRACE_SECONDS = 45  # that compose.yaml and the Kubernetes manifests leave a worker
LAST_WORDS = 5  # seconds from the end of the soft shutdown to that of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """All in seconds. `patience` is the broker's; None: it has none."""

    lease: float
    reaper: float
    database_wait: float
    soft: float
    hard: float
    stage: float
    stage_soft: float
    stage_hard: float
    stage_lease: float
    redis_wait: float
    model: float
    state: float
    patience: float | None
    is_rabbitmq: bool
    leaving: float
    grace: float = GRACE_SECONDS


def read() -> Times:
    env = settings.SLUICE
    is_rabbitmq = broker.is_rabbitmq(env.broker_url)
    options: dict[str, Any] = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    return Times(
        lease=env.export_lease_seconds,
        reaper=env.export_reaper_seconds,
        database_wait=WAIT_SECONDS,
        soft=settings.CELERY_TASK_SOFT_TIME_LIMIT,
        hard=settings.CELERY_TASK_TIME_LIMIT,
        stage=env.etl_task_timeout,
        stage_soft=settings.ETL_SOFT_TIME_LIMIT,
        stage_hard=settings.ETL_TIME_LIMIT,
        stage_lease=env.etl_lease_seconds,
        redis_wait=script.READ_SECONDS,
        model=env.etl_llm_timeout_seconds,
        state=env.etl_state_ttl_seconds,
        patience=broker.RABBITMQ_WAITS if is_rabbitmq else options.get("visibility_timeout"),
        is_rabbitmq=is_rabbitmq,
        leaving=settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT,
    )


def check_leases(times: Times) -> Iterator[Finding]:
    """A heartbeat that waits once for its server, as long as it may, must not cost the lease."""
    shortest = HEARTBEATS * times.database_wait
    if times.lease < shortest:
        yield warning(
            f"EXPORT_LEASE_SECONDS is {times.lease:g}: its heartbeat comes every {times.lease / HEARTBEATS:g} s, "
            f"and may wait {times.database_wait:g} s for a connection, so that workers lose chunks that they work on.",
            f"Set EXPORT_LEASE_SECONDS to {shortest:g} or more; 60 is the default.",
        )
    if times.stage_lease < HEARTBEATS * times.redis_wait * 2:
        yield warning(
            f"ETL_LEASE_SECONDS is {times.stage_lease:g}: "
            "a Redis that hesitates for a moment costs the lease of a stage.",
            f"Set ETL_LEASE_SECONDS to {HEARTBEATS * times.redis_wait * 2:g} or more; 30 is the default.",
        )
    if times.lease >= shortest:
        yield ok(f"A lease of {times.lease:g} s outlives a heartbeat that has to wait.")


def check_reaper(times: Times) -> Iterator[Finding]:
    if times.reaper > times.lease:
        yield warning(
            f"EXPORT_REAPER_SECONDS is {times.reaper:g}, longer than a lease: "
            f"chunks of lost workers wait for {times.lease + times.reaper:g} s.",
            "Set EXPORT_REAPER_SECONDS to a quarter of EXPORT_LEASE_SECONDS.",
        )
    else:
        yield ok(f"The chunk of a lost worker goes on within {times.lease + times.reaper:g} s.")


def check_limits(times: Times) -> Iterator[Finding]:
    """Who is told to end by the soft limit needs time for that before the hard one kills it."""
    for soft, hard, name in (
        (times.soft, times.hard, "CELERY_TASK"),
        (times.stage_soft, times.stage_hard, "ETL"),
    ):
        if soft >= hard:
            yield failure(
                f"{name}_SOFT_TIME_LIMIT, {soft:g} s, does not come before {name}_TIME_LIMIT, {hard:g} s: "
                "work is killed without a word, and its attempt burns.",
                f"Leave at least 20 s between {name}_SOFT_TIME_LIMIT and {name}_TIME_LIMIT.",
            )
        else:
            yield ok(f"{name}_SOFT_TIME_LIMIT, {soft:g} s, comes before {name}_TIME_LIMIT, {hard:g} s.")


def check_stages(times: Times) -> Iterator[Finding]:
    if times.stage >= times.stage_soft:
        yield failure(
            f"ETL_TASK_TIMEOUT, {times.stage:g} s, does not come before ETL_SOFT_TIME_LIMIT, {times.stage_soft:g} s: "
            "a stage is stopped from outside and tells no reason.",
            "Leave ETL_SOFT_TIME_LIMIT as config/settings.py derives it.",
        )
    elif times.model >= times.stage:
        yield warning(
            f"ETL_LLM_TIMEOUT_SECONDS, {times.model:g}, is as long as a stage, {times.stage:g} s: "
            "one slow answer of the model ends the stage, and nothing is asked again.",
            "Set ETL_LLM_TIMEOUT_SECONDS to a third of ETL_TASK_TIMEOUT, or raise the latter.",
        )
    elif times.state < times.stage_hard * 2:
        yield warning(
            f"ETL_STATE_TTL_SECONDS, {times.state:g}, is less than two runs of a stage: "
            "run-states expire under their work.",
            "Set ETL_STATE_TTL_SECONDS to an hour or more; a day is the default.",
        )
    else:
        yield ok(f"A stage ends by itself after {times.stage:g} s, and a model's answer before.")


def check_patience(times: Times) -> Iterator[Finding]:
    """A message that is worked on must not be taken for lost: it would be worked on twice, again and again."""
    longest = max(times.hard, times.stage_hard)
    if times.patience is None:
        yield ok("The broker waits for as long as a task takes.")
    elif times.patience > longest:
        yield ok(
            f"The broker waits {times.patience:g} s for a message; the longest task is killed after {longest:g} s."
        )
    elif times.is_rabbitmq:
        yield failure(
            f"The longest task may take {longest:g} s; RabbitMQ closes the channel of a worker "
            f"that has not acknowledged a message after {times.patience:g} s, its default.",
            "Lower ETL_TASK_TIMEOUT, "
            f"or set consumer_timeout in rabbitmq.conf above {longest * 1000:.0f} (milliseconds).",
        )
    else:
        yield failure(
            f"visibility_timeout, {times.patience:g} s, is not above the hard limit of the longest task, "
            f"{longest:g} s: its message is delivered again while it runs.",
            "Leave CELERY_BROKER_TRANSPORT_OPTIONS as config/settings.py derives it.",
        )


def check_leaving(times: Times) -> Iterator[Finding]:
    if times.leaving + LAST_WORDS > times.grace:
        yield failure(
            f"CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT is {times.leaving:g} s, "
            f"and workers are killed {times.grace:g} s after they were told to end: "
            "they cannot give back what they hold.",
            "Raise stop_grace_period (Compose) and terminationGracePeriodSeconds (Kubernetes) above it.",
        )
    else:
        yield ok(f"A worker gives its work back within {times.leaving:g} s, and is killed after {times.grace:g} s.")


def open_times() -> AbstractContextManager[Times]:
    return nullcontext(read())


SUBJECT = Subject(
    name="nesting",
    open=open_times,
    checks=(check_leases, check_reaper, check_limits, check_stages, check_patience, check_leaving),
    away=environment.AWAY,
)
