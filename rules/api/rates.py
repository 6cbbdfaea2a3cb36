"""The rate limit of all API requests for rules and documents."""

from config.platform.http import throttling
from rules.api import metrics


class DocumentThrottle(throttling.UserThrottle):
    writes = "etl_rate"
    reads = "etl_poll_rate"
    write_methods = ("POST", "PUT", "PATCH", "DELETE")  # each change of a rule stores a version

    def refused(self) -> None:
        metrics.rate_limited()
