"""What a finished job hands out, and for how long."""

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models.functions import Now

from config.platform.http.problems import Problem
from config.platform.storage import StoredObject
from exports.core.states import JobStatus
from exports.delivery import links
from exports.models import Job, Link, Receipt

log = structlog.get_logger(__name__)


class NotReady(Problem):
    status = 409
    code = "not_ready"
    detail = "This export has no receipt yet. It has not ended, or it did not succeed."


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


def fresh_link(job: Job, client: links.Client) -> Link:
    """Return a new link, bound to whoever asks for it, and revoke the one before. Raises NotReady, ReceiptExpired."""
    if job.status != JobStatus.SUCCESS:
        raise NotReady
    return links.mint(job.receipt, links.bound_to(client))


def revoke(receipt: Receipt) -> None:
    """End a receipt before its time: its link works no more, no other can be made, and the reaper deletes the delivered
    object. A URL that somebody was given in the last minute may work to its end. Raises ReceiptExpired."""
    with transaction.atomic():
        # Locked, as where a link is minted: one that comes later finds the receipt over.
        live = Receipt.objects.select_for_update().filter(pk=receipt.pk, expires_at__gt=Now()).first()
        if live is None:
            raise links.ReceiptExpired
        live.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        Receipt.objects.filter(pk=live.pk).update(expires_at=Now())
    log.info("receipt_revoked", job_id=str(receipt.pk))
