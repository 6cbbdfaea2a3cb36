"""One-time links: they are bound to a client, can be revoked, and are redeemed by a single UPDATE.

The token of a link is its signed ID. So no secret is stored, and the owner can see the link again until it is used. S3
has no one-time URLs: redeeming a link returns a presigned URL of the object that is valid for at most a minute.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, NoReturn, TypedDict
from uuid import UUID

import structlog
from django.conf import settings
from django.core import signing
from django.db import transaction
from django.db.models.functions import Now

from config.platform import storage
from config.platform.db import sql
from config.platform.http import audit
from config.platform.http.addresses import network_around
from config.platform.http.problems import Problem
from exports.core import metrics
from exports.core.states import DownloadOutcome
from exports.delivery import access
from exports.models import Link, Receipt

log = structlog.get_logger(__name__)

signer = signing.Signer(salt="exports.link", sep=".")
PREFIXES = {"prefix": {"ipv4": 24, "ipv6": 64}, "exact": {"ipv4": 32, "ipv6": 128}}  # bits, by EXPORT_BIND_IP


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClient:
    """The client of a request, for rows of downloads and for binding links. `user_agent` is the whole header or ""."""

    address: str | None
    user_agent: str

    @property
    def agent(self) -> str:
        """The first 16 hex digits of the User-Agent's SHA-256.

        The header itself is personal data, and only rows of downloads store it. 64 bits are enough to distinguish
        clients.
        """
        return hashlib.sha256(self.user_agent.encode()).hexdigest()[:16]


class ClientBinding(TypedDict):
    """The binding of a job or a link to a client. "" means not bound."""

    network: str
    agent: str


UNBOUND = ClientBinding(network="", agent="")


def bound_to(client: LinkClient) -> ClientBinding:
    """Return the binding to this client, according to EXPORT_BIND_IP and EXPORT_BIND_UA.

    `network` is, for example, `192.0.2.0/24` or `2001:db8::/64`: phones and offices often change their address, but
    seldom their network. It is "" if the address is unknown.
    """
    env = settings.SLUICE
    network = ""
    if client.address is not None and env.export_bind_ip != "off":
        network = str(network_around(ip_address(client.address), **PREFIXES[env.export_bind_ip]))
    return ClientBinding(network=network, agent=client.agent if env.export_bind_ua else "")


class LinkUnusable(Exception):
    """The link cannot be used. `outcome` is the reason, and the error code that the client sees."""

    def __init__(self, outcome: DownloadOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class ReceiptExpired(Problem):
    status = 410
    code = "receipt_expired"
    detail = "The delivery has expired. Export again: existing files are reused at no quota cost."


class LinkNotOpen(Problem):
    status = 409
    code = "not_open"
    detail = "This link was already used or revoked, or it has expired. Only a link that still works can be revoked."


def mint(receipt: Receipt, bound: ClientBinding = UNBOUND) -> Link:
    """Create a link, and revoke the previous one. Raises ReceiptExpired.

    The link is valid for EXPORT_LINK_TTL_SECONDS, but not longer than the delivery.
    """
    with transaction.atomic():
        # The lock serializes concurrent calls. The database's clock decides on the expiry, as when a link is redeemed.
        live = Receipt.objects.lock_live(receipt.pk)
        if live is None:
            raise ReceiptExpired
        until = live.now + timedelta(seconds=settings.SLUICE.export_link_ttl_seconds)
        receipt.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        audit.record_change(job_id=receipt.pk)
        return Link.objects.create(receipt=receipt, expires_at=min(until, live.expires_at), **bound)


def revoke(link: Link) -> None:
    """Revoke an open link. The owner may create another while the receipt is valid. Raises LinkNotOpen."""
    open_ones = Link.objects.filter(pk=link.pk, used_at=None, revoked_at=None, expires_at__gt=Now())
    if not open_ones.update(revoked_at=Now()):
        raise LinkNotOpen
    log.info("link_revoked", job_id=str(link.receipt_id))


def token_of(link: Link) -> str:
    return signer.sign(link.link_id.hex)


def path_of(link: Link) -> str:
    return f"/exports/{link.receipt_id}/download?token={token_of(link)}"


# ---- Use ------------------------------------------------------------------------------------------------------------

# A binding is checked only if the link has one and the setting is still on. The address has to be inside the link's
# network; comparing networks instead would break existing links when EXPORT_BIND_IP is changed.
IS_BOUND_CLIENT = """(
    (NOT %(bind_ip)s OR l.network = '' OR coalesce(%(address)s::inet <<= nullif(l.network, '')::inet, false))
    AND (NOT %(bind_ua)s OR l.agent = '' OR l.agent = %(agent)s)
)"""

# The lock of the row serializes concurrent requests, and `used_at IS NULL` is false for all but the first. The same
# statement inserts the audit row, so that every download has one.
REDEEM = f"""
WITH used AS (
    UPDATE exports_link l SET used_at = clock_timestamp()
    FROM exports_receipt r JOIN exports_jobs j ON j.job_id = r.job_id JOIN auth_user u ON u.id = j.user_id
    WHERE l.link_id = %(link)s AND r.job_id = l.receipt_id AND r.job_id = %(job)s AND r.deleted_at IS NULL
      AND u.is_active AND %(may_download)s
      AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp()
      AND {IS_BOUND_CLIENT}
    RETURNING l.link_id, r.job_id, r.object_key, r.content_type, r.file_name
), audit AS (
    INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent)
    SELECT job_id, link_id, 'redeemed', %(address)s::inet, %(user_agent)s FROM used
)
SELECT object_key, content_type, file_name FROM used
"""

# The API defines the order of the reasons. Only the client that a link is bound to learns that the link was used.
REFUSAL_REASON = f"""
SELECT CASE
    WHEN l.expires_at <= clock_timestamp() OR r.deleted_at IS NOT NULL THEN 'link_expired'
    WHEN l.revoked_at IS NOT NULL OR NOT u.is_active OR NOT %(may_download)s THEN 'link_revoked'
    WHEN NOT {IS_BOUND_CLIENT} THEN 'link_mismatch'
    WHEN l.used_at IS NOT NULL THEN 'link_used'
