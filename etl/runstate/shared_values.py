"""What stands beside the run-states: notes that processes leave each other, and which of them ran periodic work."""

from collections.abc import Callable
from typing import TypeVar, cast

from django.conf import settings

from etl.runstate import script

T = TypeVar("T")


def key_of(name: str) -> str:
    return f"{settings.SLUICE.etl_redis_prefix}{name}"


def put_shared(name: str, text: str, *, seconds: int) -> None:
    """Leave a note for other processes, for a while, beside the run-states. Raises Unavailable."""
    with script.answering():
        script.redis()[0].set(key_of(name), text, ex=seconds)


def get_shared(name: str) -> str | None:
    """Return the note of this name, None if there is none (any more). Raises Unavailable."""
    with script.answering():
        return cast("str | None", script.redis()[0].get(key_of(name)))


def once(name: str, *, every: float, run: Callable[[], T]) -> bool:
    """Run periodic work unless it just ran: of any number of beats, one gets to. Returns whether it was run.

    Half an interval, because a tick that came late must not make the next one look like a repetition. Only to spare
    work: what is run must bear being run beside itself. Raises Unavailable.
    """
    with script.answering():
        is_first = script.redis()[0].set(key_of(name), "1", nx=True, px=int(every * 500))
    if is_first:
        run()
    return bool(is_first)
