"""Quota errors, and the calculation of daily limits."""

from typing import Self

from config.platform.db import clock
from config.platform.http.problems import Problem

DAY = 86_400


class QuotaExceeded(Problem):
    status = 429
    code = "quota_exceeded"

    @classmethod
    def of_day(cls, reason: str) -> Self:
        """Return the problem of a daily quota."""
        return cls(f"{reason}. The quota resets at midnight UTC.", retry_after=seconds_left())


def seconds_left() -> int:
    """Return the seconds until midnight UTC, by the database's clock."""
    return DAY - int(clock.now().timestamp()) % DAY


def left(limit: int, used: int) -> int:
    """Return the remaining quota. It is at least 0: a lowered limit may be less than the usage."""
    return max(limit - used, 0)
