"""Alternating measurements: A B A B …, so that a temporarily slow machine affects all of them equally."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping

Measurement = Callable[[], float | None]


def alternate(ways: Mapping[str, Measurement], *, rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Return each way's results, round by round: its return value, or its seconds.

    The first round is a warm-up and does not count. Every other round is reversed, so that the order varies.
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
            log_progress(f"{'warm-up' if not number else f'round {number} of {rounds}'}: {name}: {value:.3f}")
    return taken


def log_progress(text: str) -> None:
    """Print progress to stderr. Results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
