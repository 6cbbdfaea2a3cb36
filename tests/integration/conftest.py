"""Fixtures of the integration tests."""

import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from django.conf import LazySettings
from pydantic import AnyHttpUrl

from config.platform import storage, wakeups
from config.platform.http import throttling
from config.platform.observability import gauges
from config.platform.storage import writability
from config.platform.webhooks import sender
from etl.core.formats import DocumentFormat
from etl.pipeline import dispatch as etl_dispatch
from etl.providers.base import Document
from etl.providers.local import LocalProvider
from etl.runstate import script
from exports.models import Dataset
from exports.worker import execution
from exports.worker.batches import ChunkDurations
from exports.worker.pauses import DatasetPauses
from rules.models import Rule
from tests import samples
from tests.broker import lose_messages
from tests.conftest import change_settings
from tests.integration import faulty_s3
from tests.integration.llm_factories import running_models
from tests.integration.openai_server import ModelServer
from tests.integration.receiver import Receiver, allow, receiver
from tests.integration.staff import delivered, failed, pages, staff  # noqa: F401 - fixtures
from tests.integration.stage_runs import ConfigureStages


@pytest.fixture(autouse=True, scope="package")
def long_timeouts() -> Iterator[None]:
    """Raise the timeouts of clients: a machine that stalls for seconds must not look like a server outage.

    Tests of outages use other addresses, whose clients have the real timeouts. `broker_at` and `production_timeout`
    restore those of the broker and the rate limits.
    """
    with pytest.MonkeyPatch.context() as patch:
        with patch.context() as temporary:
            temporary.setattr(script, "READ_SECONDS", 30.0)
            temporary.setattr(script, "CONNECT_SECONDS", 30.0)
            script.connect.cache_clear()
            script.redis()  # cached, with these timeouts, for this address
        for sending in (wakeups, etl_dispatch):
            options = {**sending.SHORT_TIMEOUTS, "socket_timeout": 30, "socket_connect_timeout": 30}
            patch.setattr(sending, "SHORT_TIMEOUTS", options)
        for drained in (execution, sender):
            patch.setattr(drained, "DRAIN_SECONDS", 60)
        patch.setattr(throttling, "RESPONSE_SECONDS", 30.0)
        patch.setattr(gauges, "STATEMENT_SECONDS", 60)
        throttling.limiter_of.cache_clear()
        yield
        throttling.limiter_of.cache_clear()


@pytest.fixture(autouse=True)
def reset_storage_suspicion() -> None:
    """Forget that the object storage refused writes in another test."""
    writability.suspected.clear()


@pytest.fixture(autouse=True)
def reset_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the datasets that were paused in another test."""
    monkeypatch.setattr(execution, "PAUSES", DatasetPauses())


@pytest.fixture(autouse=True)
def reset_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the durations of chunks from other tests."""
    monkeypatch.setattr(execution, "DURATIONS", ChunkDurations())


@pytest.fixture
def empty_redis() -> None:
    """A Redis without messages, run-states, and rate limits of other tests."""
    lose_messages()


@pytest.fixture
def default_rule(transactional_db: None, empty_redis: None) -> Rule:
    """The default rule. Redis and the documents in the bucket are empty."""
    storage.delete_many(item.key for item in storage.list_objects("etl/"))
    return Rule.objects.get(slug="default")


@pytest.fixture
def closed_port() -> int:
    """A port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def silent_redis(silent_port: int) -> str:
    """The URL of a Redis that never responds."""
    return f"redis://127.0.0.1:{silent_port}/0"


@pytest.fixture
def alone(dataset: Dataset) -> Dataset:
    """A dataset that only one worker at a time may call, so that its batches are complete."""
    dataset.max_concurrency = 1
    dataset.save()
    return dataset


@pytest.fixture
def configure_stages(settings: LazySettings, tmp_path: Path) -> ConfigureStages:
    """Use the scripted provider and processor, an empty broker, and short pauses.

    Return a function that changes settings. Leases keep their length: a worker stops when its lease expires, even if
    only the machine has stalled.
    """

    change = partial(change_settings, settings)
    lose_messages()
    change(
        etl_ocr_provider="tests.scripted_stages.Provider",
        etl_cache_dir=tmp_path,
        etl_retry_backoff_base_seconds=0.2,
        etl_retry_backoff_max_seconds=0.2,
    )
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, "llm": "tests.scripted_stages.Processor"}
    return change


@pytest.fixture
def proxy(settings: LazySettings) -> Iterator[faulty_s3.Proxy]:
    """A proxy in front of the object storage, for faults."""
    with faulty_s3.running(str(settings.SLUICE.s3_endpoint_url)) as proxy:
        change_settings(settings, s3_endpoint_url=AnyHttpUrl(proxy.url))
        yield proxy


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    """The local provider. A module has one, as a worker has one for all documents."""
    with closing(LocalProvider()) as local:
        yield local


@pytest.fixture
def make_document(tmp_path: Path) -> samples.Maker:
    """Return a function that creates a document from bytes."""

    def make(content: bytes, kind: DocumentFormat = DocumentFormat.PDF) -> Document:
        path = tmp_path / f"17.{kind}"
        path.write_bytes(content)
        return samples.document(path, kind)

    return make


@pytest.fixture
def endpoint(settings: LazySettings) -> Iterator[Receiver]:
    """A receiver on a private network that the operator allowed."""
    allow(settings, "127.0.0.0/8")
    with receiver() as running:
        yield running


@pytest.fixture
def models(settings: LazySettings) -> Iterator[ModelServer]:
    """A scripted model server."""
    with running_models(settings) as server:
        yield server


@pytest.fixture
def model_server(configure_stages: ConfigureStages, settings: LazySettings) -> Iterator[ModelServer]:
    """A scripted model server, and stages with the real post-processor."""
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, "llm": "etl.postprocessors.llm.Llm"}
    with running_models(settings) as server:
        yield server
