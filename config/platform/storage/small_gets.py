"""HEADs, and GETs of whole small objects, by obstore, which take a quarter of the CPU that boto3 takes for them.

Its errors decide nothing, but for a failed condition: the request is sent once more by boto3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PreconditionError

from config.platform.observability import tracing
from config.platform.storage import small_puts
from config.platform.storage.clients import bucket, main_profile
from config.platform.storage.errors import Changed, RequestFailed
from config.platform.storage.objects import bare, head, quoted, read

if TYPE_CHECKING:
    from obstore.store import S3Store

OTHER_SIZE = "GetObject returned another size"


def read_small(key: str, *, size: int, if_match: str) -> bytes:
    """Return the bytes of an object of this size. Raises the errors of `read`, and Changed if the size is another."""
    if small_puts.is_possible(key, size):
        with suppress(RequestFailed):
            return get(key, size, if_match)
    content = b"".join(read(key, if_match=if_match))
    if len(content) != size:
        raise Changed(OTHER_SIZE)
    return content


def etag_of(key: str) -> str | None:
    """Return the ETag of the object, or None if it does not exist. Raises the errors of `head`."""
    if small_puts.is_possible(key, 0):
        with suppress(RequestFailed), calling("HeadObject") as store:
            if etag := bare(obstore.head(store, key)["e_tag"] or ""):
                return etag
    found = head(key)
    return found.etag if found else None


@contextmanager
def calling(operation: str) -> Iterator[S3Store]:
    """Surround a call of obstore. Raises Changed, and RequestFailed for all other errors."""
    small_puts.used_by.add(os.getpid())
    with tracing.call(operation) as answered:
        try:
            yield small_puts.store(main_profile(), bucket())
        except PreconditionError:
            answered(412)
            raise Changed(f"{operation} returned 412") from None
        except (BaseError, OSError) as error:  # may quote the URL
            raise RequestFailed(f"the request failed: {type(error).__name__}", retryable=True, is_outage=True) from None
        answered(200)


def get(key: str, size: int, if_match: str) -> bytes:
    """Return the bytes. Raises the errors of `calling`."""
    with calling("GetObject") as store:
        result = obstore.get(store, key, options={"if_match": quoted(if_match)})
        # Never more than `size`.
        content = result.bytes().to_bytes() if result.meta["size"] == size else None
    if content is None:
        raise Changed(OTHER_SIZE)
    return content
