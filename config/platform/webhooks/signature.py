"""Signed headers of webhook requests, as defined by Standard Webhooks."""

from collections.abc import Iterable
from uuid import UUID

from standardwebhooks import Webhook as Signer

from config.platform.db import clock


def signed_headers(delivery_id: UUID, body: str, *, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers: the delivery's ID, the time of this attempt, and a signature with each secret.

    Receivers reject a time that is minutes off, so it is read from the database's clock.
    """
    now = clock.now()
    signatures = [Signer(secret).sign(str(delivery_id), now, body) for secret in secrets]
    return {
        "Content-Type": "application/json",
        "webhook-id": str(delivery_id),
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
