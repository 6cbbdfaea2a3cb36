"""Access to run-states in Redis: reads, and the script that makes all changes."""

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from django.conf import settings
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import ResponseError
from redis.retry import Retry

from etl.core.states import ENDED, Status
from etl.runstate.state import RunState, Unreadable, parsed

log = structlog.get_logger(__name__)

CONNECT_SECONDS = READ_SECONDS = 1.0
SCRIPT = Path(__file__).with_name("script.lua").read_text(encoding="utf-8")
OPEN = frozenset(Status.values) - ENDED


class Unavailable(Exception):
    """Redis did not reply in time, or returned an error."""


class Verdict(StrEnum):
    """The result of a transition."""

    MOVED = "moved"
    GONE = "gone"  # the run-state does not exist or cannot be read
    STALE = "stale"  # the run-state's generation is smaller than the caller's
    NEWER = "newer"  # the run-state's generation is greater
    SAME = "same"  # a run-state with this generation exists
    OVER = "over"  # the task has ended
    PASSED = "passed"  # the task is in a later stage
    BEHIND = "behind"  # the task is in an earlier stage
    STARTED = "started"  # a worker has, or may have, started
    ELSEWHERE = "elsewhere"  # the transition is not allowed from this status
    LOST = "lost"  # the caller no longer has the lease
    HELD = "held"  # another worker has an unexpired lease
    EARLY = "early"  # the next attempt is not due
    SPENT = "spent"  # no attempts are left; the lease was taken to fail the task
    WAITING = "waiting"  # a wake-up message was sent recently


# ---- Redis ----------------------------------------------------------------------------------------------------------
@cache
def connect(url: str, _process: int) -> tuple[Redis, Script]:
    """Return this process's client. A forked process must not use the sockets of its parent."""
    # Retry once on a broken connection, as after a restart of Redis, but not on a timeout.
    client = Redis.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",  # one invalid value must not fail the whole pipeline
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=READ_SECONDS,
        retry=Retry(NoBackoff(), 1, supported_errors=(Unreachable,)),
    )
    return client, client.register_script(SCRIPT)


def redis() -> tuple[Redis, Script]:
    return connect(settings.SLUICE.run_state_url, os.getpid())


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate failures of Redis into Unavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(type(error).__name__) from None


def key_of(task_id: int) -> str:
    return f"{settings.SLUICE.etl_redis_prefix}task:{task_id}"


# ---- Reading --------------------------------------------------------------------------------------------------------
def read(task_id: int) -> RunState | None:
    """Return a task's run-state, or None if there is none or only the row has the result. Raises Unavailable."""
    state = read_many([task_id]).get(task_id)
    return None if state is None or state.result_is_elsewhere else state


