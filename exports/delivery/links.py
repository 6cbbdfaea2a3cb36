"""One-time links: minted, revoked, bound to a client, and redeemed by one UPDATE that decides among any number of
requests.

A link's token is its id and a signature over it, so nothing secret is stored, and the owner can be shown the link
again until it is used. Giving out the object itself is left to S3: redeeming answers with a URL that lives for at
most a minute, because S3 cannot make a URL that works once.
"""

import hashlib
from dataclasses import dataclass
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
from config.platform.http.addresses import network_around
from config.platform.http.problems import Problem
from exports.core import metrics
from exports.core.states import DownloadOutcome
from exports.models import Link, Receipt

log = structlog.get_logger(__name__)

signer = signing.Signer(salt="exports.link", sep=".")
PREFIXES = {"prefix": {"ipv4": 24, "ipv6": 64}, "exact": {"ipv4": 32, "ipv6": 128}}  # bits, by EXPORT_BIND_IP


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who asks: for the audit, and for what links are bound to. The User-Agent is the whole header, "" without one."""

    address: str | None
    user_agent: str

    @property
    def agent(self) -> str:
        """The first 16 hex digits of the User-Agent's SHA-256. A digest, because the header itself is personal data
        and is kept in the audit alone; to tell two clients apart 64 bits are plenty."""
        return hashlib.sha256(self.user_agent.encode()).hexdigest()[:16]


class Bound(TypedDict):
    """What a job or a link is bound to; "" binds to nothing."""

    network: str
    agent: str


UNBOUND = Bound(network="", agent="")


def bound_to(client: Client) -> Bound:
    """Return what binds a link to this client, as EXPORT_BIND_IP and EXPORT_BIND_UA say now.

    `network` is such as `192.0.2.0/24` or `2001:db8::/64`: phones and offices change their address, seldom their
    network. Without a known address it is "": what cannot be told cannot be asked for later.
    """
    env = settings.SLUICE
    network = ""
    if client.address is not None and env.export_bind_ip != "off":
        network = str(network_around(ip_address(client.address), **PREFIXES[env.export_bind_ip]))
    return Bound(network=network, agent=client.agent if env.export_bind_ua else "")


class Refused(Exception):
    """The link cannot be used. `outcome` says why; it is the error code that the client sees."""

    def __init__(self, outcome: DownloadOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class ReceiptExpired(Problem):
    status = 410
    code = "receipt_expired"
    detail = "The receipt has expired. Export again; existing files are reused."


class NotOpen(Problem):
    status = 409
    code = "not_open"
    detail = "This link was already used or revoked, or it has expired. Only a link that still works can be revoked."


def mint(receipt: Receipt, bound: Bound = UNBOUND) -> Link:
    """Return a fresh link that lives as long as the receipt, and revoke the one before. Raises ReceiptExpired."""
    with transaction.atomic():
        # Two mints at once: one after the other. The database's clock, as it decides about redeeming too.
        locked = Receipt.objects.select_for_update().filter(pk=receipt.pk, expires_at__gt=Now()).first()
        if locked is None:
            raise ReceiptExpired
        receipt.links.filter(used_at=None, revoked_at=None).update(revoked_at=Now())
        return Link.objects.create(receipt=receipt, expires_at=locked.expires_at, **bound)


def revoke(link: Link) -> None:
    """End a link that could still be used. The owner may mint another while the receipt lives. Raises NotOpen."""
    open_ones = Link.objects.filter(pk=link.pk, used_at=None, revoked_at=None, expires_at__gt=Now())
    if not open_ones.update(revoked_at=Now()):
        raise NotOpen
    log.info("link_revoked", job_id=str(link.receipt_id))


def token_of(link: Link) -> str:
    return signer.sign(link.link_id.hex)


def path_of(link: Link) -> str:
    return f"/exports/{link.receipt_id}/download?token={token_of(link)}"


# ---- Use ------------------------------------------------------------------------------------------------------------

# What binds a link is asked for only where the link has it and the setting is still on. The address has to be inside
# the link's network, not its network to be equal: so EXPORT_BIND_IP can be changed while links and jobs are under way.
FITS = """(
    (NOT %(bind_ip)s OR l.network = '' OR coalesce(%(address)s::inet <<= nullif(l.network, '')::inet, false))
    AND (NOT %(bind_ua)s OR l.agent = '' OR l.agent = %(agent)s)
)"""

# The row's lock lines the requests up; after the first one `used_at IS NULL` holds for nobody. The attempt is
# written down in the same statement: no download without its audit row.
REDEEM = f"""
WITH used AS (
    UPDATE exports_link l SET used_at = clock_timestamp()
    FROM exports_receipt r
    WHERE l.link_id = %(link)s AND r.job_id = l.receipt_id AND r.job_id = %(job)s AND r.deleted_at IS NULL
      AND l.used_at IS NULL AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp() AND {FITS}
    RETURNING l.link_id, r.job_id, r.object_key, r.content_type, r.file_name
), audit AS (
    INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent)
    SELECT job_id, link_id, 'redeemed', %(address)s::inet, %(user_agent)s FROM used
)
SELECT object_key, content_type, file_name FROM used
"""

# The order is the contract's. That somebody else used the link is told only to whom it was meant for.
WHY_NOT = f"""
SELECT CASE
    WHEN l.expires_at <= clock_timestamp() OR r.deleted_at IS NOT NULL THEN 'link_expired'
    WHEN l.revoked_at IS NOT NULL THEN 'link_revoked'
    WHEN NOT {FITS} THEN 'link_mismatch'
    WHEN l.used_at IS NOT NULL THEN 'link_used'
