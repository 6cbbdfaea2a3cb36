"""How often clients of exports may ask. Every view has `PerUser` unless it says otherwise: it is DRF's default here."""

from config.platform.http import throttling
from exports.core import metrics


class PerUser(throttling.PerUser):
    posts = "export_rate"
    others = "export_poll_rate"

    def refused(self) -> None:
        metrics.rate_limited()


class PerAddress(throttling.PerAddress):
    """For links, which need no sign-in: against guessing."""

    requests = "export_download_rate"

    def refused(self) -> None:
        metrics.rate_limited()
