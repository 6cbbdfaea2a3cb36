"""A check that the object storage accepts writes, before work whose result must be stored.

A storage that is full or read-only still responds to other requests. So a worker process starts work only after one of
its writes has succeeded.
"""

import threading
from contextlib import suppress
from uuid import uuid4

from config.platform.storage.clients import bucket, connect, main_profile
from config.platform.storage.commits import ENCRYPTED
from config.platform.storage.errors import StorageError, attempt

# The sweep deletes leftover objects with this prefix, and does not count them as TTL violations.
PREFIX = "_receipts/probe/"

# Set at the start of the process, and by `suspect` after an error of a write or a read that indicates an outage.
suspected = threading.Event()
suspected.set()


def suspect() -> None:
    """Make the next `require_writable` write an object."""
    suspected.set()


def is_suspected() -> bool:
    """Return whether an outage is suspected: from the start of the process or `suspect` until a probe succeeds."""
    return suspected.is_set()


def require_writable() -> None:
    """Write and delete a small object if an outage is suspected. Raises StorageError."""
    if not suspected.is_set():
        return
    client = connect(main_profile()._replace(connect_seconds=1, read_seconds=5))
    key = f"{PREFIX}{uuid4().hex}"
    content = b"A probe of a worker. It may be deleted.\n"
    attempt(lambda: client.put_object(Bucket=bucket(), Key=key, Body=content, **ENCRYPTED))
    suspected.clear()
    with suppress(StorageError):  # the sweep deletes it
        attempt(lambda: client.delete_object(Bucket=bucket(), Key=key))
