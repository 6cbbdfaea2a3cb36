"""Whether object storage accepts writes, as far as this process knows.

A storage that is full or read-only answers every other request. Work whose result could not be stored would be done in
vain, so it begins only after a write has succeeded.
"""

import threading
from contextlib import suppress
from uuid import uuid4

from config.platform.storage.clients import bucket, connect, main_profile
from config.platform.storage.errors import StorageError, attempt

# The sweep deletes leftovers, and does not count them as violations of a receipt's lifetime.
PREFIX = "_receipts/probe/"

# Set after a write failed, and at first.
in_doubt = threading.Event()
in_doubt.set()


def doubt() -> None:
    """Let the next `require_writable` write an object."""
    in_doubt.set()


def require_writable() -> None:
    """Write and delete a small object, unless the last write of this process succeeded. Raises StorageError."""
    if not in_doubt.is_set():
        return
    client = connect(main_profile()._replace(connect_seconds=1, read_seconds=5))
    key = f"{PREFIX}{uuid4().hex}"
    attempt(lambda: client.put_object(Bucket=bucket(), Key=key, Body=b"A probe of a worker. It may be deleted.\n"))
    in_doubt.clear()
    with suppress(StorageError):  # the sweep does it
        attempt(lambda: client.delete_object(Bucket=bucket(), Key=key))
