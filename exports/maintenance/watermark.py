"""Detection of a database that is older than its bucket.

The reaper increments a number in the database, the watermark, and then stores a copy of it in the bucket. The copy is
greater than the number only if the database was restored to an earlier point, or if a failover lost commits. In that
case, event numbers, links, and leases from the lost time could be used a second time. `manage.py reconcile` repairs
that, and is the only command that moves the number past the copy.
"""

import json
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import structlog
from django.db.models.functions import Now

from config.platform import storage
from exports.models import Watermark

log = structlog.get_logger(__name__)

# No dataset's folder overlaps with this one: the base path of a registered dataset cannot begin with an underscore.
PREFIX = "_watermark/"


class Copy(NamedTuple):
    """The copy in the bucket. The ETag is None if the bucket contains no copy."""

    number: int = 0
    reached_at: datetime | None = None
    etag: str | None = None


def advance() -> None:
    """Increment the number and store its copy, unless the copy is ahead. Raises StorageError."""
    mark, copy = read()
    if copy.number > mark.number:
        log.error("database_older_than_bucket", database_at=mark.reached_at, bucket_at=copy.reached_at)
        Watermark.objects.update(bucket_number=copy.number, bucket_reached_at=copy.reached_at)
    else:
        move(mark, copy, to=mark.number + 1)


def adopt() -> int:
    """Move the number past a copy that is ahead. Return the difference. Raises StorageError."""
    mark, copy = read()
    behind = max(copy.number - mark.number, 0)
    move(mark, copy, to=mark.number + behind + 1)
    return behind


def read() -> tuple[Watermark, Copy]:
    """Return the row and the copy.

    The row is read last: a copy that is ahead of it was written before the database was restored or lost commits.
    """
    mark, _ = Watermark.objects.get_or_create()
    copy = read_copy(mark.database)
    mark.refresh_from_db()
    return mark, copy


def move(mark: Watermark, copy: Copy, *, to: int) -> None:
    """Set the number, and then the copy. Does nothing if another process has changed the number."""
    is_moved = Watermark.objects.filter(number=mark.number).update(
        number=to, reached_at=Now(), bucket_number=None, bucket_reached_at=None
    )
    if not is_moved:
        return
    mark.refresh_from_db()
    content = json.dumps({"number": to, "reached_at": mark.reached_at.isoformat()}).encode()
    with suppress(storage.Conflict):
        storage.put(key_of(mark.database), content, content_type="application/json", if_match=copy.etag)


def key_of(database: UUID) -> str:
    return f"{PREFIX}{database}.json"


def read_copy(database: UUID) -> Copy:
    """Return the copy of this database's number. Raises StorageError."""
    key = key_of(database)
    while head := storage.head(key):
        try:
            found = json.loads(b"".join(storage.read(key, if_match=head.etag)))
        except (storage.Missing, storage.Changed):  # another process has written the copy in the meantime
            continue
        return Copy(found["number"], datetime.fromisoformat(found["reached_at"]), head.etag)
    return Copy()
