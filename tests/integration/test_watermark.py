"""A database that is older than its bucket. tests/operations/test_restore.py restores a real one."""

from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from structlog.testing import capture_logs

from config.ops.doctor import database
from config.platform import storage
from config.platform.observability import gauges
from exports.maintenance import periodic, watermark
from exports.models import Watermark
from tests.integration.test_doctor import examine
from tests.integration.test_metrics import gauge

pytestmark = pytest.mark.django_db(transaction=True)
METRIC = "sluice_database_older_than_bucket"


@pytest.fixture(autouse=True)
def _patient_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a machine that stalls for two seconds would look like a database outage."""
    monkeypatch.setattr(gauges, "CONNECT_SECONDS", 30)


def number() -> int:
    return Watermark.objects.get().number


def copied() -> int:
    return watermark.read_copy(Watermark.objects.get().database).number


def reconcile() -> None:
    call_command("reconcile", stdout=StringIO())


def test_the_reaper_advances_the_watermark_in_the_database_and_then_in_the_bucket() -> None:
    assert examine(database.SUBJECT, "watermark")[0] == "ok"
    for expected in (1, 2, 3):
        assert "advance" not in periodic.reap()
        assert (number(), copied()) == (expected, expected)
    assert gauge(METRIC) == 0
    assert examine(database.SUBJECT, "watermark")[0] == "ok"


def test_a_restored_database_is_noticed_until_it_is_reconciled() -> None:
    """The number in the database does not catch up with the number in the bucket."""
    for _ in range(3):
        watermark.advance()
    Watermark.objects.update(number=2)

    with capture_logs() as logs:
        for _ in range(3):
            watermark.advance()

    assert [line["event"] for line in logs] == ["database_older_than_bucket"] * 3
    assert (number(), copied()) == (2, 3)
    assert gauge(METRIC) == 1
    level, text = examine(database.SUBJECT, "watermark")
    assert level == "failure"
    assert "reconcile" in text

    reconcile()

    assert (number(), copied()) == (4, 4)
    assert gauge(METRIC) == 0
    assert examine(database.SUBJECT, "watermark")[0] == "ok"
    reconcile()
    watermark.advance()
    assert (number(), copied()) == (6, 6)


def test_the_doctor_notices_a_restored_database_before_the_reaper_runs() -> None:
    for _ in range(2):
        watermark.advance()
    Watermark.objects.update(number=1)
    assert gauge(METRIC) == 0
    assert examine(database.SUBJECT, "watermark")[0] == "failure"


def test_a_crash_before_the_copy_is_not_reported_as_a_restore() -> None:
    watermark.advance()
    Watermark.objects.update(number=7)
    watermark.advance()
    assert (number(), copied(), gauge(METRIC)) == (8, 8, 0)


def test_a_slow_process_does_not_set_the_watermark_back() -> None:
    watermark.advance()
    slow = watermark.read()
    for _ in range(2):
        watermark.advance()
    watermark.move(*slow, to=2)
    assert (number(), copied()) == (3, 3)
    Watermark.objects.update(number=slow[0].number)  # as if the slow process had been the first to change the row
    watermark.move(*slow, to=2)
    assert copied() == 3


def test_databases_that_share_a_bucket_do_not_affect_each_other() -> None:
    watermark.advance()
    other = watermark.key_of(uuid4())
    content = b'{"number": 1000, "reached_at": "2026-01-01T00:00:00+00:00"}'
    storage.put(other, content, content_type="application/json")

    watermark.advance()
    reconcile()

    assert (number(), copied(), gauge(METRIC)) == (3, 3, 0)
    assert b"".join(storage.read(other)) == content
    storage.delete(other)


def test_a_new_bucket_gets_a_copy() -> None:
    watermark.advance()
    storage.delete(watermark.key_of(Watermark.objects.get().database))
    watermark.advance()
    assert (number(), copied(), gauge(METRIC)) == (2, 2, 0)
