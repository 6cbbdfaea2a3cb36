"""Celery's broker transports: Redis, Valkey and RabbitMQ. docs/engines.md lists the differences.

The transports of `redis://` and `rediss://` have two patches. The first one raises a ConnectionError in place of an
AttributeError. When a worker loses its connection while tasks run, it closes the connection twice, and the second time
it tries to restore the messages of these tasks. kombu 5.7 then reads the address of a transport that no longer exists,
and the AttributeError would stop the worker. After a ConnectionError, the worker reconnects, and the messages are
redelivered after the visibility timeout.

The second patch drops messages that cannot be decoded. kombu decodes messages before Celery sees them, and its
exception would stop the worker.
"""

from queue import Empty
from ssl import CERT_REQUIRED
from typing import Any

from amqp.exceptions import AMQPError
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, pyamqp, redis
from redis.driver_info import DriverInfo
from redis.exceptions import OutOfMemoryError

# Raised when the broker is down, does not respond or rejects a message. kombu does not translate RabbitMQ's errors.
BROKER_ERRORS = (OperationalError, OSError, AMQPError)

# Redis is out of memory and rejects writes. kombu does not count this as a lost connection.
BROKER_FULL_ERRORS = (OutOfMemoryError,)

RABBITMQ_ACK_SECONDS = 1800  # RabbitMQ's default consumer_timeout: time to acknowledge a message

# RabbitMQ drops a message after this number of redeliveries to consumers that died. No work is lost, because the rows
# in the database hold the state and count the attempts. The value of an existing queue cannot change, because RabbitMQ
# rejects a declaration with a different one.
MAX_REDELIVERIES = 5


DRIVER = DriverInfo()  # shared: otherwise each connection reads the version of redis-py from its package, in 2 ms


class Undecodable(Exception):
    """A message with invalid JSON, an invalid encoding, or an invalid delivery tag, from another program."""


class RedisMessage(redis.Channel.Message):  # type: ignore[misc, valid-type]
    def __init__(self, payload: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(payload, *args, **kwargs)
            texts = (self.delivery_tag, self.delivery_info["exchange"], self.delivery_info["routing_key"])
        except Exception as error:
            raise Undecodable from error
        if not all(isinstance(text, str) for text in texts):
            raise Undecodable


class RedisQoS(redis.QoS):
    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:  # noqa: FBT001, FBT002
        """Return an unacknowledged message to its queue."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (ValueError, TypeError, RecursionError) as error:  # another program wrote its content
            drop_undecodable(error)
            with self.pipe_or_acquire(client=client) as pipe:
                self._remove_from_indices(tag, pipe).execute()  # type: ignore[attr-defined]


class RedisChannel(redis.Channel):
    Message, QoS = RedisMessage, RedisQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (Empty, *self.connection_errors, *self.connection.channel_errors):  # type: ignore[attr-defined]
            raise
        except Exception as error:  # noqa: BLE001 - a message may have any content; exceptions of tasks are not raised here
            drop_undecodable(error)
            return True

    def _connparams(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("this connection to the broker was closed")
        return {**super()._connparams(*args, **kwargs), "driver_info": DRIVER}  # type: ignore[misc]


class RedisTransport(redis.Transport):
    Channel = RedisChannel


def drop_undecodable(error: Exception) -> None:
    """Record that a message was dropped. Workers replace this function; other processes receive no messages."""
    raise error


class VerifiedRabbitMQTransport(pyamqp.SSLTransport):
    """RabbitMQ transport that validates certificates and host names by default, with the options of `rediss://` URLs.

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
    """Return Celery's `broker_use_ssl`, or None for schemes other than `rediss://`.

    Without it, kombu does not validate certificates for a plain `rediss://` URL. The URL's query parameters override
    it.
    """
    return {"ssl_cert_reqs": "required"} if url.startswith("rediss:") else None
