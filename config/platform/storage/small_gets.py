"""HEADs, and GETs of whole small objects, with obstore, which uses a quarter of boto3's CPU time.

After an error of obstore, the request is sent again with boto3, except after a failed condition.
"""

from contextlib import suppress

import obstore

from config.platform.storage import small_puts
from config.platform.storage.errors import Changed, RequestFailed
from config.platform.storage.objects import bare, head, quoted, read

OTHER_SIZE = "GetObject returned another size"


def read_small(key: str, *, size: int, if_match: str) -> bytes:
    """Return the bytes of an object of this size. Raises the errors of `read`, and Changed if the size differs."""
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
        with suppress(RequestFailed), small_puts.calling("HeadObject") as store:
            if etag := bare(obstore.head(store, key)["e_tag"] or ""):
                return etag
    found = head(key)
    return found.etag if found else None


def get(key: str, size: int, if_match: str) -> bytes:
    """Return the bytes. Raises the errors of `small_puts.calling`."""
    with small_puts.calling("GetObject") as store:
        result = obstore.get(store, key, options={"if_match": quoted(if_match)})
        # A larger object is not read.
        content = result.bytes().to_bytes() if result.meta["size"] == size else None
    if content is None:
        raise Changed(OTHER_SIZE)
    return content
