"""Celery's connections to the broker, on a separate Valkey."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kombu import Consumer, Queue
from kombu.common import ignore_errors
from redis import Redis

from config.celery import app
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.valkey import Valkey
from tests.broker import broker_at


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path, KeptSettings(tmp_path), durable=False)
    server.start()
    try:
        with broker_at(server.url()):
            yield server
    finally:
        server.stop()


def test_a_worker_survives_a_broker_outage_while_tasks_run(broker: Valkey) -> None:
    """The steps are those of Celery's `Consumer.on_connection_error_after_connected`."""
    queue = Queue("some")
    with app.connection_for_write() as sender:
        sender.Producer().publish("a task", routing_key="some", declare=[queue])
    connection = app.connection_for_read()
    for channel, source in ((connection.default_channel, queue), (connection.channel(), Queue("other"))):
        Consumer(channel, [source], callbacks=[lambda *_args: None]).consume()
    connection.drain_events(timeout=30)  # the task runs, so its message is not acknowledged yet
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)  # both channels wait for the next message
    broker.kill()

    with suppress(Exception):
        connection.collect(socket_timeout=1)
    ignore_errors(connection, connection.close)

    broker.start()
    with Redis.from_url(broker.url()) as server:
        assert server.hlen("unacked") == 1, "the message would not be delivered again"


def test_a_connection_does_not_look_up_the_library_version(broker: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read and parse a file for each message that a request sends."""

    def read(package: str) -> str:
        pytest.fail(package)

    monkeypatch.setattr("redis.utils.metadata.version", read)
    with app.connection_for_write() as sender:
        sender.Producer().publish("a task", routing_key="some", declare=[Queue("some")])
    monkeypatch.undo()
    with Redis.from_url(broker.url()) as server:
        assert server.llen("some") == 1
