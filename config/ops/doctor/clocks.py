"""How far other clocks are from ours."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from config.ops.doctor.findings import Finding, failure, ok, warning

# A URL that lives for 60 s may be dead on arrival when clocks are that far apart; S3 refuses requests from 15 min on.
WORRYING, TOO_FAR = timedelta(seconds=5), timedelta(seconds=30)
DO = "Have all hosts keep time by NTP (chrony, systemd-timesyncd), and look at its state on the host that is off."


def compare(theirs: datetime, *, asked: datetime, step: float = 0) -> Iterator[Finding]:
    """Compare a clock that was read between `asked` and now. `step`: it shows full steps of so many seconds."""
    answered = datetime.now(UTC)
    off = max(asked - theirs - timedelta(seconds=step), theirs - answered, timedelta())
    says = f"Its clock is {off.total_seconds():.0f} s off ours."
    if off > TOO_FAR:
        yield failure(f"{says} Links and presigned URLs may be over before they begin.", DO)
    elif off > WORRYING:
        yield warning(f"{says} What is promised in seconds is not kept.", DO)
    else:
        yield ok(f"Its clock and ours agree within {WORRYING.total_seconds():.0f} s.")
