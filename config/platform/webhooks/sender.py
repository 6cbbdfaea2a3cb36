"""Sender of webhook deliveries: claim, post, record, under a fencing token.

Deliveries arrive at least once: a worker may crash between the receiver's response and the row that records it. The
delivery is then sent again with the same `webhook-id` and the same bytes, so that the receiver can detect duplicates.
"""

import time
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

import structlog
from django.db import OperationalError, transaction
from structlog.contextvars import bound_contextvars

from config.platform import backoff
from config.platform.db import sql
from config.platform.observability import logs
from config.platform.webhooks import metrics, request
from config.platform.webhooks.request import WebhookResponse
from config.platform.webhooks.signature import signed_headers
from config.platform.webhooks.wakeups import wake_senders

log = structlog.get_logger(__name__)

MINUTE, HOUR = 60, 3600
# Seconds to wait after each failed attempt, three days in total.
SCHEDULE = (5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
ATTEMPTS = len(SCHEDULE) + 1
# A webhook that fails for this long is disabled until its owner enables it.
DISABLE_ATTEMPTS, DISABLE_SECONDS = 10, 3 * 24 * HOUR
CLAIM_ATTEMPTS = 10  # lost races against other workers; after these, the reaper's next wake-up message is soon enough
MAX_PARALLEL_PER_USER = 2  # webhooks of one user to which the four workers send at the same time
LEASE_SECONDS = 2 * request.ATTEMPT_SECONDS
DRAIN_SECONDS = 5  # after which a Celery task sends a new wake-up message and returns
# A message with a countdown beyond the broker's visibility timeout would be redelivered repeatedly.
MAX_WAKEUP_DELAY = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery to attempt once, and the data of the request."""

    id: UUID
    token: int
    attempts: int
    webhook_id: UUID
    job_id: UUID | None
    subject: str
    body: str
    url: str
    secrets: list[str]


# ---- Claim ----------------------------------------------------------------------------------------------------------

# A test is not retried: the user is waiting for it, and can start another one.
MAX_ATTEMPTS = "CASE type WHEN 'webhook.test' THEN 1 ELSE %(attempts)s END"

# A receiver gets the events of a job, or of another subject, in order: a delivery waits until the earlier ones are
# finished. The conditions are separate, so that each uses a unique index. The purge of a job replaces `job_id` with a
# subject in all its deliveries at once, so earlier and later deliveries always match by the same column.
IS_NEXT = """NOT EXISTS (
    SELECT 1 FROM exports_delivery earlier
    WHERE earlier.webhook_id = d.webhook_id AND earlier.job_id = d.job_id AND earlier.seq < d.seq
      AND earlier.status = 'pending'
) AND NOT EXISTS (
    SELECT 1 FROM exports_delivery earlier
    WHERE d.subject <> '' AND earlier.subject <> '' AND earlier.webhook_id = d.webhook_id
      AND earlier.subject = d.subject AND earlier.seq < d.seq AND earlier.status = 'pending'
)"""

# Two statements in one transaction. NEXT_WEBHOOK locks an idle webhook with a due delivery, and its user. CLAIM checks
# again with a new snapshot: another worker may have claimed in between, which NEXT_WEBHOOK cannot see because a claim
# changes neither the webhook nor the user. So a slow endpoint never occupies two workers, and the endpoints of one user
# never occupy all workers. Other transactions hold the user's lock only briefly.
# Deliveries that are being sent are also due, so both statements scan only the due part of the index. This requires
# statement_timestamp(): an index cannot be searched with the volatile clock_timestamp().
# One scan serves all users: those with the fewest deliveries in progress come first, then those that wait longest.
NEXT_WEBHOOK = f"""
WITH due AS MATERIALIZED (
    SELECT d.webhook_id, w.user_id, coalesce(bool_or(d.lease_until > clock_timestamp()), false) AS sent,
        min(d.available_at) FILTER (
            WHERE (w.enabled OR d.type = 'webhook.test') AND d.attempts < {MAX_ATTEMPTS} AND u.is_active
            AND {IS_NEXT}) AS since
    FROM exports_delivery d JOIN exports_webhook w ON w.id = d.webhook_id JOIN auth_user u ON u.id = w.user_id
    WHERE d.status = 'pending' AND d.available_at <= statement_timestamp()
    GROUP BY d.webhook_id, w.user_id
), pick AS MATERIALIZED (
    SELECT w.id, w.user_id FROM exports_webhook w JOIN (
        SELECT *, count(*) FILTER (WHERE sent) OVER (PARTITION BY user_id) AS busy FROM due
    ) d ON d.webhook_id = w.id
    WHERE NOT d.sent AND d.since IS NOT NULL AND d.busy < %(busy)s
    ORDER BY d.busy, d.since LIMIT 1 FOR NO KEY UPDATE OF w SKIP LOCKED
)
SELECT pick.id AS webhook, pick.user_id AS "user" FROM pick JOIN auth_user u ON u.id = pick.user_id
FOR NO KEY UPDATE OF u
"""

# An expired lease means an attempt without a result. It is recorded as well.
LOG_LOST_ATTEMPT = """
, lost AS (
    INSERT INTO exports_attempt (delivery_id, at, error, duration_ms)
    SELECT id, lease_until - %(lease)s * interval '1 second', 'worker lost', %(lease)s * 1000
    FROM pick WHERE lease_until IS NOT NULL
)
"""

CLAIM = f"""
WITH sending AS MATERIALIZED (
    SELECT d.webhook_id, w.user_id FROM exports_delivery d JOIN exports_webhook w ON w.id = d.webhook_id
    WHERE d.status = 'pending' AND d.available_at <= statement_timestamp() AND d.lease_until > clock_timestamp()
), pick AS MATERIALIZED (
    SELECT d.id, d.lease_until FROM exports_delivery d JOIN exports_webhook w ON w.id = d.webhook_id
    WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND d.available_at <= statement_timestamp()
      AND (w.enabled OR d.type = 'webhook.test') AND d.attempts < {MAX_ATTEMPTS} AND {IS_NEXT}
      AND NOT EXISTS (SELECT 1 FROM sending WHERE webhook_id = %(webhook)s)
      AND (SELECT count(*) FROM sending WHERE user_id = %(user)s) < %(busy)s
    ORDER BY d.available_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED
)
{LOG_LOST_ATTEMPT}
UPDATE exports_delivery d
SET token = nextval('exports_fence_seq'), attempts = d.attempts + 1,
    lease_until = clock_timestamp() + %(lease)s * interval '1 second'
FROM pick, exports_webhook w
WHERE d.id = pick.id AND w.id = d.webhook_id
RETURNING d.id, d.token, d.attempts, d.webhook_id, d.job_id, d.subject, d.body, w.url,
    CASE WHEN w.old_secret_until > clock_timestamp() THEN ARRAY[w.secret, w.old_secret] ELSE ARRAY[w.secret] END
        AS secrets
"""


def claim() -> ClaimedDelivery | None:
    """Claim the next due delivery of the user with the fewest in progress, or return None.

    A webhook has at most one delivery in progress, and a user at most MAX_PARALLEL_PER_USER.
    """
    for _ in range(CLAIM_ATTEMPTS):
        with transaction.atomic():
            found = sql.one(NEXT_WEBHOOK, attempts=ATTEMPTS, busy=MAX_PARALLEL_PER_USER)
            if found is None:
                return None
            row = sql.one(CLAIM, **found, attempts=ATTEMPTS, busy=MAX_PARALLEL_PER_USER, lease=LEASE_SECONDS)
        if row:
            return ClaimedDelivery(**row)
    return None


# ---- Results --------------------------------------------------------------------------------------------------------

LOG_ATTEMPT = """
, logged AS (
    INSERT INTO exports_attempt (delivery_id, at, status_code, error, duration_ms)
    SELECT id, clock_timestamp() - %(seconds)s * interval '1 second', %(status)s, %(error)s, round(%(seconds)s * 1000)
    FROM ours
)
"""

# Locks the webhook before the delivery, in the same order as the deletion of a webhook. The other order would deadlock.
DELIVERED = """
WITH webhook AS MATERIALIZED (
    SELECT id FROM exports_webhook WHERE id = %(webhook)s FOR NO KEY UPDATE
), ours AS (
    UPDATE exports_delivery
    SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()
    WHERE id = %(delivery)s AND token = %(token)s AND EXISTS (SELECT 1 FROM webhook)
    RETURNING id, webhook_id
), reset AS (
    UPDATE exports_webhook SET failures = 0, failing_since = NULL
    WHERE id = (SELECT webhook_id FROM ours) AND failures > 0
)
"""

# A failed test does not count as a failure of the webhook: the owner may be testing a broken endpoint. A 410 always
# disables the webhook.
FAILED = f"""
WITH webhook AS MATERIALIZED (
    SELECT id, failures + 1 AS failures, coalesce(failing_since, clock_timestamp()) AS since, enabled AS was_enabled,
           %(is_410)s AND url = %(url)s AS is_gone
    FROM exports_webhook WHERE id = %(webhook)s FOR NO KEY UPDATE
), ours AS (
    UPDATE exports_delivery d
    SET status = CASE WHEN w.is_gone OR attempts >= {MAX_ATTEMPTS} THEN 'failed' ELSE 'pending' END,
        finished_at = CASE WHEN w.is_gone OR attempts >= {MAX_ATTEMPTS} THEN clock_timestamp() END,
        available_at = clock_timestamp() + %(delay)s * interval '1 second', token = NULL, lease_until = NULL
    FROM webhook w
    WHERE d.id = %(delivery)s AND token = %(token)s
    RETURNING d.id, webhook_id, status, type
), counting AS (
    SELECT webhook.*, CASE
        WHEN is_gone THEN 'The endpoint returned 410 Gone.'
        WHEN failures >= %(disable_attempts)s
             AND since < clock_timestamp() - %(disable_seconds)s * interval '1 second'
            THEN 'No delivery has succeeded for three days.' END AS reason
    FROM webhook JOIN ours ON webhook.id = ours.webhook_id
    WHERE is_gone OR ours.type <> 'webhook.test'
), counted AS (
    UPDATE exports_webhook w
    SET failures = n.failures, failing_since = n.since, enabled = w.enabled AND n.reason IS NULL,
        disabled_reason = CASE WHEN w.enabled THEN coalesce(n.reason, '') ELSE w.disabled_reason END
    FROM counting n WHERE w.id = n.id
    RETURNING n.was_enabled AND NOT w.enabled AS disabled
)
"""

RELEASE = """
UPDATE exports_delivery SET token = NULL, lease_until = NULL, attempts = attempts - 1
WHERE id = %(delivery)s AND token = %(token)s RETURNING id
"""

# The claim counts attempts, so a delivery that crashes its worker at each attempt also fails eventually.
FAIL_EXHAUSTED = f"""
WITH pick AS MATERIALIZED (
    SELECT id, lease_until FROM exports_delivery
    WHERE status = 'pending' AND available_at <= statement_timestamp() AND attempts >= {MAX_ATTEMPTS}
      AND (lease_until IS NULL OR lease_until < clock_timestamp())
    FOR UPDATE SKIP LOCKED
)
{LOG_LOST_ATTEMPT}
UPDATE exports_delivery d
SET status = 'failed', token = NULL, lease_until = NULL, finished_at = clock_timestamp()
FROM pick WHERE d.id = pick.id AND d.status = 'pending'
RETURNING d.id, d.webhook_id
"""


# ---- Attempts -------------------------------------------------------------------------------------------------------


def drain() -> None:
    """Attempt due deliveries until none are left, or DRAIN_SECONDS have passed."""
    deadline = time.monotonic() + DRAIN_SECONDS
    try:
        while delivery := claim():
            with bound_contextvars(**log_ids(delivery)):
                attempt(delivery)
            if time.monotonic() > deadline:
                wake_senders()
                return
    except OperationalError as error:
        # The leases expire, and the reaper wakes a worker when the database is back.
        log.warning("database_unavailable", error=logs.describe(error))


def log_ids(delivery: ClaimedDelivery) -> dict[str, str]:
    ids = {
        "webhook_id": delivery.webhook_id,
        "delivery_id": delivery.id,
        "job_id": delivery.job_id,
        "subject": delivery.subject,
    }
    return {name: str(value) for name, value in ids.items() if value}


def attempt(delivery: ClaimedDelivery) -> None:
    """Send the delivery once, and record the result."""
    try:
        headers = signed_headers(delivery.id, delivery.body, secrets=delivery.secrets)
        response = request.post(delivery.url, body=delivery.body.encode(), headers=headers)
    except BaseException:
        # The worker is shutting down, or the attempt could not be started. Another worker may start it immediately, and
        # it is not counted.
        sql.rows(RELEASE, delivery=delivery.id, token=delivery.token)
        wake_senders()
        raise
    record = record_success if response.is_success else record_failure
    if not record(delivery, response):
        log.warning("lease_lost", attempt=delivery.attempts)


def record_success(delivery: ClaimedDelivery, response: WebhookResponse) -> bool:
    """Record a delivered attempt. Return False if another worker has claimed the delivery in the meantime."""
    if not sql.one(DELIVERED + LOG_ATTEMPT + "SELECT id FROM ours", **parameters(delivery, response)):
        return False
    log.info("webhook_delivered", status_code=response.status, attempt=delivery.attempts)
    metrics.ATTEMPTS.labels("delivered").inc()
    return True


def record_failure(delivery: ClaimedDelivery, response: WebhookResponse) -> bool:
    """Record a failed attempt. Return False if another worker has claimed the delivery in the meantime."""
    delay = max(backoff.scheduled(delivery.attempts, SCHEDULE), response.retry_after)
    row = sql.one(
        FAILED + LOG_ATTEMPT + "SELECT status, coalesce((SELECT disabled FROM counted), false) AS disabled FROM ours",
        **parameters(delivery, response),
        is_410=response.status == HTTPStatus.GONE,
        url=delivery.url,
        attempts=ATTEMPTS,
        delay=delay,
        disable_attempts=DISABLE_ATTEMPTS,
        disable_seconds=DISABLE_SECONDS,
    )
    if row is None:
        return False
    is_final = row["status"] == "failed"
    next_attempt = {} if is_final else {"delay": round(delay, 1)}
    log.warning(
        "webhook_failed", status_code=response.status, reason=response.error, attempt=delivery.attempts, **next_attempt
    )
    metrics.ATTEMPTS.labels("failed" if is_final else "retrying").inc()
    if row["disabled"]:
        log.warning("webhook_disabled", status_code=response.status)
    elif not is_final and delay <= MAX_WAKEUP_DELAY:
        wake_senders(delay=delay)
    return True


def parameters(delivery: ClaimedDelivery, response: WebhookResponse) -> dict[str, object]:
    return {
        "webhook": delivery.webhook_id,
        "delivery": delivery.id,
        "token": delivery.token,
        "status": response.status,
        "error": response.error,
        "seconds": response.seconds,
    }


def fail_exhausted() -> None:
    """Fail the deliveries whose worker was lost during the last attempt."""
    for row in sql.rows(FAIL_EXHAUSTED, attempts=ATTEMPTS, lease=LEASE_SECONDS):
        log.error("webhook_failed", webhook_id=str(row["webhook_id"]), delivery_id=str(row["id"]))
        metrics.ATTEMPTS.labels("failed").inc()
