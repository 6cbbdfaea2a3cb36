"""Document quotas per user: documents and bytes per day, and open tasks. Days are in UTC, by the database's clock.

A submission is charged in the transaction that creates its task, once: a repeat with the same idempotency key is not
charged. A retry is charged as a document without bytes, because it stores artifacts and may call a model. An upload URL
counts as a submission until its document is submitted or deleted, because an uploaded file takes storage until then. It
counts as an open task only until it expires. Tests of rules that call a model are counted separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NoReturn

from django.conf import settings
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from config.platform.db import sql
from config.platform.http import quotas
from config.platform.http.quotas import left
from config.platform.plurals import counted
from etl.core import metrics
from etl.models import Upload, Usage

OPEN_RETRY_SECONDS = 30


class QuotaExceeded(quotas.QuotaExceeded):
    detail = "This request exceeds your quota of documents. See /api/v1/etl/limits for the quota and your usage."


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A user's limits and usage. `tests`: of rules that call a language model."""

    daily_documents: int
    daily_bytes: int
    max_open: int
    documents: int
    bytes: int
    tests: int
    open: int
    day: date
    resets_at: datetime


# Staff may have set other limits for the user.
STATE = """
WITH allowed AS (
    SELECT coalesce(max(daily_documents), %(daily_documents)s) AS daily_documents,
           coalesce(max(daily_bytes), %(daily_bytes)s) AS daily_bytes,
           coalesce(max(max_open), %(max_open)s) AS max_open,
           (clock_timestamp() AT TIME ZONE 'UTC')::date AS day
    FROM etl_allowance WHERE user_id = %(user)s
), uploads AS (
    SELECT count(*) AS number, coalesce(sum(size), 0)::bigint AS bytes,
           count(*) FILTER (WHERE expires_at > statement_timestamp()) AS open
    FROM etl_upload WHERE user_id = %(user)s AND file_key <> ALL(%(uploads)s)
)
SELECT a.daily_documents, a.daily_bytes, a.max_open, a.day,
       coalesce(u.documents, 0) + uploads.number AS documents, coalesce(u.bytes, 0) + uploads.bytes AS bytes,
       coalesce(u.tests, 0) AS tests,
       uploads.open + (SELECT count(*) FROM etl_task WHERE status = 'pending' AND user_id = %(user)s) AS open,
       ((a.day + 1)::timestamp AT TIME ZONE 'UTC') AS resets_at
FROM allowed a CROSS JOIN uploads LEFT JOIN etl_usage u ON u.user_id = %(user)s AND u.day = a.day
"""


def state(user_id: int, *, uploads: Sequence[str] = ()) -> Quota:
    """Return the user's quota. `uploads`: upload URLs to leave out, because this request uses them."""
    env = settings.SLUICE
    row = sql.one(
        STATE,
        user=user_id,
        uploads=list(uploads),
        daily_documents=env.etl_daily_documents,
        daily_bytes=env.etl_daily_bytes,
        max_open=env.etl_max_open_per_user,
    )
    assert row is not None  # noqa: S101 - an aggregate without groups always returns one row
    return Quota(**row)


def check(user_id: int, *, size: int, uploads: Sequence[str] = (), count: int = 1) -> Quota:
    """Check the quota for `count` more documents of `size` bytes together. `uploads`: the keys of uploaded documents.

    Raises QuotaExceeded.
    """
    quota = state(user_id, uploads=uploads)
    require_open(quota, count)
    if quota.documents + count > quota.daily_documents:
        if count <= 1:
            refuse(f"You have reached your daily limit of {counted(quota.daily_documents, 'document')}")
        rest = left(quota.daily_documents, quota.documents)
        refuse(f"This needs {count:,} documents, and {rest:,} of today's {quota.daily_documents:,} are left")
    if quota.bytes + size > quota.daily_bytes:
        rest = left(quota.daily_bytes, quota.bytes)
        refuse(f"This needs {size:,} bytes, and {rest:,} of today's {quota.daily_bytes:,} are left")
    return quota


def require_open(quota: Quota, count: int) -> None:
    if quota.open + count > quota.max_open:
        metrics.QUOTA_REFUSED.inc()
        needs = f", and this needs {count:,} more" if count > 1 else ""
        raise QuotaExceeded(
            f"You have {quota.open:,} unfinished documents and open uploads, and the limit is {quota.max_open:,}"
            f"{needs}. Wait until some have ended.",
            retry_after=OPEN_RETRY_SECONDS,
        )


def refuse(reason: str) -> NoReturn:
    metrics.QUOTA_REFUSED.inc()
    raise QuotaExceeded.of_day(reason)


def charge(user_id: int, *, size: int, uploads: Sequence[str] = (), count: int = 1) -> None:
    """Charge documents, and delete their upload URLs. Part of `queue_limit.enter`. Raises QuotaExceeded."""
    day = check(user_id, size=size, uploads=uploads, count=count).day
    Upload.objects.filter(user_id=user_id, file_key__in=uploads).delete()
    Usage.objects.get_or_create(user_id=user_id, day=day)
    Usage.objects.filter(user_id=user_id, day=day).update(documents=F("documents") + count, bytes=F("bytes") + size)


def reserve(user_id: int, *, file_key: str, size: int, expires_at: datetime) -> None:
    """Count an upload URL as a submission. Call after `queue_limit.lock`, in a transaction. Raises QuotaExceeded."""
    check(user_id, size=size)
    Upload.objects.create(file_key=file_key, user_id=user_id, size=size, expires_at=expires_at)


def expired_uploads(*, kept: timedelta) -> QuerySet[Upload]:
    """Return the rows of upload URLs that expired at least `kept` ago."""
    return Upload.objects.filter(expires_at__lt=Now() - kept)


def charge_tests(user_id: int, count: int = 1) -> None:
    """Charge tests of a rule with a model: one, or one for each sample of an evaluation. Raises QuotaExceeded."""
    limit = settings.SLUICE.etl_daily_rule_tests
    if not Usage.objects.charge(user_id, "tests", limit=limit, count=count):
        if count == 1:
            refuse(f"You have tested rules with the language model {limit:,} times today")
        rest = left(limit, state(user_id).tests)
        refuse(
            f"This needs {count:,} tests of rules with the language model, and {rest:,} of today's {limit:,} are left"
        )
