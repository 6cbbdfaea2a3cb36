"""Clock skew between this host and other servers."""

from datetime import UTC, datetime, timedelta

from config.ops.doctor.findings import Finding, failure, ok, warning

# Above FAILURE_SKEW, a URL that is valid for 60 s may arrive expired; S3 rejects requests that are off by more than
# 15 minutes.
WARNING_SKEW, FAILURE_SKEW = timedelta(seconds=5), timedelta(seconds=30)
FIX = "Synchronize all hosts by NTP (chrony, systemd-timesyncd), and check its status on the host that is off."


def compare(remote: datetime, *, requested: datetime, resolution: float = 0) -> Finding:
    """Compare a remote clock, read after `requested`, with this host's. Its `resolution` is in seconds."""
    received = datetime.now(UTC)
    skew = max(requested - remote - timedelta(seconds=resolution), remote - received, timedelta())
    state = f"Its clock differs from this host's by {skew.total_seconds():.0f} s."
    if skew > FAILURE_SKEW:
        return failure(f"{state} Links and presigned URLs may be expired when they are issued.", FIX)
    if skew > WARNING_SKEW:
        return warning(f"{state} Expiry times are off by as much.", FIX)
    return ok(f"Its clock and this host's agree within {WARNING_SKEW.total_seconds():.0f} s.")
