#!/opt/venv/bin/python
"""Health check of a worker container: exit with 0 if the worker's heartbeat arrives within 8 seconds.

A worker's main loop publishes a heartbeat every 2 s, even while all child processes are busy. Its arrival shows that
the loop runs and that the broker is reachable. `celery inspect ping` would need remote control, which is off.
"""

import base64
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 8.0
CONNECT_SECONDS = 3
ROUTE = "worker.heartbeat"  # a Celery event


def setting(name: str) -> str:
    """Return a setting, or the content of the file that its _FILE variable names, as `config/env.py` does, or ""."""
    if path := os.environ.get(f"{name}_FILE"):
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    return os.environ.get(name, "")


def redis_heartbeats(url: str, end: float) -> Iterator[bytes]:
    """Yield heartbeats that kombu publishes to Redis or Valkey. A kombu consumer would leave data there."""
    import redis

    client = redis.Redis.from_url(url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    with client.pubsub() as channel:
        channel.subscribe(f"/{client.get_connection_kwargs().get('db', 0)}.celeryev/{ROUTE}")
        while (left := end - time.monotonic()) > 0:
            if message := channel.get_message(ignore_subscribe_messages=True, timeout=left):
                yield base64.b64decode(json.loads(message["data"])["body"])


def amqp_heartbeats(url: str, end: float) -> Iterator[bytes]:
    """Yield heartbeats from RabbitMQ, through a queue that is deleted with this connection."""
    from kombu import Connection, Consumer, Exchange, Queue
    from kombu.utils.uuid import uuid

    sys.path.insert(0, str(Path.cwd()))
    from config.platform import broker

    broker.patch_transports()  # validates amqps:// like the workers
    received: list[bytes] = []
    with Connection(url, connect_timeout=CONNECT_SECONDS) as connection:
        # Passive, because the workers have declared the exchange, and a different declaration would be refused.
        exchange = Exchange("celeryev", type="topic", passive=True)
        queue = Queue(f"health.{uuid()}", exchange, routing_key=ROUTE, durable=False, exclusive=True, auto_delete=True)

        def keep(message: object) -> None:
            body = message.body  # type: ignore[attr-defined]
            received.append(body if isinstance(body, bytes) else str(body).encode())

        with Consumer(connection, [queue], on_message=keep, no_ack=True):
            while (left := end - time.monotonic()) > 0:
                connection.drain_events(timeout=left)
                yield from received
                received.clear()


def main() -> None:
    name = f'@{socket.gethostname()}"'.encode()
    end = time.monotonic() + SECONDS
    reason = ""
    # A worker uses one of them: the first that responded when it lost the previous one.
    brokers = (setting("CELERY_BROKER_URL") or setting("REDIS_URL")).split(";")
    for left, url in zip(range(len(brokers), 0, -1), brokers, strict=True):
        listen = amqp_heartbeats if url.startswith(("amqp", "pyamqp")) else redis_heartbeats
        now = time.monotonic()
        try:
            if any(name in body for body in listen(url, now + (end - now) / left)):
                return
        except TimeoutError:  # no heartbeat
            pass
        except Exception as error:  # noqa: BLE001 - any error of the libraries; its text may contain the URL
            reason = f": {type(error).__name__}"
    sys.exit(f"no heartbeat of this worker within {SECONDS:g} seconds{reason}")


if __name__ == "__main__":
    main()