def read_many(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the existing run-states, even if only the row has the result. One round trip. Raises Unavailable."""
    ids = list(task_ids)
    with translate_errors():
        pipeline = redis()[0].pipeline(transaction=False)
        for task_id in ids:
            pipeline.hgetall(key_of(task_id))
        found = pipeline.execute(raise_on_error=False)
        return {
            task_id: state
            for task_id, fields in zip(ids, found, strict=True)
            if fields and (state := parse_or_log(task_id, fields))
        }


def parse_or_log(task_id: int, fields: Mapping[str, str] | ResponseError) -> RunState | None:
    """Return the run-state of a reply, or None after logging an unreadable one.

    Raises Redis errors that are not about this key.
    """
    if isinstance(fields, ResponseError):
        if not str(fields).startswith("WRONGTYPE"):
            raise fields
        log_unreadable(task_id, "WrongType")
        return None
    try:
        return parsed(task_id, fields)
    except Unreadable as error:
        log_unreadable(task_id, str(error))
        return None


@lru_cache(maxsize=1_000)
def log_unreadable(task_id: int, reason: str) -> None:
    """Log an unreadable run-state, but only once: clients poll several times a second."""
    log.error("run_state_unreadable", etl_task_id=task_id, reason=reason)


def scan_open(*, size: int, max_batches: int) -> Iterator[list[int]]:
    """Yield the IDs of tasks with an open run-state, in batches. Raises Unavailable.

    `max_batches`: the maximum number of batches, of about `size` keys each. A warning is logged if there are more.
    """
    pages = scan_all(size=size)
    for task_ids in islice(pages, max_batches):
        with translate_errors():
            open_ids = open_among(task_ids)
        yield open_ids
    if next(pages, None) is not None:
        log.warning("run_states_scan_incomplete", keys=size * max_batches)


def scan_all(*, size: int) -> Iterator[list[int]]:
    """Yield the IDs of tasks with a run-state, in batches; SCAN may repeat some. Raises Unavailable."""
    prefix, cursor = key_of(0)[:-1], 0
    while True:
        with translate_errors():
            cursor, keys = redis()[0].scan(cursor, match=f"{escaped(prefix)}*", count=size)
        yield [int(number) for key in keys if (number := str(key).removeprefix(prefix)).isdecimal()]
        if not cursor:
            return


def open_among(task_ids: list[int]) -> list[int]:
    pipeline = redis()[0].pipeline(transaction=False)
    for task_id in task_ids:
        pipeline.hget(key_of(task_id), "status")
    statuses = pipeline.execute(raise_on_error=False)
    return [task_id for task_id, status in zip(task_ids, statuses, strict=True) if status in OPEN]


def find_running(job_id: str) -> int | None:
    """Return the task that a worker runs for this message, or None. Reads all run-states. Raises Unavailable."""
    for task_ids in scan_all(size=500):
        for task_id, state in read_many(task_ids).items():
            if state.token and state.job_id == job_id:
                return task_id
    return None


def escaped(text: str) -> str:
    """Escape a text for Redis' MATCH."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


# ---- Transitions ----------------------------------------------------------------------------------------------------
class TransitionResult(NamedTuple):
    """The outcome of a transition.

    `seconds`: the rest of another worker's lease, or the time until the next attempt. `state`: only if requested.
    """

    verdict: Verdict
    seconds: float = 0
    state: RunState | None = None

    @property
    def moved(self) -> bool:
        return self.verdict is Verdict.MOVED


def new_id() -> str:
    """Return a new transition ID. A repeated ID returns the first verdict, so transitions can be retried safely."""
    return secrets.token_hex(8)


def move(task_id: int, **conditions: Any) -> TransitionResult:
    """Run one transition. `script.lua` documents the conditions; None omits one. Raises Unavailable."""
    with translate_errors():
        return result_of(task_id, redis()[1](keys=[key_of(task_id)], args=[encoded(conditions)]))


def move_many(moves: Mapping[int, Mapping[str, Any]]) -> dict[int, TransitionResult]:
    """Run one transition per task, in one round trip. An invalid run-state counts as missing. Raises Unavailable."""
    client, script = redis()
    with translate_errors():
        pipeline = client.pipeline(transaction=False)
        for task_id, conditions in moves.items():
            script(keys=[key_of(task_id)], args=[encoded(conditions)], client=pipeline)
        replies = pipeline.execute()
    return {task_id: result_of(task_id, reply) for task_id, reply in zip(moves, replies, strict=True)}


def encoded(conditions: Mapping[str, Any]) -> str:
    known = {name: value for name, value in conditions.items() if value is not None}
    return json.dumps({"ttl": settings.SLUICE.etl_state_ttl_seconds, "id": new_id(), **known})


def result_of(task_id: int, reply: list[str]) -> TransitionResult:
    verdict, seconds, *rest = reply
    fields = dict(zip(rest[::2], rest[1::2], strict=True))
    if not fields:
        return TransitionResult(Verdict(verdict), float(seconds))
    state = parse_or_log(task_id, fields)
    return TransitionResult(Verdict(verdict), float(seconds), state) if state else TransitionResult(Verdict.GONE)
