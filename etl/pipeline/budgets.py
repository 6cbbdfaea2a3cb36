"""Daily token budgets for language models, per user and per rule. Days are in UTC.

A budget is checked before each call, but tokens are counted when the response has arrived, so calls in flight can
exceed it. Within a process, calls run concurrently only if their maximum cost fits into the budget. A call that does
not fit waits until it is the only one. So each process that works for the user or with the rule can exceed a budget by
at most one call.

A call is not counted if it ends without a response, or if its process is killed before that.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q

from config.platform.db import clock, sql
from config.platform.http.problems import DATABASE_ERRORS
from config.platform.observability import logs
from etl.core import metrics
from etl.core.errors import TokenBudgetExceeded
from etl.core.stage_context import POLL_SECONDS, StageContext, Usage
from etl.models import RuleAllowance, RuleTokens
from etl.pipeline import engines, quotas
from rules.library.content import RuleContent
from rules.models import Rule

log = structlog.get_logger(__name__)

MAX_RULES = 100
STATE = """
SELECT coalesce(a.daily_tokens, %(user_limit)s::bigint) AS user_limit, coalesce(u.tokens, 0) AS user_used,
       coalesce(r.daily_tokens, %(rule_limit)s::bigint) AS rule_limit, coalesce(t.tokens, 0) AS rule_used
FROM (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS day) today
LEFT JOIN etl_allowance a ON a.user_id = %(user)s
LEFT JOIN etl_usage u ON u.user_id = %(user)s AND u.day = today.day
LEFT JOIN etl_rule_allowance r ON r.rule_id = %(rule)s
LEFT JOIN etl_rule_tokens t ON t.rule_id = %(rule)s AND t.day = today.day
"""
SPEND_OF_USER = """
INSERT INTO etl_usage (user_id, day, documents, bytes, tests, tokens)
VALUES (%(user)s, (clock_timestamp() AT TIME ZONE 'UTC')::date, 0, 0, 0, %(tokens)s)
ON CONFLICT (user_id, day) DO UPDATE SET tokens = etl_usage.tokens + excluded.tokens
RETURNING tokens
"""
SPEND_OF_RULE = """
INSERT INTO etl_rule_tokens (rule_id, day, tokens)
VALUES (%(rule)s, (clock_timestamp() AT TIME ZONE 'UTC')::date, %(tokens)s)
ON CONFLICT (day, rule_id) DO UPDATE SET tokens = etl_rule_tokens.tokens + excluded.tokens
RETURNING tokens
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """Today's tokens. None: no limit."""

    user_limit: int | None
    user_used: int
    rule_limit: int | None
    rule_used: int

    def exceeded(self) -> str:
        """Return a sentence that names the exceeded budget, without its period, or ""."""
        unit = "language model tokens"
        if self.user_limit is not None and self.user_used >= self.user_limit:
            return f"You have used {self.user_used:,} of today's {self.user_limit:,} {unit}"
        if self.rule_limit is not None and self.rule_used >= self.rule_limit:
            return f"The rule has used {self.rule_used:,} of today's {self.rule_limit:,} {unit}"
        return ""

    def left(self) -> list[int | None]:
        """Return the remaining tokens of the user and of the rule."""
        budgets = ((self.user_limit, self.user_used), (self.rule_limit, self.rule_used))
        return [None if limit is None else limit - used for limit, used in budgets]


def state(user_id: int, rule_id: int) -> TokenState:
    env = settings.SLUICE
    row = sql.one(
        STATE, user=user_id, rule=rule_id, user_limit=env.etl_daily_tokens, rule_limit=env.etl_rule_daily_tokens
    )
    assert row is not None  # noqa: S101 - `today` is one row, and each join adds at most one
    return TokenState(**row)


