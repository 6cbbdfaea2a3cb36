"""Measuring things in turn: A B A B …, so that a machine that is slower for a minute is so for all of them."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping

Way = Callable[[], float | None]


def in_turn(ways: Mapping[str, Way], *, rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Return what each way took, round by round: what it returns, else its seconds.

    The first round, to warm up, does not count. Every other round is in reverse, so that none always follows the same.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(0 if warm_up else 1, rounds + 1):
        for name, way in list(ways.items())[:: -1 if number % 2 == 0 else 1]:
            started = time.perf_counter()
            value = way()
            spent = time.perf_counter() - started
            value = spent if value is None else value
            if number:
                taken[name].append(value)
            say(f"{'warm-up' if not number else f'round {number} of {rounds}'}: {name}: {value:.3f}")
    return taken


def say(text: str) -> None:
    """Tell how it goes on; what it comes to is printed apart, on stdout."""
    print(text, file=sys.stderr, flush=True)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest of them that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
