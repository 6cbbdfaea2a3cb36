"""Short-lived values in Redis that all processes share, beside the run-states."""

from collections.abc import Callable
from typing import cast

from django.conf import settings

from etl.runstate import script


def key_of(name: str) -> str:
    return f"{settings.SLUICE.etl_redis_prefix}{name}"


def put_shared(name: str, text: str, *, seconds: int) -> None:
    """Store a value for `seconds`. Raises Unavailable."""
    with script.translate_errors():
        script.redis()[0].set(key_of(name), text, ex=seconds)


def get_shared(name: str) -> str | None:
    """Return a value, or None if it does not exist or has expired. Raises Unavailable."""
    with script.translate_errors():
        return cast("str | None", script.redis()[0].get(key_of(name)))


def once(name: str, *, every: float, run: Callable[[], object]) -> bool:
    """Run periodic work unless another process just ran it. Return whether it ran.

    `every`: the interval in seconds. The key expires after half of it, so that a late run does not suppress the next
    one. This only saves work: `run` must be safe to run concurrently. Raises Unavailable.
    """
    with script.translate_errors():
        is_first = script.redis()[0].set(key_of(name), "1", nx=True, px=int(every * 500))
    if is_first:
        run()
    return bool(is_first)
