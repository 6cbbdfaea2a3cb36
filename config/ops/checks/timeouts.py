"""System checks that timeouts nest: each limit must be longer than what it waits for.

From the inside out: a request to S3, a call into the source, a task's soft limit, its hard limit, and the time after
which the broker redelivers an unacknowledged message. docs/adr/0003 has the reasons.
"""

from collections.abc import Callable, Iterator
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


def check_leases() -> Iterator[CheckMessage]:
    """Check that a heartbeat that waits for its server once, for the maximum time, keeps the lease."""
    env = settings.SLUICE
    shortest = HEARTBEATS * WAIT_SECONDS
    if env.export_lease_seconds < shortest:
        yield CheckWarning(
            f"EXPORT_LEASE_SECONDS is {env.export_lease_seconds}: the heartbeat runs every third of it and may wait "
            f"{WAIT_SECONDS:g} s for a connection, so workers can lose chunks that they still export.",
            hint=f"Set EXPORT_LEASE_SECONDS to {shortest:g} or more; the default is 60.",
            id="ops.W101",
        )
    shortest_of_stage = HEARTBEATS * script.READ_SECONDS * 2
    if env.etl_lease_seconds < shortest_of_stage:
        yield CheckWarning(
            f"ETL_LEASE_SECONDS is {env.etl_lease_seconds}: a short delay of Redis is enough to lose a stage's lease.",
            hint=f"Set ETL_LEASE_SECONDS to {shortest_of_stage:g} or more; the default is 30.",
            id="ops.W102",
        )


def check_reaper() -> Iterator[CheckMessage]:
    lease, reaper = settings.SLUICE.export_lease_seconds, settings.SLUICE.export_reaper_seconds
    if reaper > lease:
        yield CheckWarning(
            f"EXPORT_REAPER_SECONDS is {reaper}, longer than a lease: "
            f"chunks of lost workers wait for up to {lease + reaper} s.",
            hint="Set EXPORT_REAPER_SECONDS to a quarter of EXPORT_LEASE_SECONDS.",
            id="ops.W103",
        )


def check_limits() -> Iterator[CheckMessage]:
    """Check that a task that reaches its soft limit has time to clean up before the hard limit kills it."""
    for soft, hard, name in (
        (settings.CELERY_TASK_SOFT_TIME_LIMIT, settings.CELERY_TASK_TIME_LIMIT, "CELERY_TASK"),
        (settings.ETL_SOFT_TIME_LIMIT, settings.ETL_TIME_LIMIT, "ETL"),
    ):
        if soft >= hard:
            yield Error(
                f"{name}_SOFT_TIME_LIMIT, {soft:g} s, is not shorter than {name}_TIME_LIMIT, {hard:g} s: "
                "tasks are killed without cleanup, which uses up an attempt.",
                hint=f"Leave at least 20 s between {name}_SOFT_TIME_LIMIT and {name}_TIME_LIMIT.",
                id="ops.E101",
            )


def check_stages() -> Iterator[CheckMessage]:
    env, stage = settings.SLUICE, settings.SLUICE.etl_task_timeout
    if stage >= settings.ETL_SOFT_TIME_LIMIT:
        yield Error(
            f"ETL_TASK_TIMEOUT, {stage} s, is not shorter than ETL_SOFT_TIME_LIMIT, "
            f"{settings.ETL_SOFT_TIME_LIMIT} s: a stage is interrupted before it can report a timeout.",
            hint="Leave ETL_SOFT_TIME_LIMIT as config/settings.py derives it.",
            id="ops.E102",
        )
    elif env.etl_llm_timeout_seconds >= stage:
        yield CheckWarning(
            f"ETL_LLM_TIMEOUT_SECONDS, {env.etl_llm_timeout_seconds:g} s, is not shorter than a stage, {stage} s: "
            "one slow response of the model ends the stage without a retry.",
            hint="Set ETL_LLM_TIMEOUT_SECONDS to a third of ETL_TASK_TIMEOUT, or raise the latter.",
            id="ops.W104",
        )
    if env.etl_state_ttl_seconds < settings.ETL_TIME_LIMIT * 2:
        yield CheckWarning(
            f"ETL_STATE_TTL_SECONDS, {env.etl_state_ttl_seconds}, is shorter than two runs of a stage: "
            "run-states can expire while a stage runs.",
            hint="Set ETL_STATE_TTL_SECONDS to an hour or more; the default is a day.",
            id="ops.W105",
        )


def check_redelivery() -> Iterator[CheckMessage]:
    """Check that the broker does not redeliver the message of a running task, which would run again and again."""
    longest = max(settings.CELERY_TASK_TIME_LIMIT, settings.ETL_TIME_LIMIT)
    options: dict[str, Any] = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    is_rabbitmq = broker.is_rabbitmq(settings.SLUICE.broker_url)
    # None for a broker that never redelivers while the worker is connected.
    redelivery = broker.RABBITMQ_ACK_SECONDS if is_rabbitmq else options.get("visibility_timeout")
    if redelivery is None or redelivery > longest:
        return
    if is_rabbitmq:
        yield Error(
            f"The longest task may take {longest:g} s. By default RabbitMQ closes the channel of a worker "
            f"that has not acknowledged a message after {redelivery:g} s.",
            hint="Lower ETL_TASK_TIMEOUT, "
            f"or set consumer_timeout in rabbitmq.conf to more than {longest * 1000:.0f} (milliseconds) and silence "
            "this check, which cannot read that setting.",
            id="ops.E103",
        )
    else:
        yield Error(
            f"visibility_timeout, {redelivery:g} s, is not longer than the hard limit of the longest task, "
            f"{longest:g} s: its message is delivered again while it runs.",
            hint="Leave CELERY_BROKER_TRANSPORT_OPTIONS as config/settings.py derives it.",
            id="ops.E104",
        )


def check_shutdown() -> Iterator[CheckMessage]:
    shutdown = settings.CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT
    if shutdown + EXIT_SECONDS > GRACE_SECONDS:
        yield Error(
            f"CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT is {shutdown} s, and workers are killed {GRACE_SECONDS} s "
            "after SIGTERM: they have no time to release their work.",
            hint="Lower it, or raise stop_grace_period (Compose), terminationGracePeriodSeconds (Kubernetes), and "
            "GRACE_SECONDS in config/ops/checks/timeouts.py.",
            id="ops.E105",
        )


CHECKS: tuple[Callable[[], Iterator[CheckMessage]], ...] = (
    check_leases,
    check_reaper,
    check_limits,
    check_stages,
    check_redelivery,
    check_shutdown,
)


@register(deploy=True)
def check_timeouts(**_kwargs: Any) -> list[CheckMessage]:
    return [message for check in CHECKS for message in check()]
