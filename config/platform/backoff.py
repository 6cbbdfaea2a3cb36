"""Delays before retries, with jitter, so that operations that failed together are not retried together."""

import random
from collections.abc import Sequence

MAX_DOUBLINGS = 32  # larger powers overflow floats


def exponential(attempt: int, *, base: float, maximum: float) -> float:
    """Return the delay in seconds after failed attempt `attempt` (from 1).

    The ceiling doubles with each attempt. The delay is a random 50% to 100% of it.
    """
    ceiling = min(maximum, base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS))
    return ceiling * random.uniform(0.5, 1)  # noqa: S311 - not a secret


def scheduled(attempt: int, schedule: Sequence[float]) -> float:
    """Return the delay in seconds after failed attempt `attempt` (from 1): that of the schedule, plus up to 20%."""
    return schedule[min(attempt, len(schedule)) - 1] * random.uniform(1, 1.2)  # noqa: S311 - not a secret
