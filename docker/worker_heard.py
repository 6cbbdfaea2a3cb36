#!/opt/venv/bin/python
"""Exit with 0 when the worker of this container is heard within 8 seconds: what its health check runs.

A worker's main loop publishes a heartbeat every 2 s, also while all its children are busy: so it runs, and the way to
the broker is open. `celery inspect ping` loads the whole project (2 s of CPU), and fails workers that are merely busy.
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
ROUTE = "worker.heartbeat"  # of Celery's events


def setting(name: str) -> str:
    """Return a setting, or what is in the file that its _FILE names, as `config/env.py` does; "" if neither is set."""
    if path := os.environ.get(f"{name}_FILE"):
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    return os.environ.get(name, "")


def by_redis(url: str, end: float) -> Iterator[bytes]:
    """Yield heartbeats as kombu publishes them to Redis and Valkey. Its own way in would leave traces there."""
    import redis

    client = redis.Redis.from_url(url, socket_timeout=CONNECT_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    with client.pubsub() as channel:
        channel.subscribe(f"/{client.get_connection_kwargs().get('db', 0)}.celeryev/{ROUTE}")
        while (left := end - time.monotonic()) > 0:
            if message := channel.get_message(ignore_subscribe_messages=True, timeout=left):
                yield base64.b64decode(json.loads(message["data"])["body"])


def by_amqp(url: str, end: float) -> Iterator[bytes]:
    """Yield heartbeats that come by RabbitMQ, from a queue that ends with this connection."""
    from kombu import Connection, Consumer, Exchange, Queue
    from kombu.utils.uuid import uuid

    sys.path.insert(0, str(Path.cwd()))
    from config.platform import broker

    broker.patch_transports()  # amqps:// is checked as workers check it
    heard: list[bytes] = []
    with Connection(url, connect_timeout=CONNECT_SECONDS) as connection:
        # The workers have made it: of another kind it would be refused.
        exchange = Exchange("celeryev", type="topic", passive=True)
        queue = Queue(f"heard.{uuid()}", exchange, routing_key=ROUTE, durable=False, exclusive=True, auto_delete=True)

        def keep(message: object) -> None:
            body = message.body  # type: ignore[attr-defined]
            heard.append(body if isinstance(body, bytes) else str(body).encode())

        with Consumer(connection, [queue], on_message=keep, no_ack=True):
            while (left := end - time.monotonic()) > 0:
                connection.drain_events(timeout=left)
                yield from heard
                heard.clear()


def main() -> None:
    me = f'@{socket.gethostname()}"'.encode()
    end = time.monotonic() + SECONDS
    why = ""
    # A worker is at one of them: the first that answered when it lost the one before.
    brokers = (setting("CELERY_BROKER_URL") or setting("REDIS_URL")).split(";")
    for left, url in zip(range(len(brokers), 0, -1), brokers, strict=True):
        listen = by_amqp if url.startswith(("amqp", "pyamqp")) else by_redis
        now = time.monotonic()
        try:
            if any(me in body for body in listen(url, now + (end - now) / left)):
                return
        except TimeoutError:  # nothing came
            pass
        except Exception as error:  # noqa: BLE001 - the libraries' own; their texts may have the URL
            why = f": {type(error).__name__}"
    sys.exit(f"no heartbeat of this worker within {SECONDS:g} seconds{why}")


if __name__ == "__main__":
    main()
