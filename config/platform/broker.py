"""Celery's broker transports: Redis, Valkey and RabbitMQ. docs/engines.md lists the differences.

The transports of `redis://` and `rediss://` have a patch. When a worker loses its connection while tasks run, it closes
the connection twice, and the second time it tries to restore the messages of these tasks. kombu 5.7 then reads the
address of a transport that no longer exists, and the AttributeError ends the worker. With a ConnectionError, the worker
reconnects instead, and the messages come back after the visibility timeout.
"""

from ssl import CERT_REQUIRED
from typing import Any

from amqp.exceptions import AMQPError
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, pyamqp, redis

# Raised when the broker is down, does not respond or rejects a message. kombu does not translate RabbitMQ's errors.
BROKER_ERRORS = (OperationalError, OSError, AMQPError)

RABBITMQ_ACK_SECONDS = 1800  # RabbitMQ's default consumer_timeout: time to acknowledge a message

# RabbitMQ drops a message after this number of redeliveries to consumers that died. Nothing is lost: the rows hold the
# state, and their own count of attempts decides. The value of an existing queue cannot change, because RabbitMQ rejects
# a declaration with a different one.
MAX_REDELIVERIES = 5


class RedisChannel(redis.Channel):
    def _connparams(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("this connection to the broker was closed")
        return super()._connparams(*args, **kwargs)  # type: ignore[misc]


class RedisTransport(redis.Transport):
    Channel = RedisChannel


class VerifiedRabbitMQTransport(pyamqp.SSLTransport):
    """Validates certificates and host names by default, with the options of `rediss://` URLs.

    By default, py-amqp validates no host names, and its options have other names.
    """

    def establish_connection(self) -> Any:
        client: Any = self.client
        options = client.ssl
        client.ssl = tls_options(options if isinstance(options, dict) else {})
        try:
            return super().establish_connection()
        finally:
            client.ssl = options


def tls_options(given: dict[str, Any]) -> dict[str, Any]:
    options = {"cert_reqs": CERT_REQUIRED, **{name.removeprefix("ssl_"): value for name, value in given.items()}}
    if options.pop("check_hostname", True) and options["cert_reqs"]:
        options["server_hostname"] = None  # kombu fills in the broker's host name, and py-amqp then validates it
    return options


def patch_transports() -> None:
    """Use the transports of this module for all broker connections of this process."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{RedisTransport.__name__}"))
    TRANSPORT_ALIASES["amqps"] = f"{__name__}:{VerifiedRabbitMQTransport.__name__}"


# ---- Celery's options ------------------------------------------------------------------------------------------------
def queue(name: str, *, url: str) -> Queue:
    """Return a queue, declared the same way by all processes. Redis ignores the queue arguments.

    RabbitMQ does not deliver messages with a countdown through a direct exchange, so it gets a topic exchange. Redis
    gets a direct exchange: messages then arrive even when Redis has lost its table of exchanges.
    """
    kind = "topic" if is_rabbitmq(url) else "direct"
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": MAX_REDELIVERIES}
    return Queue(name, Exchange(name, type=kind), routing_key=name, queue_arguments=arguments)


def is_rabbitmq(url: str) -> bool:
    return "amqp" in url.partition(":")[0]


def timeouts(seconds: float, *, connect: float, retries: int) -> dict[str, float]:
    """Return the timeouts of a connection as transport options. Redis and RabbitMQ each ignore the other's options."""
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": connect,
        "read_timeout": seconds,
        "write_timeout": seconds,
        "connect_timeout": connect,
        "max_retries": retries,
    }


def countdown(seconds: float) -> float | None:
    """Return Celery's `countdown`. With RabbitMQ, Celery raises an error for less than a second."""
    return max(1.0, seconds) if seconds else None


def tls(url: str) -> dict[str, Any] | None:
    """Return Celery's `broker_use_ssl`. Without it, kombu does not validate certificates for a plain `rediss://` URL.
    The URL's query parameters override it."""
    return {"ssl_cert_reqs": "required"} if url.startswith("rediss:") else None
