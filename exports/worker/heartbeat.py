"""The heartbeat of a lease in Postgres."""

import threading
from collections.abc import Callable

from django.conf import settings
from django.db import Error, connection

from config.platform.heartbeat import Heartbeat


def heartbeat(
    renew: Callable[[], None], *, since: float | None = None, on_loss: Callable[[], None] = lambda: None
) -> Heartbeat:
    """Return a heartbeat that calls `renew` for a lease of EXPORT_LEASE_SECONDS. For `since`, see Heartbeat."""

    def renew_and_close() -> None:
        try:
            renew()
        finally:
            # Each thread has its own connection. If it stayed open, it would never return to the pool.
            if threading.current_thread() is not threading.main_thread():
                connection.close()

    lease = settings.SLUICE.export_lease_seconds
    return Heartbeat(renew_and_close, lease=lease, unavailable=(Error,), since=since, on_loss=on_loss)
