"""The rate limit of all API requests for rules and documents."""

from config.platform.http import throttling
from rules.api import metrics


class DocumentThrottle(throttling.UserThrottle):
    posts = "etl_rate"
    others = "etl_poll_rate"

    def refused(self) -> None:
        metrics.rate_limited()
