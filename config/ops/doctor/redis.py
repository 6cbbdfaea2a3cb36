"""Checks of Redis or Valkey as the broker and as the store of run-states.

Of other brokers, only the connection is checked.
"""

from datetime import UTC, datetime
from typing import Any

import kombu
import redis
from django.conf import settings

from config.ops.doctor import clocks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform.http import health

MIN_VERSION = (6, 2)
HIGH_USAGE = 0.8


def version_of(facts: dict[str, Any]) -> tuple[str, str]:
    valkey = facts.get("valkey_version")
    return ("Valkey", str(valkey)) if valkey else ("Redis", str(facts.get("redis_version", "0")))


def check_version(client: redis.Redis) -> Finding:
    name, version = version_of(info(client, "server"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        return failure(
            f"It runs {name} {version}; Sluice needs Redis {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer, or Valkey.",
            "Upgrade it. The tests run with Valkey 9.",
        )
    return ok(f"It responds and runs {name} {version}.")


def check_eviction(client: redis.Redis) -> Finding:
    policy = info(client, "memory").get("maxmemory_policy")
    if policy != "noeviction":
        return failure(
            f"maxmemory-policy is {policy}: when memory is low, messages and run-states are silently deleted.",
            "Set maxmemory-policy noeviction in its configuration; CONFIG SET applies it immediately.",
        )
    return ok("maxmemory-policy is noeviction.")


def check_memory(client: redis.Redis) -> Finding:
    memory = info(client, "memory")
    limit, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    if limit and used > HIGH_USAGE * limit:
        return warning(
            f"{used * 100 // limit} % of maxmemory is in use; at 100 % all writes are rejected.",
            "Raise maxmemory, and find out which queue grows: docs/runbook.md#nothing-runs.",
        )
    return ok("It has free memory." if limit else "maxmemory is not set: the host's memory is the limit.")


def check_persistence(client: redis.Redis) -> Finding:
    facts = info(client, "persistence")
    if facts.get("aof_last_write_status") == "err" or facts.get("rdb_last_bgsave_status") == "err":
        return failure(
            "It cannot write to its disk.",
            "Free up disk space, or fix its permissions: docs/runbook.md#disk-is-full.",
        )
    if not facts.get("aof_enabled"):
        return warning(
            "appendonly is off: a restart loses messages and the run-states of documents, which must be rebuilt.",
            "Set appendonly yes and appendfsync everysec.",
        )
    return ok("It writes an append-only file.")


def check_clock(client: redis.Redis) -> Finding:
    requested = datetime.now(UTC)
    seconds, microseconds = client.time()
    return clocks.compare(datetime.fromtimestamp(seconds + microseconds / 1e6, UTC), requested=requested)


def info(client: redis.Redis, section: str) -> dict[str, Any]:
    """Return a section of INFO. CONFIG GET is no alternative: hosted servers refuse it."""
    facts: Any = client.info(section)
    return dict(facts)


CHECKS = (check_version, check_eviction, check_memory, check_persistence, check_clock)
REMEDY = "Check that it is running and that {} points to it: docs/runbook.md#redis-is-lost."


def check_response(connection: kombu.Connection) -> Finding:
    return ok(f"It responds by {connection.transport.driver_type}.")


def subjects() -> list[Subject[Any]]:
    """Return the broker, and the Redis of run-states if it is another one."""
    broker, states = settings.SLUICE.broker_url, settings.SLUICE.run_state_url
    if health.is_redis(broker):
        found: list[Subject[Any]] = [redis_subject("broker", broker, variables="CELERY_BROKER_URL or REDIS_URL")]
    else:
        subject = Subject(
            name="broker",
            open=lambda: health.broker_connection(broker),
            checks=(check_response,),
            remedy_if_unreachable=REMEDY.format("CELERY_BROKER_URL"),
        )
        found = [subject]
    if health.database_of(states) != health.database_of(broker):
        found.append(redis_subject("run_state", states, variables="ETL_REDIS_URL or REDIS_URL"))
    return found


def redis_subject(name: str, url: str, *, variables: str) -> Subject[redis.Redis]:
    return Subject(
        name=name, open=lambda: health.redis_client(url), checks=CHECKS, remedy_if_unreachable=REMEDY.format(variables)
    )
