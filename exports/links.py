"""One-time links: minted, revoked, and redeemed by one UPDATE that decides among any number of requests.

A link's token is its id and a signature over it, so nothing secret is stored, and the owner can be shown the link
again until it is used. Giving out the object itself is left to S3: redeeming answers with a URL that lives for at
most a minute, because S3 cannot make a URL that works once.
"""

from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models.functions import Now

from config import storage
from config.api.problems import Problem
from exports import sql
from exports.models import Download, Link, Receipt

signer = signing.Signer(salt="exports.link", sep=".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who asks, for the audit."""

    address: str | None
    user_agent: str


class Refused(Exception):
    """The link cannot be used. `outcome` says why; it is the error code that the client sees."""

    def __init__(self, outcome: Download.Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class ReceiptExpired(Problem):
    """The receipt's time is over. Export again: files that are there already are reused."""

    status = 410
    code = "receipt_expired"


def mint(receipt: Receipt) -> Link:
    """Return a fresh link that lives as long as the receipt, and revoke the one before. Raises ReceiptExpired."""
    with transaction.atomic():
        # Two mints at once: one after the other. The database's clock, as it decides about redeeming too.
        locked = Receipt.objects.select_for_update().filter(pk=receipt.pk, expires_at__gt=Now()).first()
        if locked is None:
            raise ReceiptExpired
        receipt.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        return Link.objects.create(receipt=receipt, expires_at=locked.expires_at)


def token_of(link: Link) -> str:
    return signer.sign(link.link_id.hex)


def path_of(link: Link) -> str:
    return f"/exports/{link.receipt_id}/download?token={token_of(link)}"


# The row's lock lines the requests up; after the first one `used_at IS NULL` holds for nobody. The attempt is
# written down in the same statement: no download without its audit row.
REDEEM = """
WITH used AS (
    UPDATE exports_link l SET used_at = clock_timestamp()
    FROM exports_receipt r
    WHERE l.link_id = %(link)s AND r.job_id = l.receipt_id AND r.job_id = %(job)s AND r.deleted_at IS NULL
      AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp()
    RETURNING l.link_id, r.job_id, r.object_key, r.content_type, r.file_name
), audit AS (
    INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent)
    SELECT job_id, link_id, 'redeemed', %(address)s::inet, %(user_agent)s FROM used
)
SELECT object_key, content_type, file_name FROM used
"""


def redeem(job_id: UUID, token: str, client: Client) -> str:
    """Use a link up and return a presigned URL of the object. Raises Refused, and nothing is used up."""
    link_id = read_token(token)
    row = sql.one(REDEEM, link=link_id, job=job_id, address=client.address, user_agent=client.user_agent)
    if row is None:
        outcome = why_not(job_id, link_id) or Download.Outcome.USED
        write_down(job_id, link_id, outcome, client)
        raise Refused(outcome)
    return storage.presign_download(
        row["object_key"],
        seconds=settings.SLUICE.export_presign_seconds,
        content_type=row["content_type"],
        file_name=row["file_name"],
    )


def peek(job_id: UUID, token: str) -> Receipt:
    """Return the receipt that a link would give, and use nothing up: for HEAD. Raises Refused."""
    link_id = read_token(token)
    if outcome := why_not(job_id, link_id):
        raise Refused(outcome)
    return Receipt.objects.get(pk=job_id)


def read_token(token: str) -> UUID | None:
    """Return the link's id if the signature is ours."""
    try:
        return UUID(hex=signer.unsign(token))
    except (signing.BadSignature, ValueError):
        return None


def why_not(job_id: UUID, link_id: UUID | None) -> Download.Outcome | None:
    """Return why a link cannot be used now, or None. The order is fixed: expired before revoked before used."""
    link = Link.objects.filter(pk=link_id, receipt_id=job_id).annotate(now=Now()).first() if link_id else None
    if link is None:
        return Download.Outcome.INVALID
    if link.expires_at <= link.now:
        return Download.Outcome.EXPIRED
    if link.revoked_at:
        return Download.Outcome.REVOKED
    return Download.Outcome.USED if link.used_at else None


def write_down(job_id: UUID, link_id: UUID | None, outcome: Download.Outcome, client: Client) -> None:
    """Keep a refused attempt for the audit, as far as it belongs to a job at all."""
    if Receipt.objects.filter(pk=job_id).exists():
        known = Link.objects.filter(pk=link_id, receipt_id=job_id).first() if link_id else None
        Download.objects.create(
            job_id=job_id, link=known, outcome=outcome, address=client.address, user_agent=client.user_agent
        )
