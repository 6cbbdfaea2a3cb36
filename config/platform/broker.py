"""Celery's way to its broker: to Redis and Valkey, with one mend, or to RabbitMQ; docs/engines.md has what differs.

The mend, for `redis://` and `rediss://`: when its connection is lost while tasks run, a worker closes it twice, and
puts the messages of these tasks back with the second time. kombu 5.7 then asks a transport that is gone for its
address: an AttributeError, which ends the worker. A ConnectionError it takes for what it is, and connects again; the
messages come back when their time is over.
"""

from ssl import CERT_REQUIRED
from typing import Any

from amqp.exceptions import AMQPError
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, pyamqp, redis

# What sending raises where the broker is away, is silent or refuses us. Of what RabbitMQ refuses kombu makes no error
# of its own.
TROUBLE = (OperationalError, OSError, AMQPError)

RABBITMQ_WAITS = 1800  # seconds for a message to be acknowledged, unless its consumer_timeout says otherwise

# How often RabbitMQ delivers a message again that its consumer did not live to acknowledge; then it drops it. What the
# message was a hint to is in the rows, whose own count of attempts decides. It cannot be changed for a queue that is
# there: RabbitMQ would refuse all who declare it otherwise.
MOST_REDELIVERIES = 5


class Channel(redis.Channel):
    def _connparams(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("this connection to the broker was closed")
        return super()._connparams(*args, **kwargs)  # type: ignore[misc]


class Transport(redis.Transport):
    Channel = Channel


class EncryptedRabbitMQ(pyamqp.SSLTransport):
    """Checks certificates and names, unless the URL says otherwise, in the words of `rediss://`. py-amqp left to itself
    checks no name, and knows other words."""

    def establish_connection(self) -> Any:
        client: Any = self.client
        said = client.ssl
        client.ssl = checked(said if isinstance(said, dict) else {})
        try:
            return super().establish_connection()
        finally:
            client.ssl = said


def checked(said: dict[str, Any]) -> dict[str, Any]:
    options = {"cert_reqs": CERT_REQUIRED, **{name.removeprefix("ssl_"): value for name, value in said.items()}}
    if options.pop("check_hostname", True) and options["cert_reqs"]:
        options["server_hostname"] = None  # kombu puts the broker's there, and as it is there py-amqp checks it
    return options


def mend() -> None:
    """Have all connections of this process to a broker be of these kinds."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))
    TRANSPORT_ALIASES["amqps"] = f"{__name__}:{EncryptedRabbitMQ.__name__}"


# ---- What Celery is given --------------------------------------------------------------------------------------------
def queue(name: str, *, url: str) -> Queue:
    """Return a queue as all declare it at this broker. Redis knows no arguments of queues, and leaves them.

    RabbitMQ brings messages with a countdown to no direct exchange. In Redis such a one is passed by, and what is sent
    arrives although all was lost that is known of exchanges.
    """
    kind = "topic" if is_rabbitmq(url) else "direct"
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": MOST_REDELIVERIES}
    return Queue(name, Exchange(name, type=kind), routing_key=name, queue_arguments=arguments)


def is_rabbitmq(url: str) -> bool:
    return "amqp" in url.partition(":")[0]


def patience(seconds: float, *, connect: float, retries: int) -> dict[str, float]:
    """Return transport options: how long a connection waits for the broker. Those for Redis are first, then those for
    RabbitMQ: each of the two takes its own, and leaves the other's."""
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": connect,
        "read_timeout": seconds,
        "write_timeout": seconds,
        "connect_timeout": connect,
        "max_retries": retries,
    }


def countdown(seconds: float) -> float | None:
    """Return Celery's `countdown`. It raises at less than a second where RabbitMQ is to wait."""
    return max(1.0, seconds) if seconds else None


def tls(url: str) -> dict[str, Any] | None:
    """Return Celery's `broker_use_ssl`. kombu would check no certificate for a bare `rediss://`; what a URL says after
    its `?` takes the place of this."""
    return {"ssl_cert_reqs": "required"} if url.startswith("rediss:") else None
