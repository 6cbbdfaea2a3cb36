"""Daily quotas of jobs and chunks per user. Days are in UTC, by the database's clock.

The debit is one conditional upsert in the transaction that inserts the job: parallel requests cannot overspend, and a
job that is not inserted costs nothing. Refunds are part of the statements that end chunks.
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.conf import settings

from config.platform.db import sql
from config.platform.http import quotas
from config.platform.plurals import counted
from exports.core import metrics


class QuotaExceeded(quotas.QuotaExceeded):
    detail = "This request exceeds your daily quota. See /exports/limits for the quota and your usage."


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A day's limits and usage."""

    daily_jobs: int
    daily_chunks: int
    jobs: int
    chunks: int
    resets_at: datetime


# Staff may have set other limits for the user.
LIMITS = """
WITH allowed AS (
    SELECT coalesce(max(daily_jobs), %(daily_jobs)s) AS daily_jobs,
           coalesce(max(daily_chunks), %(daily_chunks)s) AS daily_chunks,
           coalesce(%(day)s, (clock_timestamp() AT TIME ZONE 'UTC')::date) AS day
    FROM exports_allowance WHERE user_id = %(user)s
)
"""

# The debit locks the row until the end of the transaction, and workers that refund a chunk wait for it. Without this
# timeout, the transaction of a crashed web host would block them until TCP detects the crash.
LIMIT_IDLE_TIME = "SELECT set_config('idle_in_transaction_session_timeout', '30s', true)"

# The lock of the row serializes the debits of a user. If there is no row yet, the unique index serializes them: one
# insert wins, and the others wait for it.
DEBIT = (
    LIMITS
    + """
INSERT INTO exports_usage AS u (user_id, day, jobs, chunks)
SELECT %(user)s, day, %(jobs)s, %(chunks)s FROM allowed
WHERE %(jobs)s <= daily_jobs AND %(chunks)s <= daily_chunks
ON CONFLICT (user_id, day) DO UPDATE SET jobs = u.jobs + EXCLUDED.jobs, chunks = u.chunks + EXCLUDED.chunks
WHERE (u.jobs + EXCLUDED.jobs <= (SELECT daily_jobs FROM allowed) OR EXCLUDED.jobs = 0)
  AND u.chunks + EXCLUDED.chunks <= (SELECT daily_chunks FROM allowed)
RETURNING u.day
"""
)

STATE = (
    LIMITS
    + """
SELECT a.daily_jobs, a.daily_chunks, coalesce(u.jobs, 0) AS jobs, coalesce(u.chunks, 0) AS chunks,
       ((a.day + 1)::timestamp AT TIME ZONE 'UTC') AS resets_at
FROM allowed a LEFT JOIN exports_usage u ON u.user_id = %(user)s AND u.day = a.day
"""
)

# Part of the statements that end chunks. Needs the CTEs `ended` and `settled`, the chunks and jobs after the change.
# Each chunk that ended without a new file is refunded to the day on which it was charged. For a chunk of an earlier
# release, that is the day of the job's last charge. Rows of usage are locked last, in one order.
REFUND = """
, back AS (
    SELECT user_id, coalesce(e.charged_on, s.charged_on) AS day, count(*) AS n
    FROM ended e JOIN settled s USING (job_id)
    WHERE charged AND (e.status IN ('failed', 'cancelled') OR source = 'reused')
    GROUP BY 1, 2
), used AS (
    SELECT id, n FROM exports_usage JOIN back USING (user_id, day) ORDER BY id FOR UPDATE
), refunded AS (
    UPDATE exports_usage u SET chunks = greatest(chunks - n, 0) FROM used WHERE u.id = used.id
)
"""


def debit(*, user_id: int, jobs: int, chunks: int, day: date | None = None) -> date:
    """Charge the quota of `day`, or today's, and return the day. Call it in the transaction of the change.

    Raises QuotaExceeded, and charges nothing then.
    """
    sql.scalar(LIMIT_IDLE_TIME)
    charged: date | None = sql.scalar(DEBIT, **values(user_id) | {"day": day}, jobs=jobs, chunks=chunks)
    if charged is None:
        metrics.QUOTA_REFUSED.inc()
        raise exceeded(state(user_id), jobs=jobs, chunks=chunks)
    return charged


def state(user_id: int) -> Quota:
    return Quota(**sql.rows(STATE, **values(user_id))[0])  # an aggregate without groups always returns a row


def values(user_id: int) -> dict[str, Any]:
    env = settings.SLUICE
    limits = {"daily_jobs": env.export_daily_jobs, "daily_chunks": env.export_daily_chunks}
    return {"user": user_id, "day": None, **limits}


def exceeded(quota: Quota, *, jobs: int, chunks: int) -> QuotaExceeded:
    """Return the error for a request that exceeds the quota, with the exceeded limit in its detail."""
    if jobs and quota.jobs + jobs > quota.daily_jobs:
        reason = f"You have reached your daily limit of {counted(quota.daily_jobs, 'export')}"
    else:
        left = quotas.left(quota.daily_chunks, quota.chunks)
        reason = f"This needs {counted(chunks, 'chunk')}, and {left:,} of today's {quota.daily_chunks:,} are left"
    return QuotaExceeded.of_day(reason)