def of_rules(user: User) -> dict[int, TokenState]:
    """Return the budgets of the rules that a user sees in lists, by rule ID.

    These are the budgets that staff set and, with ETL_RULE_DAILY_TOKENS, those of all rules used today.
    """
    used = RuleTokens.objects.filter(day=clock.now().date()).values("rule_id")
    has_budget = Q(pk__in=RuleAllowance.objects.values("rule_id"))
    if settings.SLUICE.etl_rule_daily_tokens is not None:
        has_budget |= Q(pk__in=used)
    rules = Rule.objects.listed().filter(Q(owner=user) | Q(owner=None), has_budget)
    return {
        rule_id: state(user.pk, rule_id) for rule_id in rules.order_by("pk").values_list("pk", flat=True)[:MAX_RULES]
    }


def require(user_id: int, rule: RuleContent) -> None:
    """Check the budgets before a document is accepted or retried, or a rule is tested. Raises QuotaExceeded."""
    if not asks_model(rule):
        return
    if reason := state(user_id, rule.rule_id).exceeded():
        quotas.refuse(reason)


def asks_model(rule: RuleContent) -> bool:
    """Return whether the rule calls a language model. A rule whose mode is not configured fails without a call."""
    return rule.mode in settings.ETL_POSTPROCESSORS and engines.processor(rule.mode).asks_model


def spend(user_id: int, rule_id: int, usage: Usage) -> None:
    """Count the tokens of a call. If the database is unavailable, they are not counted, but the response is used."""
    tokens = usage.prompt_tokens + usage.completion_tokens
    if not tokens:
        return
    try:
        with returned_connection():
            sql.scalar(SPEND_OF_USER, user=user_id, tokens=tokens)
            if rule_id:  # 0: the rule is not saved
                sql.scalar(SPEND_OF_RULE, rule=rule_id, tokens=tokens)
    except DATABASE_ERRORS as error:
        log.warning("tokens_not_counted", tokens=tokens, error=logs.describe(error))


@contextmanager
def returned_connection() -> Iterator[None]:
    """Return a thread's connection to the pool at the end, so that no connection is held during model calls."""
    try:
        yield
    finally:
        if threading.current_thread() is not threading.main_thread():
            connection.close()


# ---- Calls of this process ------------------------------------------------------------------------------------------
class CallsInFlight:
    """The maximum cost of the running calls of this process, by budget."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tokens: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def fits(self, budgets: dict[str, int | None], tokens: int) -> bool:
        """Return whether a call and the running calls fit into the remaining tokens, or no other call is running."""
        return all(
            left is None or not self.calls[name] or self.tokens[name] + tokens <= left for name, left in budgets.items()
        )

    def add(self, budgets: dict[str, int | None], tokens: int, *, calls: int) -> None:
        for name in budgets:
            self.tokens[name] += tokens
            self.calls[name] += calls
            if not self.calls[name]:
                del self.calls[name], self.tokens[name]


running = CallsInFlight()


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyBudget:
    """The implementation of `etl.core.stage_context.Budget`, for a user and a rule."""

    user_id: int
    rule_id: int

    @contextmanager
    def call(self, tokens: int, *, context: StageContext) -> Iterator[None]:
        """Reserve `tokens`, the maximum cost of a call, while the block makes the call and counts the tokens used.

        Waits until the call fits beside the running calls. Raises TokenBudgetExceeded, Django's errors, and those of
        `context.check()`.
        """
        with running.changed:
            while not running.fits(budgets := self.left(), tokens):
                running.changed.wait(POLL_SECONDS)
                context.check()
            running.add(budgets, tokens, calls=1)
        try:
            yield
        finally:
            with running.changed:
                running.add(budgets, -tokens, calls=-1)
                running.changed.notify_all()

    def left(self) -> dict[str, int | None]:
        """Return the remaining tokens of each budget. Raises TokenBudgetExceeded, and Django's errors."""
        with returned_connection():
            now = state(self.user_id, self.rule_id)
        if reason := now.exceeded():
            metrics.QUOTA_REFUSED.inc()
            raise TokenBudgetExceeded(f"{reason}. The quota resets at midnight UTC.")
        user, rule = now.left()
        return {f"user {self.user_id}": user, f"rule {self.rule_id}": rule}
