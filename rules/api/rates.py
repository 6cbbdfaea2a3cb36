"""Rate limits of API requests for rules and documents."""

from prometheus_client import Counter

from config.platform.http import throttling

RATE_LIMITED = Counter("etl_rate_limited_total", "Requests refused because they came too fast.")


class EtlThrottle(throttling.UserThrottle):
    writes = "etl_rate"
    reads = "etl_poll_rate"
    write_methods = ("POST", "PUT", "PATCH", "DELETE")  # each change of a rule stores a version
    refusals = RATE_LIMITED
