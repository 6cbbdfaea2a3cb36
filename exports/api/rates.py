"""Rate limits of the exports API. DRF uses `ExportThrottle` for all views that do not set another one."""

from config.platform.http import throttling
from exports.core import metrics


class ExportThrottle(throttling.UserThrottle):
    writes = "export_rate"
    reads = "export_poll_rate"
    refusals = metrics.RATE_LIMITED


class DownloadThrottle(throttling.AddressThrottle):
    """Rate limit per IP address for one-time links, which need no authentication. Prevents guessing."""

    requests = "export_download_rate"
    refusals = metrics.RATE_LIMITED
