"""How often a client may ask: moving windows in Valkey that all web processes share, by the library `limits`.

A rate protects the service from clients in a loop, and links from guessing. It must never be what takes the service
down: while Valkey does not answer, requests are let through, and only one in PAUSE_SECONDS waits to find out.

Times are those of the web hosts' clocks. Apps say by subclasses what is counted: `exports.api.rates`.
"""

import math
import os
import time
from functools import cache
from typing import TYPE_CHECKING
from weakref import finalize

import limits
import redis
from django.conf import settings
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from config.platform.http.addresses import counted_as
from config.platform.http.circuit_breaker import Breaker
from config.platform.http.problems import Problem

if TYPE_CHECKING:  # DRF imports this module while it is making its views
    from rest_framework.views import APIView

ANSWER_SECONDS = 0.25  # for a connection, and for each answer: a silent server costs one of them
PREFIX = "sluice:rate"
# One for each thread that asks at the same time. redis-py's 100 could be used up by a flood, and a pool without a free
# connection looks like a server that is away: the flood would switch the rates off.
MAX_CONNECTIONS = 10_000
# The units of `config.env.rate`; `limits.parse` does not know the short ones.
UNITS: dict[str, type[limits.RateLimitItem]] = {
    **dict.fromkeys(("s", "sec", "second"), limits.RateLimitItemPerSecond),
    **dict.fromkeys(("min", "minute"), limits.RateLimitItemPerMinute),
    **dict.fromkeys(("h", "hour"), limits.RateLimitItemPerHour),
    "day": limits.RateLimitItemPerDay,
}


class RateLimited(Problem):
    status = 429
    code = "rate_limited"
    detail = "Too many requests. Wait before you send the next one."


# ---- What views use -------------------------------------------------------------------------------------------------


class Throttle(BaseThrottle):
    """Counts a request before its view runs, and refuses it by RateLimited when it is one too many."""

    def allow_request(self, request: Request, view: "APIView") -> bool:
        name, who = self.counted(request)
        if who and (seconds := limiter().wait(rate(name), who)):
            self.refused()
            raise RateLimited(retry_after=seconds)
        return True

    def counted(self, request: Request) -> tuple[str, str]:
        """Return the setting that holds the rate, and who is counted: "" for nobody. It goes into Valkey as it is."""
        raise NotImplementedError

    def refused(self) -> None:
        """Count the refusal, in a metric of the app's own."""


class PerUser(Throttle):
    """By user: what is not a POST has a rate of its own, a wide one, as clients poll. Who is not signed in is not
    counted."""

    posts: str
    others: str

    def counted(self, request: Request) -> tuple[str, str]:
        name = self.posts if request.method == "POST" else self.others
        return name, "" if request.user.pk is None else str(request.user.pk)


class PerAddress(Throttle):
    """By address, for views without sign-in."""

    requests: str

    def counted(self, request: Request) -> tuple[str, str]:
        return self.requests, counted_as(request._request)


@cache
def parsed(name: str, text: str) -> limits.RateLimitItem:
    amount, _, unit = text.partition("/")
    return UNITS[unit](int(amount), namespace=name)


def rate(name: str) -> limits.RateLimitItem:
    """Return the rate that a setting holds, `rate("export_rate")`."""
    return parsed(name, getattr(settings.SLUICE, name))


# ---- The windows ----------------------------------------------------------------------------------------------------


class Limiter(Breaker):
    """The windows of all rates, and a breaker before them: a server that did not answer is left alone for a while."""

    away, back = "rates_not_counted", "rates_counted_again"

    def __init__(self, url: str) -> None:
        super().__init__()
        pool: redis.ConnectionPool = redis.ConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            # redis-py would try for seconds. That a server has closed a connection is noticed before it is used.
            retry=Retry(NoBackoff(), 0),
        )
        # The client is no owner of a pool that it is given: without this its connections would outlive it, open.
        finalize(self, pool.disconnect).atexit = False
        self.windows = MovingWindowRateLimiter(RedisStorage("redis://", connection_pool=pool, key_prefix=PREFIX))

    def wait(self, rate: limits.RateLimitItem, who: str) -> int:
        """Count a request, and return 0; or, when it is one too many, return the seconds until there is room."""
        if not self.may_ask():
            return 0
        try:
            seconds = self.ask(rate, who)
        except redis.RedisError as error:
            self.note_silence(type(error).__name__)
            return 0
        self.note_answer()
        return seconds

    def ask(self, rate: limits.RateLimitItem, who: str) -> int:
        if self.windows.hit(rate, who):
            return 0
        room_at, remaining = self.windows.get_window_stats(rate, who)
        # There may be room since. With an empty window `room_at` would be a whole window away.
        return 1 if remaining > 0 else max(1, math.ceil(room_at - time.time()))


def limiter() -> Limiter:
    return limiter_of(settings.SLUICE.redis_url.get_secret_value(), os.getpid())


@cache
def limiter_of(url: str, _pid: int) -> Limiter:
    """One for each process: connections and breaker of before a fork are the parent's."""
    return Limiter(url)
