"""Redis or Valkey: as the broker, and as the place of run-states. Another broker is asked whether it answers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import kombu
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.ops.doctor import clocks
from config.ops.doctor.findings import Finding, Subject, failure, ok, warning
from config.platform.broker import tls
from config.platform.http import health

SECONDS = 3
OLDEST = (6, 2)
NEARLY_FULL = 0.8


def version_of(facts: dict[str, Any]) -> tuple[str, str]:
    valkey = facts.get("valkey_version")
    return ("Valkey", str(valkey)) if valkey else ("Redis", str(facts.get("redis_version", "0")))


def check_version(client: redis.Redis) -> Iterator[Finding]:
    name, version = version_of(info(client, "server"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield failure(
            f"It is {name} {version}; Sluice needs Redis {OLDEST[0]}.{OLDEST[1]}, or Valkey.",
            "Move to a newer one: Valkey 9 is what the tests run with.",
        )
    else:
        yield ok(f"It answers, and is {name} {version}.")


def check_eviction(client: redis.Redis) -> Iterator[Finding]:
    policy = info(client, "memory").get("maxmemory_policy")
    if policy != "noeviction":
        yield failure(
            f"maxmemory-policy is {policy}: when memory is short, messages and run-states vanish without a word.",
            "Set maxmemory-policy noeviction in its configuration; CONFIG SET does so at once.",
        )
    else:
        yield ok("maxmemory-policy is noeviction.")


def check_memory(client: redis.Redis) -> Iterator[Finding]:
    memory = info(client, "memory")
    most, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    if most and used > NEARLY_FULL * most:
        yield warning(
            f"{used * 100 // most} % of maxmemory are in use: at 100 % nothing is accepted any more.",
            "Raise maxmemory, and see what waits: docs/runbook.md#nothing-runs.",
        )
    else:
        yield ok("It has memory left." if most else "maxmemory is not set: the host's memory is the limit.")


def check_persistence(client: redis.Redis) -> Iterator[Finding]:
    facts = info(client, "persistence")
    if facts.get("aof_last_write_status") == "err" or facts.get("rdb_last_bgsave_status") == "err":
        yield failure(
            "It cannot write to its disk.",
            "Give its disk room, or mend its permissions: docs/runbook.md#disk-is-full.",
        )
    elif not facts.get("aof_enabled"):
        yield warning(
            "appendonly is off: a restart loses messages and the run-states of documents, which are then made anew.",
            "Set appendonly yes and appendfsync everysec.",
        )
    else:
        yield ok("It keeps an append-only file.")


def check_clock(client: redis.Redis) -> Iterator[Finding]:
    asked = datetime.now(UTC)
    seconds, microseconds = client.time()
    yield from clocks.compare(datetime.fromtimestamp(seconds + microseconds / 1e6, UTC), asked=asked)


def info(client: redis.Redis, section: str) -> dict[str, Any]:
    """INFO, and not CONFIG, which hosted ones refuse."""
    facts: Any = client.info(section)
    return dict(facts)


def connect(url: str) -> AbstractContextManager[redis.Redis]:
    client = redis.Redis.from_url(
        url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=Retry(NoBackoff(), 0)
    )
    client.ping()
    return closing(client)


CHECKS = (check_version, check_eviction, check_memory, check_persistence, check_clock)
AWAY = "See that {} leads there and that it runs: docs/runbook.md#redis-is-lost."


# ---- Brokers of other kinds -----------------------------------------------------------------------------------------


@contextmanager
def answering() -> Iterator[kombu.Connection]:
    url = settings.SLUICE.broker_url
    with kombu.Connection(url, ssl=tls(url) or False, connect_timeout=SECONDS) as connection:
        connection.ensure_connection(max_retries=1, timeout=SECONDS)
        yield connection


def check_answer(connection: kombu.Connection) -> Iterator[Finding]:
    yield ok(f"It answers, by {connection.transport.driver_type}.")


def is_plain(url: str) -> bool:
    return url.startswith(("redis://", "rediss://", "unix://")) and ";" not in url


def subjects() -> list[Subject[Any]]:
    """Return the broker, and the run-states' Redis where that is another."""
    broker, states = settings.SLUICE.broker_url, settings.SLUICE.run_state_url
    found: list[Subject[Any]] = []
    if is_plain(broker):
        name = "CELERY_BROKER_URL, or REDIS_URL,"
        found.append(Subject(name="broker", open=lambda: connect(broker), checks=CHECKS, away=AWAY.format(name)))
    else:
        found.append(
            Subject(name="broker", open=answering, checks=(check_answer,), away=AWAY.format("CELERY_BROKER_URL"))
        )
    if health.place(states) != health.place(broker):
        name = "ETL_REDIS_URL, or REDIS_URL,"
        found.append(Subject(name="run_state", open=lambda: connect(states), checks=CHECKS, away=AWAY.format(name)))
    return found
