"""How far a task is, in the words of people: four steps, each with what is known of it."""

import time
from dataclasses import dataclass, field
from typing import Any

from config.platform.ui.templatetags.pages import count, duration
from etl import runstate
from etl.core.states import Phase, Status
from etl.models import Task
from etl.runstate import RunState

MILLISECONDS = 1000
PROVIDERS = {"local": "this service itself", "mineru": "MinerU"}


@dataclass(slots=True, kw_only=True)
class Step:
    """`tone`: done, now, failed, cancelled or later. `percent`: of a stage that goes on, where it is known."""

    name: str
    tone: str
    said: str = ""
    percent: int | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)


def steps_of(state: RunState, *, rule: str) -> list[Step]:
    return [waiting(state), reading(state), extracting(state, rule), done(state)]


def waiting(state: RunState) -> Step:
    if state.status == Status.CANCELLED:
        return Step(name="Waiting", tone="cancelled", said="Withdrawn before it began.")
    if state.status != Status.PENDING:
        return Step(name="Waiting", tone="done")
    ahead = Task.objects.open().filter(pk__lt=state.task_id).order_by().count()
    return Step(
        name="Waiting", tone="now", said=f"{ahead:,} accepted before it have not ended." if ahead else "It is next."
    )


def reading(state: RunState) -> Step:
    tone = tone_of(state, Phase.OCR, Status.MINERU_PARSING)
    step = Step(name="Reading", tone=tone, facts=facts_of_reading(state))
    if tone == "now":
        step.percent = share(state, 0)
        step.said = next_try(state) or counted(state, "Page") or "Its text is read, or its pages are recognised."
    return step


def extracting(state: RunState, rule: str) -> Step:
    tone = tone_of(state, Phase.POSTPROCESS, Status.LLM_PROCESSING)
    step = Step(name="Extracting", tone=tone, facts=[("Rule", f"{rule}, version {state.rule_version}")])
    step.facts += facts_of_extracting(state)
    if tone == "now":
        step.percent = share(state, runstate.HALF)
        step.said = next_try(state) or counted(state, "Part") or "The rule is applied to what was read."
    return step


def done(state: RunState) -> Step:
    tone = {Status.COMPLETED: "done", Status.FAILED: "failed", Status.CANCELLED: "cancelled"}.get(state.status, "later")
    said = {"done": "It is ready.", "failed": "It failed.", "cancelled": "It was cancelled."}.get(tone, "")
    return Step(name="Done", tone=tone, said=said)


def tone_of(state: RunState, phase: Phase, status: Status) -> str:
    """Return where a stage stands. The stage of a failure is the one that the error names."""
    if state.status == status:
        return "now"
    is_done = state.status == Status.COMPLETED or (phase == Phase.OCR and bool(state.markdown_key))
    if state.status == Status.FAILED and (state.error or {}).get("stage") == phase:
        return "failed"
    return "done" if is_done else "later"


def share(state: RunState, beginning: int) -> int:
    """Return how much of a stage is done: each has half of the task's hundred percent."""
    return min(max((state.progress - beginning) * 2, 0), 100)


def counted(state: RunState, word: str) -> str:
    """Tell how many pages, or parts, are done, where the provider has said so: `Page 3 of 10.`"""
    done, _, total = state.step.partition("/")
    return f"{word} {int(done):,} of {int(total):,}." if done.isdecimal() and total.isdecimal() else ""


def next_try(state: RunState) -> str:
    """Tell when the next attempt begins, of a stage that waits for it."""
    seconds = state.available_at - time.time()
    if state.token or seconds < 1 or not state.attempts[state.phase]:
        return ""
    return f"That did not work. It is tried again in {duration(seconds)}."


# ---- Facts ----------------------------------------------------------------------------------------------------------
def facts_of_reading(state: RunState) -> list[tuple[str, str]]:
    ocr = state.metadata["ocr"]
    facts = [attempts(state, Phase.OCR), ("By", PROVIDERS.get(state.provider, state.provider))]
    if state.markdown_key:
        facts += [("Pages", count(ocr.get("pages"))), ("Of these", recognised(ocr)), ("Took", took(ocr))]
    return [(name, said) for name, said in facts if said]


def recognised(ocr: dict[str, Any]) -> str:
    number = ocr.get("ocr_pages")
    return f"{number:,} by OCR" if isinstance(number, int) and number else ""


def took(ocr: dict[str, Any]) -> str:
    spent = ocr.get("duration_ms")
    if not isinstance(spent, int | float):
        return ""
    return f"{spent:.0f} ms" if spent < MILLISECONDS else duration(spent / MILLISECONDS)


def facts_of_extracting(state: RunState) -> list[tuple[str, str]]:
    post, usage = state.metadata["postprocess"], state.metadata["postprocess"]["usage"]
    facts = [attempts(state, Phase.POSTPROCESS), ("How", post["strategy"] or ""), ("Model", post["model"] or "")]
    if usage.get("calls"):
        tokens = f"{count(usage['prompt_tokens'])} in, {count(usage['completion_tokens'])} out"
        facts += [("Calls", count(usage["calls"])), ("Tokens", tokens)]
    return [(name, said) for name, said in facts if said]


def attempts(state: RunState, phase: Phase) -> tuple[str, str]:
    number, most = state.attempts[phase], runstate.most_attempts(phase)
    return "Attempt", f"{number} of {max(number, most)}" if number else ""
