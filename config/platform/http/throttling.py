"""Rate limits: moving windows in Valkey, shared by all web processes, with the library `limits`.

Rate limits protect the service from clients in a loop, and links from guessing. They must never make the service
unavailable. While Valkey does not respond, requests are allowed without counting, and a circuit breaker lets only one
request per PAUSE_SECONDS try Valkey.

Times are those of the web hosts' clocks. Apps define what is counted in subclasses, such as those in
`exports.api.rates`.
"""

import math
import os
import time
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING
from weakref import finalize

import limits
import redis
from django.conf import settings
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter
from prometheus_client import Counter
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from config.platform.http.addresses import rate_limit_key
from config.platform.http.circuit_breaker import CircuitBreaker
from config.platform.http.problems import Problem

if TYPE_CHECKING:  # DRF imports this module while it defines its views
    from rest_framework.views import APIView

RESPONSE_SECONDS = 0.25  # to connect, and for each response; an unresponsive server exceeds only one of them
PREFIX = "sluice:rate"
# One per concurrent thread. A flood of requests could exhaust redis-py's default of 100. An exhausted pool looks like
# an unavailable server, so the flood would disable the rate limits.
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


# ---- Throttles -------------------------------------------------------------------------------------------------


class Throttle(BaseThrottle):
    """A throttle that counts each request before its view runs, and raises RateLimited above the limit.

    `refusals`: the app's counter of refused requests.
    """

    refusals: Counter | None = None

    def allow_request(self, request: Request, view: "APIView") -> bool:
        name, client = self.counted(request)
        limit = rate(name)
        if client and (seconds := limiter().wait(limit, client)):
            if self.refusals:
                self.refusals.inc()
            detail = f"Too many requests. The limit is {limit.amount:,} per {limit.GRANULARITY.name}."
            raise RateLimited(detail, retry_after=seconds)
        return True

    def counted(self, request: Request) -> tuple[str, str]:
        """Return the setting with the rate, and the client's key in Valkey, or "" if the request is not counted."""
        raise NotImplementedError


class UserThrottle(Throttle):
    """A limit per user. Anonymous requests are not counted.

    Requests with methods other than `write_methods` have a higher limit, because clients poll.
    """

    writes: str
    reads: str
    write_methods: Collection[str] = ("POST",)

    def counted(self, request: Request) -> tuple[str, str]:
        name = self.writes if request.method in self.write_methods else self.reads
        return name, "" if request.user.pk is None else str(request.user.pk)


class AddressThrottle(Throttle):
    """A limit per address, for views without authentication."""

    requests: str

    def counted(self, request: Request) -> tuple[str, str]:
        return self.requests, rate_limit_key(request._request)


@cache
def parse_rate(name: str, text: str) -> limits.RateLimitItem:
    amount, _, unit = text.partition("/")
    return UNITS[unit](int(amount), namespace=name)


def rate(name: str) -> limits.RateLimitItem:
    """Return the rate in a setting, as in `rate("export_rate")`."""
    return parse_rate(name, getattr(settings.SLUICE, name))


# ---- The windows ----------------------------------------------------------------------------------------------------


class Limiter(CircuitBreaker):
    """The windows of all rates, behind a circuit breaker."""

    opened, closed = "rates_not_counted", "rates_counted_again"

    def __init__(self, url: str) -> None:
        super().__init__()
        pool: redis.ConnectionPool = redis.ConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            socket_connect_timeout=RESPONSE_SECONDS,
            socket_timeout=RESPONSE_SECONDS,
            # redis-py would retry for seconds. Connections closed by the server are detected before use.
            retry=Retry(NoBackoff(), 0),
        )
        # The Redis client does not own this pool. Without `finalize`, connections would outlive the limiter.
        finalize(self, pool.disconnect).atexit = False
        self.windows = MovingWindowRateLimiter(RedisStorage("redis://", connection_pool=pool, key_prefix=PREFIX))

    def wait(self, rate: limits.RateLimitItem, client: str) -> int:
        """Count a request. Return 0 or, above the limit, the seconds until the next request is allowed."""
        if not self.allows_request():
            return 0
        try:
            seconds = self.hit(rate, client)
        except redis.RedisError as error:
            self.record_failure(type(error).__name__)
            return 0
        self.record_success()
        return seconds

    def hit(self, rate: limits.RateLimitItem, client: str) -> int:
        if self.windows.hit(rate, client):
            return 0
        room_at, remaining = self.windows.get_window_stats(rate, client)
        # The window may be empty by now. `room_at` would then be a whole window away.
        return 1 if remaining > 0 else max(1, math.ceil(room_at - time.time()))


def limiter() -> Limiter:
    return limiter_of(settings.SLUICE.redis_url.get_secret_value(), os.getpid())


@cache
def limiter_of(url: str, _pid: int) -> Limiter:
    """Return the limiter of this process. A fork must not use the parent's connections and breaker."""
    return Limiter(url)
