"""Pauses of a dataset whose files the object storage refuses, while it accepts all other files. A40."""

from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User

from exports.models import Dataset
from exports.worker import execution
from tests.conftest import change_settings
from tests.integration import faulty_s3
from tests.integration.factories import claim_one, make_job
from tests.integration.test_batches import run
from tests.integration.test_execution import replace_function

CHUNKS = 40


@pytest.mark.slow
def test_a_dataset_whose_files_are_refused_pauses_and_others_continue(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy, settings: LazySettings
) -> None:
    change_settings(settings, export_backoff_base_seconds=60)
    other = Dataset.objects.create(name="others", function="data.rows_for", base_path="others")
    refused = make_job(dataset, alice, CHUNKS)
    healthy = make_job(other, alice, CHUNKS)
    tried: set[str] = set()

    def refuse(handler: faulty_s3.Handler, body: bytes) -> None:
        tried.add(urlsplit(handler.path).path)
        faulty_s3.answer_500(handler, body)

    proxy.inject("PUT", "/things/", refuse, times=100_000)
    execution.drain()

    assert set(healthy.chunks.values_list("status", flat=True)) == {"done"}
    assert set(refused.chunks.values_list("status", flat=True)) == {"pending", "retrying"}
    assert not refused.chunks.filter(attempts__gt=0).exists()
    assert len(tried) <= 2, "the source was called for files that could not be stored"


@pytest.mark.slow
def test_a_paused_dataset_continues_when_its_files_are_accepted(
    dataset: Dataset, alice: User, proxy: faulty_s3.Proxy, settings: LazySettings
) -> None:
    change_settings(settings, export_backoff_base_seconds=0.01)
    job = make_job(dataset, alice, CHUNKS)
    proxy.inject("PUT", "/things/", faulty_s3.answer_500, times=8)
    while job.chunks.exclude(status="done").exists():
        execution.drain()
    assert execution.PAUSES.datasets() == []
    assert not job.chunks.exclude(attempts=1).exists()


def test_only_a_stored_file_ends_a_pause(dataset: Dataset, alice: User, source_db: psycopg.Connection) -> None:
    make_job(dataset, alice, 2)
    first, second = claim_one(backend="test"), claim_one(backend="test")
    assert first
    assert second
    execution.PAUSES.begin(dataset.name)
    replace_function(source_db, "RAISE 'no';")
    run([first])
    assert execution.PAUSES.datasets() == [dataset.name]

    replace_function(source_db, "")
    run([second])
    assert execution.PAUSES.datasets() == []
