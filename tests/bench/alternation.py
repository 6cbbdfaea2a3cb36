"""Alternating measurements (A B A B …), so that a temporarily slow machine affects all alternatives equally."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping

Measurement = Callable[[], float | None]


def alternate(alternatives: Mapping[str, Measurement], *, rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Measure each alternative once per round. Return the results: return values, or seconds if there is none.

    With `warm_up`, an additional first round is not counted. Every other round is reversed, so that the order varies.
    """
    measurements: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(0 if warm_up else 1, rounds + 1):
        for name, alternative in list(alternatives.items())[:: -1 if number % 2 == 0 else 1]:
            started = time.perf_counter()
            value = alternative()
            spent = time.perf_counter() - started
            value = spent if value is None else value
            if number:
                measurements[name].append(value)
            log_progress(f"{'warm-up' if not number else f'round {number} of {rounds}'}: {name}: {value:.3f}")
    return measurements


def log_progress(text: str) -> None:
    """Print progress to stderr, because results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value such that at least this share of the values is not larger."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
