"""Celery's way to Redis and Valkey, with one mend, for `redis://` and `rediss://`.

When its connection is lost while tasks run, a worker closes it twice, and puts the messages of these tasks back with
the second time. kombu 5.7 then asks a transport that is gone for its address: an AttributeError, which ends the worker.
A ConnectionError it takes for what it is, and connects again; the messages come back when their time is over.
"""

from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis


class Channel(redis.Channel):
    def _connparams(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("this connection to the broker was closed")
        return super()._connparams(*args, **kwargs)  # type: ignore[misc]


class Transport(redis.Transport):
    Channel = Channel


def mend() -> None:
    """Have all connections of this process to Redis and Valkey be of this kind."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))