END AS outcome
FROM exports_link l JOIN exports_receipt r ON r.job_id = l.receipt_id
WHERE l.link_id = %(link)s AND r.job_id = %(job)s
"""

# Also for a job without a receipt, or with a token that is no link of it. The job is locked against the purge: its
# foreign key would be an error in the answer.
WRITE_DOWN = """
INSERT INTO exports_download (job_id, link_id, outcome, address, user_agent)
SELECT j.job_id, l.link_id, %(outcome)s, %(address)s::inet, %(user_agent)s
FROM exports_jobs j LEFT JOIN exports_link l ON l.link_id = %(link)s AND l.receipt_id = j.job_id
WHERE j.job_id = %(job)s FOR KEY SHARE OF j
RETURNING job_id
"""

AUDITED_CHARACTERS = 200  # of the User-Agent


def redeem(job_id: UUID, token: str, client: Client) -> str:
    """Use a link up and return a presigned URL of the object. Raises Refused, and nothing is used up."""
    link_id = read_token(token)
    row = sql.one(REDEEM, link=link_id, job=job_id, **facts(client))
    if row is None:
        refuse(job_id, link_id, why_not(job_id, link_id, client) or DownloadOutcome.USED, client)
    metrics.download(DownloadOutcome.REDEEMED)
    return storage.presign_download(
        row["object_key"],
        seconds=settings.SLUICE.export_presign_seconds,
        content_type=row["content_type"],
        file_name=row["file_name"],
    )


def peek(job_id: UUID, token: str, client: Client) -> Receipt:
    """Return the receipt that a link would give, and use nothing up: for HEAD and prefetches. Raises Refused."""
    link_id = read_token(token)
    if outcome := why_not(job_id, link_id, client):
        refuse(job_id, link_id, outcome, client)
    return Receipt.objects.get(pk=job_id)


def read_token(token: str) -> UUID | None:
    """Return the link's id if the signature is ours."""
    try:
        return UUID(hex=signer.unsign(token))
    except (signing.BadSignature, ValueError):
        return None


def why_not(job_id: UUID, link_id: UUID | None, client: Client) -> DownloadOutcome | None:
    """Return why this client cannot use a link now, or None."""
    row = sql.one(WHY_NOT, link=link_id, job=job_id, **facts(client))
    if row is None:
        return DownloadOutcome.INVALID
    return DownloadOutcome(row["outcome"]) if row["outcome"] else None


def refuse(job_id: UUID, link_id: UUID | None, outcome: DownloadOutcome, client: Client) -> NoReturn:
    """Write the attempt down, as far as it belongs to a job at all, count it, and raise Refused."""
    sql.one(WRITE_DOWN, link=link_id, job=job_id, outcome=outcome.value, **facts(client))
    metrics.download(outcome)
    metrics.download_refused()
    raise Refused(outcome)


def facts(client: Client) -> dict[str, Any]:
    """Return what the statements above ask of a client."""
    env = settings.SLUICE
    return {
        "address": client.address,
        "agent": client.agent,
        "user_agent": client.user_agent[:AUDITED_CHARACTERS],
        "bind_ip": env.export_bind_ip != "off",
        "bind_ua": env.export_bind_ua,
    }
