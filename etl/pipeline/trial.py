"""Rule trials: synchronous post-processing of given Markdown. No task is created, and nothing is stored."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import close_old_connections

from config.platform import storage
from config.platform.durations import duration
from config.platform.http.problems import DATABASE_ERRORS, Problem, StorageUnavailable
from config.platform.observability import logs
from etl.core import metrics
from etl.core.errors import EtlError, OutOfTime, StageTimeout, explain
from etl.core.stage_context import StageContext, Usage
from etl.core.states import Stage
from etl.models import ModelUsage
from etl.pipeline import artifacts, budgets, engines, page_images, quotas
from etl.pipeline.stages.postprocess import ResultOrigin, output_of
from etl.postprocessors.base import Processed
from etl.providers.base import PAGE_MARKER, OCRResult, Page
from etl.runstate import RunState
from rules.library.content import RuleContent

log = structlog.get_logger(__name__)

MARKER = re.compile(rf"^{PAGE_MARKER}[ \t]*$\n?", re.MULTILINE)
MAX_SECONDS = 120  # a user and the reverse proxy wait for the response
# Limits per process: a slow model must not use up the threads of a web process.
MAX_AT_ONCE = 8
MAX_OF_USER = 2
RETRY_AFTER_SECONDS = 10
ATTEMPTS = {"ocr": 0, "postprocess": 1}
running: Counter[int] = Counter()  # trials with a model, by user
running_lock = threading.Lock()


class TooManyTrials(Problem):
    status = 503
    code = "too_many_trials"
    retry_after = RETRY_AFTER_SECONDS
    detail = (
        f"This server process is testing {MAX_AT_ONCE} rules at the moment, which is its limit. "
        "Try again in a few seconds."
    )


class TooManyTrialsOfUser(Problem):
    status = 429
    code = "too_many_trials"
    retry_after = RETRY_AFTER_SECONDS
    detail = f"You are testing {MAX_OF_USER} rules at the moment, which is the limit. Wait until one test has ended."


def run(
    rule: RuleContent,
    *,
    markdown: str,
    user: User,
    before_wait: Callable[[], None],
    document: RunState | None = None,
) -> dict[str, Any]:
    """Return the result or error that a task would end with, after one attempt of at most MAX_SECONDS.

    `document`: the source of the Markdown, if any. Rules with vision show its pages to the model.

    Raises TooManyTrials, TooManyTrialsOfUser, QuotaExceeded, and StorageUnavailable. `before_wait` is called before the
    trial waits for a model. No database connection is held during the model call: ten trials would exhaust a pool of
    ten.
    """
    with ExitStack() as held:
        if budgets.asks_model(rule):
            held.enter_context(reserved_place(user))
            budgets.require(user.pk, rule)
            quotas.charge_tests(user.pk)
            before_wait()
        context = StageContext(
            seconds=min(settings.SLUICE.etl_task_timeout, MAX_SECONDS),
            budget=budgets.DailyBudget(user_id=user.pk, rule_id=rule.rule_id),
            on_usage=partial(count_tokens, rule, user),
        )
        if document:
            context.page_images = page_images.for_models(
                document, count=document.metadata["ocr"].get("pages"), can_render=False
            )
        try:
            close_old_connections()
            return process(rule, ocr_of(markdown), context=context)
        finally:
            record(rule, context.usage, user=user)


@contextmanager
def reserved_place(user: User) -> Iterator[None]:
    """Reserve one of the places for trials with a model. A user cannot reserve all of them."""
    with running_lock:
        if running[user.pk] >= MAX_OF_USER:
            raise TooManyTrialsOfUser
        if running.total() >= MAX_AT_ONCE:
            raise TooManyTrials
        running[user.pk] += 1
    try:
        yield
    finally:
        with running_lock:
            running[user.pk] -= 1
            if not running[user.pk]:
                del running[user.pk]


def count_tokens(rule: RuleContent, user: User, usage: Usage) -> None:
    metrics.count_tokens(usage.prompt_tokens, usage.completion_tokens)
    budgets.spend(user.pk, rule.rule_id, usage)


def record(rule: RuleContent, usage: Usage, *, user: User) -> None:
    """Record the usage of a trial. If the database is unavailable, only log it."""
    if not usage.calls:
        return
    try:
        ModelUsage.objects.create(user=user, rule_id=rule.rule_id, **usage.as_dict())
    except DATABASE_ERRORS as error:
        log.warning("usage_not_recorded", error=logs.describe(error), **usage.as_dict())


def process(rule: RuleContent, ocr: OCRResult, *, context: StageContext) -> dict[str, Any]:
    outcome: dict[str, Any]
    try:
        done = engines.processor(rule.mode).process(ocr, rule, context=context)
        outcome = {"ok": True, "result": result_of(rule, ocr, done, context=context)}
    except (EtlError, OutOfTime) as reason:
        error = reason if isinstance(reason, EtlError) else StageTimeout.after(duration(context.seconds))
        outcome = {"ok": False, "error": explain(error, stage=Stage.POSTPROCESS)}
    except storage.StorageError as reason:  # of page images
        log.warning("storage_unavailable", error=str(reason))
        raise StorageUnavailable from None
    spent = {"usage": context.usage.as_dict(), "warnings": [warning.as_dict() for warning in context.warnings]}
    cleaned: dict[str, Any] = artifacts.clean(outcome | spent)
    return cleaned


def result_of(rule: RuleContent, ocr: OCRResult, done: Processed, *, context: StageContext) -> dict[str, Any]:
    """Return the `result` of a task, with null for file keys and provider ids."""
    origin = ResultOrigin(metadata=ocr.metadata, attempts=ATTEMPTS, usage=context.usage.as_dict())
    output = output_of(done, origin, rule=rule, context=context)
    return output | ({"output_s3_key": None} if "data" in output else {})


def ocr_of(markdown: str) -> OCRResult:
    """Return Markdown as an OCR result, split at page markers or, without them, as one page."""
    pages = tuple(pages_in(markdown)) or (Page(number=1, start=0, end=len(markdown), method="text"),)
    metadata = {"pages": len(pages), "duration_ms": 0, "version": ""}
    return OCRResult(markdown=markdown, pages=pages, provider="", provider_task_id="", metadata=metadata)


def pages_in(markdown: str) -> Iterator[Page]:
    """Yield the pages, or none if markers are out of order or follow other text, so that no text is lost."""
    markers = list(MARKER.finditer(markdown))
    numbers = [int(marker["number"]) for marker in markers]
    if not markers or markdown[: markers[0].start()].strip() or any(a >= b for a, b in pairwise(numbers)):
        return
    ends = [marker.start() for marker in markers[1:]] + [len(markdown)]
    for marker, number, end in zip(markers, numbers, ends, strict=True):
        yield Page(number=number, start=marker.end(), end=end, method="text")
