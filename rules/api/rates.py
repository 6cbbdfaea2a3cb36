"""How often clients may ask about rules and documents: one rate for both. Every view of the two has `PerUser`."""

from config.platform.http import throttling
from rules.api import metrics


class PerUser(throttling.PerUser):
    posts = "etl_rate"
    others = "etl_poll_rate"

    def refused(self) -> None:
        metrics.rate_limited()
