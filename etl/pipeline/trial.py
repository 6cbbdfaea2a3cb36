"""Rule trials: synchronous post-processing of given Markdown. No task is created, and nothing is stored."""

import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.db import close_old_connections

from config.platform.http.problems import Problem
from etl.core.errors import EtlError, OutOfTime, StageTimeout, explain
from etl.core.stage_context import StageContext
from etl.core.states import Phase
from etl.pipeline import artifacts, engines
from etl.pipeline.stages.postprocess import ResultOrigin, output_of
from etl.postprocessors.base import Processed
from etl.providers.base import PAGE_MARKER, OCRResult, Page
from rules.library.content import RuleContent

MARKER = re.compile(rf"^{PAGE_MARKER}[ \t]*$\n?", re.MULTILINE)
MAX_SECONDS = 120  # a user and the reverse proxy wait for the response
# Per process: a slow model must not use up the web process's threads.
MAX_AT_ONCE = 8
RETRY_AFTER_SECONDS = 10
ATTEMPTS = {"ocr": 0, "postprocess": 1}
places = threading.BoundedSemaphore(MAX_AT_ONCE)


class TooManyTrials(Problem):
    status = 503
    code = "too_many_trials"
    retry_after = RETRY_AFTER_SECONDS
    detail = "Too many rules are being tested at the moment. Try again in a few seconds."


def run(rule: RuleContent, *, markdown: str) -> dict[str, Any]:
    """Return the result or error that a task would end with, after one attempt of at most MAX_SECONDS.

    Raises TooManyTrials. No database connection is held during the model call: ten trials would exhaust a pool of ten.
    """
    if not places.acquire(blocking=False):
        raise TooManyTrials
    try:
        close_old_connections()
        return process(
            rule, ocr_of(markdown), context=StageContext(seconds=min(settings.SLUICE.etl_task_timeout, MAX_SECONDS))
        )
    finally:
        places.release()


def process(rule: RuleContent, ocr: OCRResult, *, context: StageContext) -> dict[str, Any]:
    outcome: dict[str, Any]
    try:
        done = engines.processor(rule.mode).process(ocr, rule, context=context)
        outcome = {"ok": True, "result": result_of(rule, ocr, done, context=context)}
    except EtlError as error:
        outcome = {"ok": False, "error": explain(error, stage=Phase.POSTPROCESS)}
    except OutOfTime:
        outcome = {"ok": False, "error": explain(StageTimeout(), stage=Phase.POSTPROCESS)}
    spent = {"usage": context.usage.as_dict(), "warnings": [warning.as_dict() for warning in context.warnings]}
    cleaned: dict[str, Any] = artifacts.clean(outcome | spent)
    return cleaned


def result_of(rule: RuleContent, ocr: OCRResult, done: Processed, *, context: StageContext) -> dict[str, Any]:
    """Return a task's `result`, with null for its files."""
    origin = ResultOrigin(metadata=ocr.metadata, attempts=ATTEMPTS, usage=context.usage.as_dict())
    output = output_of(done, origin, rule=rule, context=context)
    return output | ({"output_s3_key": None} if "data" in output else {})


def ocr_of(markdown: str) -> OCRResult:
    """Return Markdown as an OCR result: split at page markers, or one page without them."""
    pages = tuple(pages_in(markdown)) or (Page(number=1, start=0, end=len(markdown), method="text"),)
    metadata = {"pages": len(pages), "duration_ms": 0, "version": ""}
    return OCRResult(markdown=markdown, pages=pages, provider="", provider_task_id="", metadata=metadata)


def pages_in(markdown: str) -> Iterator[Page]:
    """Yield the pages; none if markers are out of order or follow other text, so that no text is lost."""
    markers = list(MARKER.finditer(markdown))
    numbers = [int(marker["number"]) for marker in markers]
    if not markers or markdown[: markers[0].start()].strip() or any(a >= b for a, b in pairwise(numbers)):
        return
    ends = [marker.start() for marker in markers[1:]] + [len(markdown)]
    for marker, number, end in zip(markers, numbers, ends, strict=True):
        yield Page(number=number, start=marker.end(), end=end, method="text")