END AS outcome
FROM exports_link l
JOIN exports_receipt r ON r.job_id = l.receipt_id
JOIN exports_jobs j ON j.job_id = r.job_id
JOIN auth_user u ON u.id = j.user_id
WHERE l.link_id = %(link)s AND r.job_id = %(job)s
"""

# Also inserts a row if the job has no receipt, or the token is not of one of its links. The job is locked, so that the
# purge cannot delete it before the insert, which would violate the foreign key.
AUDIT_REFUSAL = """
INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent)
SELECT j.job_id, l.link_id, %(outcome)s, %(address)s::inet, %(user_agent)s
FROM exports_jobs j LEFT JOIN exports_link l ON l.link_id = %(link)s AND l.receipt_id = j.job_id
WHERE j.job_id = %(job)s FOR KEY SHARE OF j
RETURNING job_id
"""

AUDITED_CHARACTERS = 200  # of the User-Agent


def redeem(job_id: UUID, token: str, client: LinkClient) -> str:
    """Redeem a link, and return a presigned URL of the object. Raises LinkUnusable without using up the link."""
    link_id = read_token(token)
    may_download = link_id is not None and access.may_download(job_id)
    row = sql.one(REDEEM, link=link_id, job=job_id, may_download=may_download, **client_values(client))
    if row is None:
        reason = refusal_reason(job_id, link_id, client, may_download=may_download)
        refuse(job_id, link_id, reason or DownloadOutcome.USED, client)
    metrics.count_download(DownloadOutcome.REDEEMED)
    return storage.presign_download(
        row["object_key"],
        seconds=settings.SLUICE.export_presign_seconds,
        content_type=row["content_type"],
        file_name=row["file_name"],
    )


def peek(job_id: UUID, token: str, client: LinkClient) -> Receipt:
    """Return the receipt of a link without redeeming it, for HEAD requests and prefetches. Raises LinkUnusable."""
    link_id = read_token(token)
    may_download = link_id is not None and access.may_download(job_id)
    if outcome := refusal_reason(job_id, link_id, client, may_download=may_download):
        refuse(job_id, link_id, outcome, client)
    return Receipt.objects.get(pk=job_id)


def read_token(token: str) -> UUID | None:
    """Return the link's ID if the signature is valid."""
    try:
        return UUID(hex=signer.unsign(token))
    except (signing.BadSignature, ValueError):
        return None


def refusal_reason(
    job_id: UUID, link_id: UUID | None, client: LinkClient, *, may_download: bool
) -> DownloadOutcome | None:
    """Return the reason why this client cannot use a link now, or None. `may_download`: from `access.may_download`."""
    row = sql.one(REFUSAL_REASON, link=link_id, job=job_id, may_download=may_download, **client_values(client))
    if row is None:
        return DownloadOutcome.INVALID
    return DownloadOutcome(row["outcome"]) if row["outcome"] else None


def refuse(job_id: UUID, link_id: UUID | None, outcome: DownloadOutcome, client: LinkClient) -> NoReturn:
    """Insert an audit row if the job exists, count the attempt, and raise LinkUnusable."""
    sql.one(AUDIT_REFUSAL, link=link_id, job=job_id, outcome=outcome.value, **client_values(client))
    metrics.count_download(outcome)
    raise LinkUnusable(outcome)


def client_values(client: LinkClient) -> dict[str, Any]:
    """Return the parameters of the statements that depend on the client and the binding settings."""
    env = settings.SLUICE
    return {
        "address": client.address,
        "agent": client.agent,
        "user_agent": client.user_agent[:AUDITED_CHARACTERS],
        "bind_ip": env.export_bind_ip != "off",
        "bind_ua": env.export_bind_ua,
    }
