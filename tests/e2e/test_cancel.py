"""Cancelling a job while real workers run its chunks. A2, A11, A13, A19."""

import psycopg
import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from config.platform import storage
from exports.core.planning import Shape
from exports.models import Chunk, Dataset, Job, Slot, Usage
from tests.e2e.conftest import LEASE_SECONDS, Workers
from tests.e2e.test_workers import PARQUET, SLOW, live_calls
from tests.integration.factories import make_job
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [Shape(), PARQUET], ids=["csv", "parquet"])
def test_cancelling_a_job_ends_running_calls_within_a_third_of_the_lease(
    dataset: Dataset, api: APIClient, source_db: psycopg.Connection, workers: Workers, shape: Shape
) -> None:
    """A19, A30: the job is cancelled at once, calls end, uploads are aborted, slots are freed, quota is refunded."""
    alice = User.objects.get(username="alice")
    source_db.execute(SLOW.format(seconds=120))
    worker = workers.start("exports", concurrency=3)
    job = make_job(dataset, alice, 10, shape=shape)
    wait_until(lambda: live_calls(source_db) == 3)

    response = api.post(f"/exports/{job.pk}/cancel")
    assert (response.status_code, response.json()["progress"]["cancelled"]) == (200, 10)
    wait_until(lambda: live_calls(source_db) == 0, limit=LEASE_SECONDS / 3 + 4)
    wait_until(lambda: not Slot.objects.held().exists(), limit=5)
    assert list(storage.list_uploads("things/")) == []
    assert Usage.objects.get().chunks == 0

    source_db.execute(SLOW.format(seconds=0))
    other = make_job(dataset, alice, 2, shape=shape)
    wait_until(lambda: other.chunks.filter(status="done").count() == 2)
    assert worker.alive
    assert set(Chunk.objects.filter(job=job).values_list("status", flat=True)) == {"cancelled"}
    assert Job.objects.get(pk=job.pk).status == "cancelled"
