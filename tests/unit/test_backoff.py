"""Delays before retries of chunks, webhooks, and documents (A17, A25, B14)."""

import pytest

from config.platform import backoff


@pytest.mark.parametrize(("attempt", "ceiling"), [(1, 2), (2, 4), (3, 8), (6, 60), (10_000, 60)])
def test_it_doubles_up_to_its_maximum_with_jitter_in_the_upper_half(attempt: int, ceiling: float) -> None:
    """A17."""
    delays = [backoff.exponential(attempt, base=2, maximum=60) for _ in range(200)]
    assert all(ceiling / 2 <= delay <= ceiling for delay in delays)
    assert max(delays) - min(delays) > ceiling / 4


@pytest.mark.parametrize(("attempt", "planned"), [(1, 5), (2, 300), (3, 1800), (9, 1800)])
def test_it_follows_a_schedule_whose_last_delay_repeats(attempt: int, planned: float) -> None:
    """A25."""
    delays = [backoff.scheduled(attempt, (5, 300, 1800)) for _ in range(200)]
    assert all(planned <= delay <= planned * 1.2 for delay in delays)
    assert max(delays) > min(delays)
