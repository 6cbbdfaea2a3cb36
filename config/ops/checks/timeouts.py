"""System checks that timeouts nest: each limit must be longer than what it waits for.

From the inside out: a request to S3, a call into the source, a task's soft limit, its hard limit, and the time after
which the broker redelivers an unacknowledged message. docs/adr/0003 has the reasons.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from config.platform import broker
from config.platform.db.base import WAIT_SECONDS
from etl.runstate import script

HEARTBEATS = 3  # per lease
GRACE_SECONDS = 45  # compose.yaml and the Kubernetes manifests kill a worker this long after SIGTERM
EXIT_SECONDS = 5  # from the end of the soft shutdown to the exit of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """All in seconds. `redelivery` is None for a broker that never redelivers while the worker is connected."""

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
    redelivery: float | None
    is_rabbitmq: bool
    shutdown: float
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
        redelivery=broker.RABBITMQ_ACK_SECONDS if is_rabbitmq else options.get("visibility_timeout"),
        is_rabbitmq=is_rabbitmq,
        shutdown=settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT,
    )


def check_leases(times: Times) -> Iterator[CheckMessage]:
    """A heartbeat that waits for its server once, for the longest time allowed, must not lose the lease."""
    shortest = HEARTBEATS * times.database_wait
    if times.lease < shortest:
        yield CheckWarning(
            f"EXPORT_LEASE_SECONDS is {times.lease:g}: the heartbeat runs every {times.lease / HEARTBEATS:g} s and may "
            f"wait {times.database_wait:g} s for a connection, so workers can lose chunks that they still export.",
            hint=f"Set EXPORT_LEASE_SECONDS to {shortest:g} or more; the default is 60.",
            id="ops.W101",
        )
    shortest = HEARTBEATS * times.redis_wait * 2
    if times.stage_lease < shortest:
        yield CheckWarning(
            f"ETL_LEASE_SECONDS is {times.stage_lease:g}: a short delay of Redis is enough to lose a stage's lease.",
            hint=f"Set ETL_LEASE_SECONDS to {shortest:g} or more; the default is 30.",
            id="ops.W102",
        )


def check_reaper(times: Times) -> Iterator[CheckMessage]:
    if times.reaper > times.lease:
        yield CheckWarning(
            f"EXPORT_REAPER_SECONDS is {times.reaper:g}, longer than a lease: "
            f"chunks of lost workers wait for up to {times.lease + times.reaper:g} s.",
            hint="Set EXPORT_REAPER_SECONDS to a quarter of EXPORT_LEASE_SECONDS.",
            id="ops.W103",
        )


def check_limits(times: Times) -> Iterator[CheckMessage]:
    """A task that reaches its soft limit needs time to clean up before the hard limit kills it."""
    for soft, hard, name in (
        (times.soft, times.hard, "CELERY_TASK"),
        (times.stage_soft, times.stage_hard, "ETL"),
    ):
        if soft >= hard:
            yield Error(
                f"{name}_SOFT_TIME_LIMIT, {soft:g} s, is not shorter than {name}_TIME_LIMIT, {hard:g} s: "
                "tasks are killed without cleanup, which uses up an attempt.",
                hint=f"Leave at least 20 s between {name}_SOFT_TIME_LIMIT and {name}_TIME_LIMIT.",
                id="ops.E101",
            )


def check_stages(times: Times) -> Iterator[CheckMessage]:
    if times.stage >= times.stage_soft:
        yield Error(
            f"ETL_TASK_TIMEOUT, {times.stage:g} s, is not shorter than ETL_SOFT_TIME_LIMIT, {times.stage_soft:g} s: "
            "a stage is interrupted before it can report a timeout.",
            hint="Leave ETL_SOFT_TIME_LIMIT as config/settings.py derives it.",
            id="ops.E102",
        )
    elif times.model >= times.stage:
        yield CheckWarning(
            f"ETL_LLM_TIMEOUT_SECONDS, {times.model:g}, is as long as a stage, {times.stage:g} s: "
            "one slow response of the model ends the stage without a retry.",
            hint="Set ETL_LLM_TIMEOUT_SECONDS to a third of ETL_TASK_TIMEOUT, or raise the latter.",
            id="ops.W104",
        )
    elif times.state < times.stage_hard * 2:
        yield CheckWarning(
            f"ETL_STATE_TTL_SECONDS, {times.state:g}, is shorter than two runs of a stage: "
            "run-states can expire while a stage runs.",
            hint="Set ETL_STATE_TTL_SECONDS to an hour or more; the default is a day.",
            id="ops.W105",
        )


def check_redelivery(times: Times) -> Iterator[CheckMessage]:
    """The broker must not redeliver the message of a running task: it would run again and again."""
    longest = max(times.hard, times.stage_hard)
    if times.redelivery is None or times.redelivery > longest:
        return
    if times.is_rabbitmq:
        yield Error(
            f"The longest task may take {longest:g} s. By default RabbitMQ closes the channel of a worker "
            f"that has not acknowledged a message after {times.redelivery:g} s.",
            hint="Lower ETL_TASK_TIMEOUT, "
            f"or set consumer_timeout in rabbitmq.conf to more than {longest * 1000:.0f} (milliseconds).",
            id="ops.E103",
        )
    else:
        yield Error(
            f"visibility_timeout, {times.redelivery:g} s, is not longer than the hard limit of the longest task, "
            f"{longest:g} s: its message is delivered again while it runs.",
            hint="Leave CELERY_BROKER_TRANSPORT_OPTIONS as config/settings.py derives it.",
            id="ops.E104",
        )


def check_shutdown(times: Times) -> Iterator[CheckMessage]:
    if times.shutdown + EXIT_SECONDS > times.grace:
        yield Error(
            f"CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT is {times.shutdown:g} s, and workers are killed {times.grace:g} s "
            "after SIGTERM: they have no time to release their work.",
            hint="Raise stop_grace_period (Compose) and terminationGracePeriodSeconds (Kubernetes) above it.",
            id="ops.E105",
        )


CHECKS: tuple[Callable[[Times], Iterator[CheckMessage]], ...] = (
    check_leases,
    check_reaper,
    check_limits,
    check_stages,
    check_redelivery,
    check_shutdown,
)


@register(deploy=True)
def check_timeouts(**_kwargs: Any) -> list[CheckMessage]:
    times = read()
    return [message for check in CHECKS for message in check(times)]
