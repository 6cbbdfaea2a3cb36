"""The progress of a task as four steps, each with the facts known so far."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings

from config.platform.durations import duration, precise
from config.platform.plurals import counted
from config.platform.ui.templatetags.pages import count
from etl import runstate
from etl.core.states import Stage, Status
from etl.pages import explanations
from etl.pipeline import turns
from etl.runstate import RunState

UNKNOWN = "No reason was recorded. The worker may have stopped."
PROVIDERS = {"local": "built-in", "mineru": "MinerU"}


@dataclass(slots=True, kw_only=True)
class ProgressStep:
    """A step. `tone`: done, now, failed, cancelled or later. `percent`: progress of a running stage, if known."""

    name: str
    tone: str
    note: str = ""
    percent: int | None = None
    elapsed: int | None = None  # seconds of the running attempt
    limit: str = ""  # its time limit
    failures: list[str] = field(default_factory=list)  # of earlier attempts
    facts: list[tuple[str, str]] = field(default_factory=list)


def steps_of(state: RunState, *, rule: str) -> list[ProgressStep]:
    return [pending_step(state), parsing_step(state), extraction_step(state, rule), result_step(state)]


def pending_step(state: RunState) -> ProgressStep:
    if state.status == Status.CANCELLED and stage_reached(state) is None:
        return ProgressStep(name="Pending", tone="cancelled", note="Cancelled before it started.")
    if state.status != Status.PENDING:
        return ProgressStep(name="Pending", tone="done")
    ahead = turns.count_before(state.task_id)
    note = f"{ahead:,} ahead in the queue." if ahead else "Next in the queue."
    return ProgressStep(name="Pending", tone="now", note=note)


def parsing_step(state: RunState) -> ProgressStep:
    tone = tone_of(state, Stage.OCR, Status.MINERU_PARSING)
    step = ProgressStep(name="Parsing", tone=tone, facts=facts_of_parsing(state), failures=failures(state, Stage.OCR))
    if tone == "now":
        set_time(step, state)
        step.percent = percent_of(state, 0)
        step.note = waiting_note(state) or progress_of(state, "Page") or "Reading text and recognizing pages."
    return step


def extraction_step(state: RunState, rule: str) -> ProgressStep:
    tone = tone_of(state, Stage.POSTPROCESS, Status.LLM_PROCESSING)
    step = ProgressStep(name="Extraction", tone=tone, facts=[("Rule", f"{rule}, version {state.rule_version}")])
    step.facts += facts_of_extraction(state)
    step.failures = failures(state, Stage.POSTPROCESS)
    if tone == "now":
        set_time(step, state)
        step.percent = percent_of(state, runstate.HALF)
        step.note = waiting_note(state) or progress_of(state, "Part") or "Applying the rule."
    return step


def result_step(state: RunState) -> ProgressStep:
    tone = {Status.COMPLETED: "done", Status.FAILED: "failed", Status.CANCELLED: "cancelled"}.get(state.status, "later")
    note = {"done": "Result ready.", "failed": "Failed.", "cancelled": "Cancelled."}.get(tone, "")
    return ProgressStep(name="Result", tone=tone, note=note)


def set_time(step: ProgressStep, state: RunState) -> None:
    """Set the time that the running attempt has taken, and its limit."""
    if state.token and state.began_at:
        step.elapsed = max(0, int(time.time() - state.began_at))
        step.limit = duration(settings.SLUICE.etl_task_timeout)


def failures(state: RunState, stage: Stage) -> list[str]:
    """Return the reasons for the failed attempts of a stage. A killed worker records none."""
    known = {each["attempt"]: each for each in state.metadata["failed_attempts"] if each["stage"] == stage}
    # The last attempt has failed only if the stage waits for the next one.
    waits = state.phase == stage and state.is_waiting
    ended = state.attempts[stage] - (not waits)
    shown = []
    for attempt in sorted({*known, *range(1, ended + 1)}):
        each = known.get(attempt)
        reason = f"{explanations.of_error({**each, 'retryable': True}).title}. {each['detail']}" if each else UNKNOWN
        shown.append(f"Attempt {attempt} failed: {reason}")
    return shown


def tone_of(state: RunState, stage: Stage, status: Status) -> str:
    """Return the tone of a stage. The error of a failed task names the failed stage."""
    if state.status == status:
        return "now"
    if state.status == Status.CANCELLED and stage == stage_reached(state):
        return "cancelled"
    is_done = state.status == Status.COMPLETED or (stage == Stage.OCR and bool(state.markdown_key))
    if state.status == Status.FAILED and (state.error or {}).get("stage") == stage:
        return "failed"
    return "done" if is_done else "later"


def stage_reached(state: RunState) -> Stage | None:
    """Return the last stage of a cancelled task, or None if no worker had started it."""
    if state.markdown_key:
        return Stage.POSTPROCESS
    return Stage.OCR if state.attempts[Stage.OCR] else None


def percent_of(state: RunState, beginning: int) -> int:
    """Return the progress of a stage in percent. Each stage is half of the task's progress."""
    return min(max((state.progress - beginning) * 2, 0), 100)


