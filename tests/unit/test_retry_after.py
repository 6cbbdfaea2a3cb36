"""The Retry-After header of webhook receivers, OCR providers, and models (A25, B14, B18)."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from config.platform.http.outbound import retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("0", 0),
        ("0.5", 0.5),
        ("100", 60),
        ("9" * 5_000, 60),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 60),
        ("Wed, 21 Oct 2099 07:28:00 -0000", 60),
        ("Wed, 99 Oct 2099 07:28:00 GMT", None),
        ("soon", None),
        ("-3", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("٣", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_limited_number_of_seconds_or_none(value: str | None, seconds: float | None) -> None:
    """B14, B18."""
    assert retry_after.seconds(value, limit=60) == seconds


def test_retry_after_accepts_dates() -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    began = datetime.now(UTC)
    delay = retry_after.seconds(format_datetime(soon, usegmt=True), limit=60)
    assert delay is not None
    assert soon - datetime.now(UTC) <= timedelta(seconds=delay) <= soon - began
