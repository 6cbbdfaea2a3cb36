"""Signed headers of webhook requests, by Standard Webhooks."""

from collections.abc import Iterable
from uuid import UUID

from standardwebhooks import Webhook as Signer

from config.platform.db import clock


def signed_headers(delivery_id: UUID, body: str, *, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers with a signature by each secret: the same id for every attempt, and the time of this one.

    Receivers refuse times that are minutes off, so it is the database's.
    """
    now = clock.now()
    signatures = [Signer(secret).sign(str(delivery_id), now, body) for secret in secrets]
    return {
        "Content-Type": "application/json",
        "webhook-id": str(delivery_id),
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