def progress_of(state: RunState, word: str) -> str:
    """Return the progress in pages or parts, such as `Page 3 of 10.`, if the provider reports it."""
    done, _, total = state.step.partition("/")
    return f"{word} {int(done):,} of {int(total):,}." if done.isdecimal() and total.isdecimal() else ""


def waiting_note(state: RunState) -> str:
    """Return a note on a stage that waits for a worker, or ""."""
    if not state.is_waiting:
        return ""
    seconds = state.available_at - time.time()
    if seconds >= 1 and state.attempts[state.phase]:
        return f"Attempt failed. Next attempt in {duration(seconds)}."
    return "Waiting for a worker."


# ---- Facts ----------------------------------------------------------------------------------------------------------
def facts_of_parsing(state: RunState) -> list[tuple[str, str]]:
    ocr = state.metadata["ocr"]
    facts = [attempts(state, Stage.OCR), ("Provider", PROVIDERS.get(state.provider, state.provider))]
    if state.markdown_key:
        facts += [("Pages", count(ocr.get("pages"))), ("OCR", recognized(ocr)), ("Duration", duration_of(ocr))]
    return [(name, value) for name, value in facts if value]


def recognized(ocr: dict[str, Any]) -> str:
    number = ocr.get("ocr_pages")
    return counted(number, "page") if isinstance(number, int) and number else ""


def duration_of(ocr: dict[str, Any]) -> str:
    spent = ocr.get("duration_ms")
    return precise(timedelta(milliseconds=spent)) if isinstance(spent, int | float) else ""


def facts_of_extraction(state: RunState) -> list[tuple[str, str]]:
    post, usage = state.metadata["postprocess"], state.metadata["postprocess"]["usage"]
    facts = [attempts(state, Stage.POSTPROCESS), ("Strategy", post["strategy"] or ""), ("Model", post["model"] or "")]
    if usage.get("calls"):
        facts += [("Calls", count(usage["calls"])), ("Tokens", tokens_of(usage))]
    if (earlier := post["earlier_usage"]).get("calls"):
        facts.append(("Earlier runs", f"{counted(earlier['calls'], 'call')}, {tokens_of(earlier)}"))
    return [(name, value) for name, value in facts if value]


def tokens_of(usage: dict[str, int]) -> str:
    return f"{count(usage['prompt_tokens'])} in, {count(usage['completion_tokens'])} out"


def attempts(state: RunState, stage: Stage) -> tuple[str, str]:
    number, max_attempts = state.attempts[stage], runstate.max_attempts(stage)
    return "Attempt", f"{number} of {max(number, max_attempts)}" if number else ""
