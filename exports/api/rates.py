"""Rate limits of the exports API. `ExportThrottle` is DRF's default, for all views without their own."""

from config.platform.http import throttling
from exports.core import metrics


class ExportThrottle(throttling.UserThrottle):
    writes = "export_rate"
    reads = "export_poll_rate"
    refusals = metrics.RATE_LIMITED


class DownloadThrottle(throttling.AddressThrottle):
    """Limit for links, which need no authentication. Prevents guessing."""

    requests = "export_download_rate"
    refusals = metrics.RATE_LIMITED
