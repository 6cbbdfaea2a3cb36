"""What a finished job hands out, and for how long."""

from datetime import timedelta

from django.db.models.functions import Now

from config.storage import StoredObject
from exports import links
from exports.models import Job, Receipt


def issue(job: Job, delivered: StoredObject, *, content_type: str, file_name: str) -> Receipt:
    """Write the receipt and its first link, which is bound to the client that made the job.

    Call it in the transaction that makes the job a success.
    """
    receipt = Receipt.objects.create(
        job=job,
        object_key=delivered.key,
        etag=delivered.etag,
        checksum=delivered.sha256,
        size_bytes=delivered.size,
        rows=job.rows,
        files=job.total,
        degraded=job.degraded > 0,
        content_type=content_type,
        file_name=file_name,
        expires_at=Now() + timedelta(seconds=job.ttl),
    )
    links.mint(receipt, links.Bound(network=job.network, agent=job.agent))
    return receipt
