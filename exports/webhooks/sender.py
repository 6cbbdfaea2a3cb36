"""Bringing deliveries to webhooks: claim, post, write down. Like chunks, under a fencing token.

At least once: a worker may die between the receiver's answer and the row that tells of it. Then the delivery goes out
again, with the same `webhook-id` and the same bytes, and the receiver can tell.
"""

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from uuid import UUID

import structlog
from django.db import OperationalError, transaction
from standardwebhooks import Webhook as Signer
from structlog.contextvars import bound_contextvars

from config.platform.db import sql
from config.platform.observability import logs
from exports.core import metrics, wakeups
from exports.core.errors import LeaseLost
from exports.webhooks import url_guard
from exports.webhooks.url_guard import Answer

log = structlog.get_logger(__name__)

# Seconds after each failed attempt, from 5 seconds to a day: three days in all.
MINUTE, HOUR = 60, 3600
SCHEDULE = (5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
ATTEMPTS = len(SCHEDULE) + 1
# What nobody has heard of for so long is not tried any further, until a person says so.
HOPELESS_ATTEMPTS, HOPELESS_SECONDS = 10, 3 * 24 * HOUR
CLAIMS = 10  # how often somebody else may be quicker; then the reaper's next hint is soon enough
BUSY = 2  # webhooks of one user that are sent something at a time, of four workers
LEASE_SECONDS = 2 * url_guard.ATTEMPT_SECONDS
# How long a woken worker goes on before it lets Celery speak.
DRAIN_SECONDS = 5
# A message that waits longer in Celery than the broker's visibility timeout comes again and again.
LONGEST_HINT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The right to make one attempt, and all that it takes."""

    id: UUID
    token: int
    attempts: int
    webhook_id: UUID
    job_id: UUID | None
    body: str
    url: str
    secrets: list[str]


# ---- Claim ----------------------------------------------------------------------------------------------------------

# Whoever asks for a test is there, and can ask for another one.
ATTEMPTS_OF = "CASE type WHEN 'webhook.test' THEN 1 ELSE %(attempts)s END"

# Two statements, in one transaction. The first locks a webhook that has something to be sent and is not being sent
# anything, and its user; the second looks again, with a snapshot of its own: somebody may have begun while the first
# one looked, which it cannot see, since beginning changes neither row. So a slow endpoint never takes two workers, and
# a user with many of them never takes all. The user's lock is waited for: nobody holds it for long.
# Deliveries that are being sent are due, too: both look at the part of the index that is, not at what waits for later,
# which takes a time that stands still for the statement. clock_timestamp() is never looked up in an index.
# One walk over what is due, for all: users with the fewest on the way come first, then who has waited longest.
NEXT = f"""
WITH due AS MATERIALIZED (
    SELECT d.webhook_id, w.user_id, coalesce(bool_or(d.lease_until > clock_timestamp()), false) AS sent,
        min(d.available_at) FILTER (
            WHERE (w.enabled OR d.type = 'webhook.test') AND d.attempts < {ATTEMPTS_OF}) AS since
    FROM exports_delivery d JOIN exports_webhook w ON w.id = d.webhook_id
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

# A delivery whose lease ran out had an attempt that nobody told the end of; it goes into the log, too.
LOST = """
, lost AS (
    INSERT INTO exports_attempt (delivery_id, at, error, duration_ms)
    SELECT id, lease_until - %(lease)s * interval '1 second', 'the worker was lost', %(lease)s * 1000
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
      AND (w.enabled OR d.type = 'webhook.test') AND d.attempts < {ATTEMPTS_OF}
      AND NOT EXISTS (SELECT 1 FROM sending WHERE webhook_id = %(webhook)s)
      AND (SELECT count(*) FROM sending WHERE user_id = %(user)s) < %(busy)s
    ORDER BY d.available_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED
)
{LOST}
UPDATE exports_delivery d
SET token = nextval('exports_fence_seq'), attempts = d.attempts + 1,
    lease_until = clock_timestamp() + %(lease)s * interval '1 second'
FROM pick, exports_webhook w
WHERE d.id = pick.id AND w.id = d.webhook_id
RETURNING d.id, d.token, d.attempts, d.webhook_id, d.job_id, d.body, w.url,
    CASE WHEN w.old_secret_until > clock_timestamp() THEN ARRAY[w.secret, w.old_secret] ELSE ARRAY[w.secret] END
        AS secrets
"""


def claim() -> Order | None:
    """Take a delivery of the user with the fewest on the way. None: none is due, or their webhooks, or two of their
    users' webhooks, are all being sent something."""
    for _ in range(CLAIMS):
        with transaction.atomic():
            chosen = sql.one(NEXT, attempts=ATTEMPTS, busy=BUSY)
            if chosen is None:
                return None
            row = sql.one(CLAIM, **chosen, attempts=ATTEMPTS, busy=BUSY, lease=LEASE_SECONDS)
        if row:
            return Order(**row)
    return None


# ---- Outcomes -------------------------------------------------------------------------------------------------------

NOTE = """
, noted AS (
    INSERT INTO exports_attempt (delivery_id, at, status_code, error, duration_ms)
    SELECT id, clock_timestamp() - %(seconds)s * interval '1 second', %(status)s, %(error)s, round(%(seconds)s * 1000)
    FROM ours
)
"""

# Webhook before delivery, here as where a webhook is deleted with all that was to be sent to it.
DELIVERED = """
WITH hook AS MATERIALIZED (
    SELECT id FROM exports_webhook WHERE id = %(webhook)s FOR NO KEY UPDATE
), ours AS (
    UPDATE exports_delivery
    SET status = 'delivered', token = NULL, lease_until = NULL, finished_at = clock_timestamp()
    WHERE id = %(delivery)s AND token = %(token)s AND EXISTS (SELECT 1 FROM hook)
    RETURNING id, webhook_id
), fine AS (
    UPDATE exports_webhook SET failures = 0, failing_since = NULL
    WHERE id = (SELECT webhook_id FROM ours) AND failures > 0
)
"""

# A test that fails tells the user, who is there; it says nothing of how long the endpoint has been away. But whatever
# it is that gets a 410 was asked to stop.
FAILED = f"""
WITH hook AS MATERIALIZED (
    SELECT id, failures + 1 AS failures, coalesce(failing_since, clock_timestamp()) AS since, enabled AS was
    FROM exports_webhook WHERE id = %(webhook)s FOR NO KEY UPDATE
), ours AS (
    UPDATE exports_delivery
    SET status = CASE WHEN %(gone)s OR attempts >= {ATTEMPTS_OF} THEN 'failed' ELSE 'pending' END,
        finished_at = CASE WHEN %(gone)s OR attempts >= {ATTEMPTS_OF} THEN clock_timestamp() END,
        available_at = clock_timestamp() + %(delay)s * interval '1 second', token = NULL, lease_until = NULL
    WHERE id = %(delivery)s AND token = %(token)s AND EXISTS (SELECT 1 FROM hook)
    RETURNING id, webhook_id, status, type
), judged AS (
    SELECT hook.*, CASE
        WHEN %(gone)s THEN 'The endpoint answered 410 Gone.'
        WHEN failures >= %(hopeless_attempts)s
             AND since < clock_timestamp() - %(hopeless_seconds)s * interval '1 second'
            THEN 'No attempt has succeeded for three days.' END AS verdict
    FROM hook JOIN ours ON hook.id = ours.webhook_id
    WHERE %(gone)s OR ours.type <> 'webhook.test'
), counted AS (
    UPDATE exports_webhook w
    SET failures = j.failures, failing_since = j.since, enabled = w.enabled AND j.verdict IS NULL,
        disabled_reason = CASE WHEN w.enabled THEN coalesce(j.verdict, '') ELSE w.disabled_reason END
    FROM judged j WHERE w.id = j.id
    RETURNING j.was AND NOT w.enabled AS disabled
)
"""

RELEASE = """
UPDATE exports_delivery SET token = NULL, lease_until = NULL, attempts = attempts - 1
WHERE id = %(delivery)s AND token = %(token)s RETURNING id
"""

# Attempts count at the claim, so that a delivery which kills its worker each time ends too.
GIVE_UP = f"""
WITH pick AS MATERIALIZED (
    SELECT id, lease_until FROM exports_delivery
    WHERE status = 'pending' AND available_at <= statement_timestamp() AND attempts >= {ATTEMPTS_OF}
      AND (lease_until IS NULL OR lease_until < clock_timestamp())
    FOR UPDATE SKIP LOCKED
)
{LOST}
UPDATE exports_delivery d
SET status = 'failed', token = NULL, lease_until = NULL, finished_at = clock_timestamp()
FROM pick WHERE d.id = pick.id AND d.status = 'pending'
RETURNING d.id, d.webhook_id
"""


# ---- Attempts -------------------------------------------------------------------------------------------------------


def drain() -> None:
    """Make the attempts that are due, one after the other, until there is none or the time is over."""
    deadline = time.monotonic() + DRAIN_SECONDS
    try:
        while order := claim():
            with bound_contextvars(**ids(order)):
                deliver(order)
            if time.monotonic() > deadline:
                wakeups.deliveries()
                return
    except OperationalError as error:
        # Our own database is away: leases run out, and the reaper wakes us when it is back.
        log.warning("database_unavailable", error=logs.describe(error))


def ids(order: Order) -> dict[str, str]:
    found = {"webhook_id": order.webhook_id, "delivery_id": order.id, "job_id": order.job_id}
    return {name: str(value) for name, value in found.items() if value}


def deliver(order: Order) -> None:
    """Make one attempt, and write down what came of it."""
    try:
        answer = url_guard.post(order.url, body=order.body.encode(), headers=sign(order))
    except BaseException:
        # The worker is told to leave: another one may begin at once, and the attempt does not count.
        sql.rows(RELEASE, delivery=order.id, token=order.token)
        wakeups.deliveries()
        raise
    try:
        if answer.is_success:
            write_down(order, answer)
        else:
            write_down_failure(order, answer)
    except LeaseLost:
        log.warning("lease_lost", attempt=order.attempts)


def sign(order: Order) -> dict[str, str]:
    """Return the headers of Standard Webhooks: the same id at every attempt, and the time of this one."""
    now = datetime.now(UTC)
    signatures = [Signer(secret).sign(str(order.id), now, order.body) for secret in order.secrets]
    return {
        "Content-Type": "application/json",
        "webhook-id": str(order.id),
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def write_down(order: Order, answer: Answer) -> None:
    """Raises LeaseLost when another worker has the delivery by now."""
    if not sql.one(DELIVERED + NOTE + "SELECT id FROM ours", **facts(order, answer)):
        raise LeaseLost
    log.info("webhook_delivered", status_code=answer.status, attempt=order.attempts)
    metrics.webhook("delivered")


def write_down_failure(order: Order, answer: Answer) -> None:
    """Raises LeaseLost when another worker has the delivery by now."""
    delay = max(backoff(order.attempts), answer.retry_after)
    row = sql.one(
        FAILED + NOTE + "SELECT status, coalesce((SELECT disabled FROM counted), false) AS disabled FROM ours",
        **facts(order, answer),
        gone=answer.status == HTTPStatus.GONE,
        attempts=ATTEMPTS,
        delay=delay,
        hopeless_attempts=HOPELESS_ATTEMPTS,
        hopeless_seconds=HOPELESS_SECONDS,
    )
    if row is None:
        raise LeaseLost
    is_final = row["status"] == "failed"
    told = {} if is_final else {"delay": round(delay, 1)}
    log.warning("webhook_failed", status_code=answer.status, reason=answer.error, attempt=order.attempts, **told)
    metrics.webhook("failed" if is_final else "retrying")
    if row["disabled"]:
        log.warning("webhook_disabled", status_code=answer.status)
    elif not is_final and delay <= LONGEST_HINT:
        wakeups.deliveries(delay=delay)


def facts(order: Order, answer: Answer) -> dict[str, object]:
    return {
        "webhook": order.webhook_id,
        "delivery": order.id,
        "token": order.token,
        "status": answer.status,
        "error": answer.error,
        "seconds": answer.seconds,
    }


def backoff(attempts: int) -> float:
    """Return the seconds before the next attempt. A fifth more at most, so that what failed at once comes spread."""
    planned = SCHEDULE[min(attempts, len(SCHEDULE)) - 1]
    return planned * random.uniform(1, 1.2)  # noqa: S311 - spreading load, not secrecy


def give_up() -> None:
    """End the deliveries that used their attempts up without an outcome: each time the worker was lost."""
    for row in sql.rows(GIVE_UP, attempts=ATTEMPTS, lease=LEASE_SECONDS):
        log.error("webhook_failed", webhook_id=str(row["webhook_id"]), delivery_id=str(row["id"]))
        metrics.webhook("failed")
