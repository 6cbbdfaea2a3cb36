"""Receipts: they are issued when a job succeeds, and can be revoked."""

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models.functions import Now

from config.platform.http import audit
from config.platform.http.problems import Problem
from config.platform.storage import StoredObject
from exports.core.states import JobStatus
from exports.delivery import access, links
from exports.models import Job, Link, Receipt

log = structlog.get_logger(__name__)


class ReceiptNotReady(Problem):
    status = 409
    code = "not_ready"
    detail = "This export has no receipt yet. It has not ended, or it did not succeed."


def issue(job: Job, delivered: StoredObject, *, content_type: str, file_name: str) -> Receipt:
    """Create the receipt and its first link, which is bound to the client that submitted the job.

    Call it in the transaction that sets the job to success.
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
    links.mint(receipt, links.ClientBinding(network=job.network, agent=job.agent))
    return receipt


def fresh_link(job: Job, client: links.LinkClient) -> Link:
    """Create a link that is bound to the requesting client, and revoke the previous one.

    Raises ReceiptNotReady, AccessRemoved, and ReceiptExpired.
    """
    if job.status != JobStatus.SUCCESS:
        raise ReceiptNotReady
    access.require(job)
    return links.mint(job.receipt, links.bound_to(client))


def revoke(receipt: Receipt) -> None:
    """Expire a receipt now: its link is revoked, no new one can be created, and the reaper deletes the object.

    A presigned URL from the last minute stays valid until it expires. Raises ReceiptExpired.
    """
    with transaction.atomic():
        # `links.mint` takes the same lock: it either precedes this or finds the receipt expired.
        live = Receipt.objects.lock_live(receipt.pk)
        if live is None:
            raise links.ReceiptExpired
        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        Receipt.objects.filter(pk=live.pk).update(expires_at=Now())
        audit.record_change(job_id=live.pk)
    log.info("receipt_revoked", job_id=str(receipt.pk))
