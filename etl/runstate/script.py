"""The run-states in Redis: reading them, and the one script that changes them."""

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
    """Redis did not answer in time, or refused."""


class Verdict(StrEnum):
    """What became of a move."""

    MOVED = "moved"
    GONE = "gone"  # there is no run-state, or none that can be read
    STALE = "stale"  # the run-state's fence is smaller than the caller's
    NEWER = "newer"  # it is greater
    SAME = "same"  # there is one of this fence already
    OVER = "over"  # the task has ended
    PASSED = "passed"  # it is in a later stage
    BEHIND = "behind"  # it is in an earlier stage
    STARTED = "started"  # a worker has begun, or may have
    ELSEWHERE = "elsewhere"  # its status is none that the move begins at
    LOST = "lost"  # somebody else's token is in place, or nobody's
    HELD = "held"  # somebody holds a live lease
    EARLY = "early"  # it waits for its next attempt
    SPENT = "spent"  # no attempts are left; the lease was given, to end the task with
    WAITING = "waiting"  # a hint was sent lately


# ---- Redis ----------------------------------------------------------------------------------------------------------
class RedisClientKey(NamedTuple):
    """A connection pool and the script. `process` keeps a fork from using its parent's sockets."""

    process: int
    url: str


@cache
def connect(door: RedisClientKey) -> tuple[Redis, Script]:
    # Tried once more where a connection is found broken, as after Redis was started anew; not where there is no answer.
    client = Redis.from_url(
        door.url,
        decode_responses=True,
        encoding_errors="replace",  # one odd value must not fail the pipeline that it is in
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=READ_SECONDS,
        retry=Retry(NoBackoff(), 1, supported_errors=(Unreachable,)),
    )
    return client, client.register_script(SCRIPT)


def redis() -> tuple[Redis, Script]:
    return connect(RedisClientKey(os.getpid(), settings.SLUICE.run_state_url))


@contextmanager
def answering() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(type(error).__name__) from None


def key_of(task_id: int) -> str:
    return f"{settings.SLUICE.etl_redis_prefix}task:{task_id}"


# ---- Reading --------------------------------------------------------------------------------------------------------
def read(task_id: int) -> RunState | None:
    """Return a task's run-state; None where there is none, or where the row alone has all of it. Raises Unavailable."""
    state = read_many([task_id]).get(task_id)
    return None if state is None or state.result_is_elsewhere else state


def read_many(task_ids: Iterable[int]) -> dict[int, RunState]:
    """Return the run-states that there are, in one round trip; also those whose result is elsewhere. Raises
    Unavailable."""
    ids = list(task_ids)
    with answering():
        pipeline = redis()[0].pipeline(transaction=False)
        for task_id in ids:
            pipeline.hgetall(key_of(task_id))
        found = pipeline.execute(raise_on_error=False)
        return {
            task_id: state for task_id, had in zip(ids, found, strict=True) if had and (state := seen(task_id, had))
        }


def seen(task_id: int, had: Mapping[str, str] | ResponseError) -> RunState | None:
    """Return the run-state that a reply tells of; None for one that cannot be read, which the log says once.

    Raises other errors of Redis than of the one key.
    """
    if isinstance(had, ResponseError):
        if not is_of_the_key(had):
            raise had
        complain(task_id, "WrongType")
        return None
    try:
        return parsed(task_id, had)
    except Unreadable as error:
        complain(task_id, str(error))
        return None


def is_of_the_key(error: ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")


@lru_cache(maxsize=1_000)
def complain(task_id: int, reason: str) -> None:
    """Once: who looks at a task looks several times a second."""
    log.error("run_state_unreadable", etl_task_id=task_id, reason=reason)


def scan(*, size: int, most: int) -> Iterator[list[int]]:
    """Yield the tasks whose run-states say that they go on, by batches. Raises Unavailable.

    `most`: how many batches, of about `size` keys of anybody's each; the log says where that was not enough.
    """
    pages = all_of_them(size=size)
    for task_ids in islice(pages, most):
        with answering():
            open_ones = going_on(task_ids)
        yield open_ones
    if next(pages, None) is not None:
        log.warning("run_states_not_all_looked_at", keys=size * most)


def all_of_them(*, size: int) -> Iterator[list[int]]:
    """Yield the tasks that have a run-state, by batches; some come twice. Raises Unavailable."""
    prefix, cursor = key_of(0)[:-1], 0
    while True:
        with answering():
            cursor, keys = redis()[0].scan(cursor, match=f"{escaped(prefix)}*", count=size)
        yield [int(number) for key in keys if (number := str(key).removeprefix(prefix)).isdecimal()]
        if not cursor:
            return


def going_on(task_ids: list[int]) -> list[int]:
    pipeline = redis()[0].pipeline(transaction=False)
    for task_id in task_ids:
        pipeline.hget(key_of(task_id), "status")
    statuses = pipeline.execute(raise_on_error=False)
    return [task_id for task_id, status in zip(task_ids, statuses, strict=True) if status in OPEN]


def escaped(text: str) -> str:
    """Return a pattern of Redis that fits this text alone."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


# ---- Moving ---------------------------------------------------------------------------------------------------------
class TransitionResult(NamedTuple):
    """`seconds`: how long a lease is held, or how early it is. `state`: as it is now, where the move asked for it."""

    verdict: Verdict
    seconds: float = 0
    state: RunState | None = None

    @property
    def moved(self) -> bool:
        return self.verdict is Verdict.MOVED


def new_id() -> str:
    """Return an id for a move that may have to be sent again: who sends the same id is told what the first one was."""
    return secrets.token_hex(8)


def move(task_id: int, **conditions: Any) -> TransitionResult:
    """Have the script make a move, whose words `script.lua` explains; None is: not said. Raises Unavailable."""
    with answering():
        return answered(task_id, redis()[1](keys=[key_of(task_id)], args=[described(conditions)]))


def move_many(moves: Mapping[int, Mapping[str, Any]]) -> dict[int, TransitionResult]:
    """Make a move for each of these tasks, in one round trip. Raises Unavailable: not for what one task alone has."""
    client, script = redis()
    with answering():
        pipeline = client.pipeline(transaction=False)
        for task_id, conditions in moves.items():
            script(keys=[key_of(task_id)], args=[described(conditions)], client=pipeline)
        replies = pipeline.execute()
    return {task_id: answered(task_id, reply) for task_id, reply in zip(moves, replies, strict=True)}


def described(conditions: Mapping[str, Any]) -> str:
    known = {name: value for name, value in conditions.items() if value is not None}
    return json.dumps({"ttl": settings.SLUICE.etl_state_ttl_seconds, "id": new_id(), **known})


def answered(task_id: int, reply: list[str]) -> TransitionResult:
    verdict, seconds, *rest = reply
    had = dict(zip(rest[::2], rest[1::2], strict=True))
    if not had:
        return TransitionResult(Verdict(verdict), float(seconds))
    state = seen(task_id, had)
    return TransitionResult(Verdict(verdict), float(seconds), state) if state else TransitionResult(Verdict.GONE)
