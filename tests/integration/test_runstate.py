"""Atomic transitions of the run-state in Redis. B3, B4, B6, B10."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import SecretStr

from etl import runstate
from etl.core.stage_context import USAGE_FIELDS, Usage
from etl.core.states import Stage
from etl.models import Task
from etl.runstate import RunState, Verdict, script, transitions
from tests.broker import valkey
from tests.conftest import change_settings
from tests.waiting import expect_within

pytestmark = pytest.mark.usefixtures("empty_redis")

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def row(task_id: int = 17, **changes: Any) -> Task:
    """Return an unsaved row, which is enough to create a run-state."""
    fields: dict[str, Any] = {
        "task_id": task_id,
        "uuid": "",
        "user_id": 3,
        "rule_id": 5,
        "rule_version": 2,
        "filename": "Grüße.txt",
        "kind": "txt",
        "size": 12,
        "document_key": "etl/documents/a.txt",
        "created_at": WHEN,
        "updated_at": WHEN,
    }
    return Task(**(fields | changes))


def make_state(task_id: int = 17, **changes: Any) -> RunState:
    runstate.create(row(task_id, **changes), stage=Stage.OCR)
    return read_state(task_id)


def read_state(task_id: int = 17) -> RunState:
    state = runstate.read(task_id)
    assert state
    return state


def started(stage: Stage = Stage.OCR) -> RunState:
    state = runstate.start(17, stage=stage).state
    assert state
    return state


def advanced() -> RunState:
    make_state()
    state = runstate.advance(started(), markdown_key="m.md", provider="local").state
    assert state
    return state


def lose_lease(task_id: int = 17) -> None:
    valkey().hset(runstate.key_of(task_id), "lease_until", 1)


def test_a_new_run_state_matches_its_row() -> None:
    """B1, B3: it is pending in the stage ocr with progress 0. Its key has the prefix and a time to live."""
    state = make_state()

    assert (state.status, state.phase, state.progress) == ("pending", "ocr", 0)
    assert (state.task_id, state.user_id, state.rule_id, state.rule_version) == (17, 3, 5, 2)
    assert (state.filename, state.created_at, state.generation, state.revision) == ("Grüße.txt", WHEN, 1, 1_000_000)
    assert valkey().hget("etl:task:17", "status") == b"pending"
    assert {b"status", b"phase", b"progress", b"job_id"} <= set(valkey().hkeys("etl:task:17"))
    assert 86_000 < valkey().ttl("etl:task:17") <= 86_400


def test_a_missing_run_state_is_none() -> None:
    make_state()
    assert runstate.read(18) is None
    assert runstate.read_many([16, 17, 18]).keys() == {17}
    assert runstate.read_many([]) == {}


def test_a_task_runs_from_pending_to_its_end() -> None:
    """B3, B4."""
    make_state()
    ocr = started()
    assert (ocr.status, ocr.attempts, ocr.started) == ("mineru_parsing", {"ocr": 1, "postprocess": 0}, True)
    runstate.record_progress(ocr, 30)
    post = runstate.advance(ocr, markdown_key="m.md", provider="local", ocr=json.dumps({"pages": 2})).state
    assert post
    assert (post.status, post.phase, post.progress, post.token) == ("llm_processing", "postprocess", 50, "")
    holder = started(Stage.POSTPROCESS)
    end = runstate.complete(holder, result={"a": 1}, usage={"calls": 2}, postprocess='{"model": "m"}').state
    assert end
    assert (end.status, end.progress, end.result) == ("completed", 100, {"a": 1})
    assert end.metadata == {
        "attempts": {"ocr": 1, "postprocess": 1},
        "artifact_mineru_markdown_key": "m.md",
        "provider": "local",
        "provider_task_id": None,
        "ocr": {"pages": 2},
        "postprocess": {
            "strategy": None,
            "model": "m",
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 2},
            "earlier_usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
        },
        "warnings": [],
        "failed_attempts": [],
    }
    assert read_state() == end
    assert 3_500 < valkey().ttl("etl:task:17") <= 3_600


def test_revisions_grow_with_every_visible_change() -> None:
    make_state()
    states = [read_state(), state := started()]
    runstate.record_progress(state, 10)
    states.append(read_state())
    runstate.record_progress(state, 9)
    runstate.renew(state)
    states.append(read_state())
    runstate.create(row(generation=2), stage=Stage.OCR)
    states.append(read_state())

    revisions = [state.revision for state in states]
    assert revisions == sorted(set(revisions))
    assert states[-1].revision == 2_000_000


def test_progress_never_decreases() -> None:
    """B3: pages can be reported in any order."""
    make_state()
    state = started()
    for percent in (30, 20):
        runstate.record_progress(state, percent)
    assert read_state().progress == 30


# ---- Leases ---------------------------------------------------------------------------------------------------------
def test_one_of_many_concurrent_starts_wins() -> None:
    make_state()
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: runstate.start(17, stage=Stage.OCR).verdict, range(16)))
    assert sorted(set(verdicts)) == ["held", "moved"]
    assert verdicts.count(Verdict.MOVED) == 1
    assert read_state().attempts["ocr"] == 1


def test_an_expired_lease_can_be_taken_and_its_holder_is_fenced_off() -> None:
    make_state()
    late = started()
    lose_lease()
    now = started()

    assert now.attempts["ocr"] == 2
    assert runstate.renew(late) is Verdict.LOST
    assert runstate.record_progress(late, 40) is Verdict.LOST
    assert runstate.wait(late, delay=1, wakes_up=True) is Verdict.LOST
    assert runstate.release(late) is Verdict.LOST
    assert runstate.advance(late, markdown_key="late.md").verdict is Verdict.LOST
    assert runstate.fail(late, error={}, usage={}).verdict is Verdict.LOST
    assert read_state() == now


def test_an_expired_lease_can_be_renewed_until_it_is_taken() -> None:
    make_state()
    state = started()
    lose_lease()
    assert runstate.renew(state) is Verdict.MOVED
    assert runstate.start(17, stage=Stage.OCR).verdict is Verdict.HELD


def test_attempts_are_counted_up_to_the_maximum() -> None:
    make_state()
    for _ in range(3):
        started()
        lose_lease()
    answer = runstate.start(17, stage=Stage.OCR)
    assert answer.verdict is Verdict.SPENT
    assert answer.state
    assert answer.state.attempts["ocr"] == 3
    assert runstate.start(17, stage=Stage.OCR).verdict is Verdict.HELD  # by the caller above, which has to end it
    assert runstate.fail(answer.state, error={"code": "x"}, usage={}).moved
    assert read_state().status == "failed"


def test_a_task_in_backoff_does_not_start() -> None:
    make_state()
    state = started()
    assert runstate.wait(state, delay=3000, wakes_up=True) is Verdict.MOVED
    early = runstate.start(17, stage=Stage.OCR)
    assert early.verdict is Verdict.EARLY
    assert 2970 < early.seconds <= 3000
    assert read_state().status == "mineru_parsing"
    valkey().hset(runstate.key_of(17), "available_at", 1)
    assert started().attempts["ocr"] == 2


def test_graceful_shutdown_does_not_count_as_an_attempt() -> None:
    make_state()
    runstate.release(started())
    assert read_state().attempts["ocr"] == 0
    assert started().attempts["ocr"] == 1


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_an_ended_task_does_not_change(end: str) -> None:
    """B3, B4."""
    make_state()
    if end == "cancel":
        state = read_state()
        runstate.cancel(17, generation=1)
    else:
        runstate.advance(started(), markdown_key="m.md")
        state = started(Stage.POSTPROCESS)
        if end == "complete":
            runstate.complete(state, result={}, usage={})
        else:
            runstate.fail(state, error={}, usage={})
    before = read_state()

    for stage in Stage:
        assert runstate.start(17, stage=stage).verdict is Verdict.OVER
    assert runstate.cancel(17, generation=1).verdict is Verdict.OVER
    assert runstate.renew(state) is Verdict.OVER
    assert runstate.fail(state, error={}, usage={}).verdict is Verdict.OVER
    runstate.record_message(17, job_id="late")
    assert runstate.create(row(), stage=Stage.OCR).verdict is Verdict.SAME
    assert read_state() == before


def test_a_late_write_of_the_previous_stage_changes_nothing() -> None:
    """B3: a late mineru_parsing cannot follow llm_processing."""
    make_state()
    late = started()
    runstate.advance(late, markdown_key="m.md")
    before = read_state()

    assert runstate.start(17, stage=Stage.OCR).verdict is Verdict.PASSED
    assert runstate.record_progress(late, 99) is Verdict.PASSED
    assert runstate.renew(late) is Verdict.PASSED
    assert read_state() == before


def test_post_processing_does_not_start_before_ocr_has_ended() -> None:
    make_state()
    assert runstate.start(17, stage=Stage.POSTPROCESS).verdict is Verdict.BEHIND


def test_running_tasks_are_not_cancelled() -> None:
    """B6."""
    make_state()
    assert runstate.cancel(17, generation=1).moved
    assert read_state().status == "cancelled"
    make_state(18)
    runstate.start(18, stage=Stage.OCR)
    assert runstate.cancel(18, generation=1).verdict is Verdict.STARTED
    runstate.create(row(19), stage=Stage.OCR, started=True)
    assert runstate.cancel(19, generation=1).verdict is Verdict.STARTED
    assert runstate.cancel(20, generation=1).verdict is Verdict.GONE


def test_a_concurrent_cancel_and_start_have_exactly_one_winner() -> None:
    """B6: 200 races."""
    with ThreadPoolExecutor(2) as pool:
        for task_id in range(1, 201):
            make_state(task_id)
            together = threading.Barrier(2)

            def race(move: Any, together: threading.Barrier = together) -> Any:
                together.wait()
                return move()

            cancel = pool.submit(race, partial(runstate.cancel, task_id, generation=1))
            start = pool.submit(race, partial(runstate.start, task_id, stage=Stage.OCR))
            assert [cancel.result().verdict, start.result().verdict] in (["moved", "over"], ["started", "moved"])


# ---- Generations ----------------------------------------------------------------------------------------------------
def test_only_a_greater_generation_replaces_a_run_state() -> None:
    """B7, B10."""
    make_state()
    old = started()
    assert runstate.create(row(generation=3), stage=Stage.POSTPROCESS).moved
    assert runstate.create(row(generation=2), stage=Stage.OCR).verdict is Verdict.NEWER
    assert runstate.renew(old) is Verdict.NEWER
    assert runstate.cancel(17, generation=2).verdict is Verdict.NEWER
    assert runstate.cancel(17, generation=4).verdict is Verdict.STALE
    assert (read_state().generation, read_state().phase, read_state().attempts["ocr"]) == (3, "postprocess", 0)


def test_without_a_run_state_no_write_succeeds() -> None:
    """B10: after a flush, no late write recreates part of a run-state."""
    make_state()
    state = started()
    valkey().flushall()

    assert runstate.start(17, stage=Stage.OCR).verdict is Verdict.GONE
    assert runstate.renew(state) is Verdict.GONE
    runstate.record_usage(state, Usage(calls=1))
    runstate.record_message(17, job_id="late")
    assert runstate.complete(state, result={}, usage={}).verdict is Verdict.GONE
    assert not valkey().keys("*")


def test_an_evicted_script_is_loaded_again() -> None:
    make_state()
    valkey().script_flush()
    assert runstate.start(17, stage=Stage.OCR).moved
    valkey().script_flush()
    assert runstate.find_due([row()])[17].verdict is Verdict.HELD


def test_a_repeated_transition_is_applied_once() -> None:
    """If a reply is lost, the client sends the same transition again."""
    make_state()
    state = started()
    arguments = script.encoded({**transitions.lease_conditions(state), "increase": {"calls": 1}, "visible": True})
    _, compare_and_advance = script.redis()
    replies = [compare_and_advance(keys=[runstate.key_of(17)], args=[arguments]) for _ in range(3)]

    assert [reply[0] for reply in replies] == ["moved"] * 3
    assert read_state().usage["calls"] == 1


def test_a_repeated_transition_gets_the_same_reply_after_other_transitions() -> None:
    """B2: a reply is lost, and other clients make transitions before the first client repeats its own."""
    make_state()
    answers = []
    for _ in range(2):
        answers.append(runstate.start(17, stage=Stage.OCR, transition_id="a"))
        runstate.record_message(17, job_id="late")
    assert [answer.verdict for answer in answers] == ["moved", "moved"]
    first, again = (answer.state for answer in answers)
    assert first
    assert again
    assert first.token == again.token
    assert (read_state().attempts["ocr"], read_state().job_id) == (1, "late")
    for _ in range(2):
        assert runstate.advance(first, markdown_key="m.md", transition_id="b").moved
    assert runstate.advance(first, markdown_key="m.md", transition_id="c").verdict is Verdict.PASSED
    for _ in range(20):
        runstate.renew(started(Stage.POSTPROCESS))
        lose_lease()
        valkey().hset(runstate.key_of(17), "attempts_postprocess", 0)
    assert runstate.advance(first, markdown_key="m.md", transition_id="b").verdict is Verdict.PASSED, "too long ago"
    assert len(valkey().hget(runstate.key_of(17), "last_moves") or b"") <= 256


def test_a_repeated_start_without_attempts_gets_the_same_reply() -> None:
    make_state()
    valkey().hset(runstate.key_of(17), "attempts_ocr", 3)
    for _ in range(2):
        assert runstate.start(17, stage=Stage.OCR, transition_id="a").verdict is Verdict.SPENT


def test_a_run_state_of_a_later_generation_is_not_deleted() -> None:
    """B7."""
    make_state(generation=2)
    runstate.cancel(17, generation=2)
    assert not runstate.forget(17, generation=1)
    assert read_state().status == "cancelled"
    for _ in range(2):
        assert runstate.forget(17, generation=2)
    assert runstate.read(17) is None


# ---- Unreadable run-states ------------------------------------------------------------------------------------------
def corrupt(task_id: int, how: str) -> None:
    key, redis = runstate.key_of(task_id), valkey()
    if how == "another type":
        redis.delete(key)
        redis.set(key, "x")
    elif how == "no such field":
        redis.hdel(key, "size")
    else:
        field, _, value = how.partition("=")
        redis.hset(key, field, value.encode("latin-1"))


CORRUPTIONS = [
    *("another type", "no such field", "status=odd", "phase=", "fence=one", "attempts_ocr=x", "progress=1e"),
    *("ocr={", "postprocess=[]", "created_at=inf", "user_id=\xff"),
]


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_an_unreadable_run_state_counts_as_missing(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """B10: other run-states are still read, and the unreadable one can be recreated."""
    script.log_unreadable.cache_clear()
    for task_id in (16, 17, 18):
        make_state(task_id)
        valkey().hset(runstate.key_of(task_id), "hinted_at", 1)
    corrupt(17, how)
    for _ in range(3):
        assert runstate.read_many([16, 17, 18]).keys() == {16, 18}
    answers = runstate.find_due([row(16), row(17), row(18)])
    assert [answer.verdict for answer in answers.values()] == ["moved", "gone", "moved"]
    runstate.mark_unsent([16, 17, 18])
    assert runstate.start(17, stage=Stage.OCR).state is None
    assert runstate.cancel(17, generation=1).verdict in {Verdict.GONE, Verdict.STARTED}
    assert runstate.create(row(generation=2), stage=Stage.OCR).moved
    assert started().generation == 2
    assert len([line for line in caplog.messages if "run_state_unreadable" in line]) == 1


def test_active_run_states_are_found_among_other_keys(settings: LazySettings) -> None:
    change_settings(settings, etl_redis_prefix="odd[*]?:")
    for task_id in range(1, 41):
        make_state(task_id)
    for task_id in range(1, 11):
        runstate.cancel(task_id, generation=1)
    corrupt(11, "another type")
    corrupt(12, "status=odd")
    for key in ("odd[*]?:task:x", "odd[*]?:recovery", "oddy:task:5", "task:5"):
        valkey().set(key, "x")
    found = [task_id for batch in runstate.scan_open(size=7, max_batches=100) for task_id in batch]
    assert set(found) == set(range(13, 41))
    assert sum(1 for _ in runstate.scan_open(size=7, max_batches=2)) <= 2


# ---- Facts ----------------------------------------------------------------------------------------------------------
def test_usage_adds_up_over_attempts_and_never_decreases() -> None:
    """B17: the tokens of all attempts are counted."""
    advanced()
    for _ in range(2):
        state = started(Stage.POSTPROCESS)
        runstate.record_usage(state, Usage(prompt_tokens=10, completion_tokens=2, calls=1))
        lose_lease()
    end = runstate.fail(started(Stage.POSTPROCESS), error={}, usage={"prompt_tokens": 15, "calls": 7}).state
    assert end
    assert end.metadata["postprocess"]["usage"] == {"prompt_tokens": 20, "completion_tokens": 4, "calls": 7}


def test_a_large_result_is_not_kept_in_redis() -> None:
    advanced()
    result = {"data": "x" * (transitions.RESULT_BYTES + 1)}
    end = runstate.complete(started(Stage.POSTPROCESS), result=result, usage={}).state
    assert end
    assert (end.status, end.result, end.result_is_elsewhere) == ("completed", None, True)
    assert runstate.read(17) is None  # the row has it
    assert (valkey().memory_usage(runstate.key_of(17)) or 0) < 20_000


def test_a_run_state_created_from_an_ended_row_matches_the_row() -> None:
    ended = row(status="failed", error={"code": "x"}, progress=50, metadata={"attempts": {"ocr": 2}}, generation=4)
    runstate.create(ended, stage=Stage.POSTPROCESS)
    expected = replace(RunState.of_row(ended), phase=Stage.POSTPROCESS, usage=dict.fromkeys(USAGE_FIELDS, 0))
    assert read_state() == expected
    assert valkey().ttl("etl:task:17") <= 3_600


def due_verdict() -> Verdict:
    return runstate.find_due([row()])[17].verdict


# ---- Wake-ups -------------------------------------------------------------------------------------------------------
def test_a_wake_up_is_due_if_none_was_sent_recently(settings: LazySettings) -> None:
    """A lost message is sent again, but a long queue does not fill with copies."""
    make_state()
    assert due_verdict() is Verdict.WAITING
    gaps = []
    for _ in range(5):
        now = float(valkey().time()[0])
        for gap in (30, 60, 120, 240):
            valkey().hset(runstate.key_of(17), "hinted_at", now - gap - 1)
            if due_verdict() is Verdict.MOVED:
                gaps.append(gap)
                break
    assert gaps == [30, 60, 120, 120, 120]
    runstate.start(17, stage=Stage.OCR)
    assert due_verdict() is Verdict.HELD
    lose_lease()
    assert due_verdict() is Verdict.WAITING
    valkey().hset(runstate.key_of(17), "hinted_at", float(valkey().time()[0]) - 31)
    assert due_verdict() is Verdict.MOVED, "a start resets the pauses"


def test_wake_ups_that_were_not_sent_are_due_again() -> None:
    make_state()
    runstate.mark_unsent([17, 99])
    assert runstate.find_due([row()])[17].verdict is Verdict.MOVED
    assert runstate.read(99) is None


def test_recovery_extends_the_run_state_of_an_open_task() -> None:
    make_state()
    make_state(18)
    runstate.cancel(18, generation=1)
    for task_id in (17, 18):
        valkey().expire(runstate.key_of(task_id), 60)
    runstate.find_due([row(17), row(18), row(19)])
    assert valkey().ttl(runstate.key_of(17)) > 1_000
    assert valkey().ttl(runstate.key_of(18)) <= 60


# ---- Redis outages --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_a_redis_outage_is_reported_in_bounded_time(settings: LazySettings, silent_redis: str, kind: str) -> None:
    url = silent_redis if kind == "silent" else "redis://127.0.0.1:1/0"
    change_settings(settings, etl_redis_url=SecretStr(url))

    def read() -> None:
        with pytest.raises(runstate.Unavailable):
            runstate.read(17)

    expect_within(2.5, read)


# ---- Any order ------------------------------------------------------------------------------------------------------
ENDED = {"completed", "failed", "cancelled"}
ORDER = {"ocr": 1, "postprocess": 2}
# The statuses before each transition. They matter for holders of a lost run-state, because the recreated one is
# pending.
BEFORE = {"advance": {"mineru_parsing"}, "complete": {"llm_processing"}, "fail": {"mineru_parsing", "llm_processing"}}


@dataclass
class Model:
    """A simple model of a run-state without concurrency.

    `is_live`: the lease has not expired. `is_due`: the task is not in backoff.
    """

    exists: bool = False
    generation: int = 1
    status: str = "pending"
    phase: str = "ocr"
    progress: int = 0
    attempts: dict[str, int] = field(default_factory=lambda: {"ocr": 0, "postprocess": 0})
    started: bool = False
    token: str = ""
    is_live: bool = False
    is_due: bool = True

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def refuses(self, *, generation: int | None, stage: str | None) -> str | None:
        """Return the verdict if the transition is refused regardless of its caller, or None."""
        if not self.exists:
            return "gone"
        if generation is not None and generation != self.generation:
            return "newer" if self.generation > generation else "stale"
        if self.has_ended:
            return "over"
        if stage is not None and stage != self.phase:
            return "passed" if ORDER[self.phase] > ORDER[stage] else "behind"
        return None

    def start(self, stage: str) -> str:
        if refused := self.refuses(generation=None, stage=stage):
            return refused
        if self.token and self.is_live:
            return "held"
        if not self.is_due:
            return "early"
        self.token, self.is_live = "new", True
        if self.attempts[stage] == 3:
            return "spent"
        self.status = "mineru_parsing" if stage == "ocr" else "llm_processing"
        self.attempts[stage] += 1
        self.started, self.is_due = True, True
        return "moved"

    def cancel(self, generation: int) -> str:
        if refused := self.refuses(generation=generation, stage=None):
            return refused
        is_held = self.token and self.is_live
        if self.started and (self.status != "llm_processing" or is_held):
            return "started"
        if self.status not in {"pending", "llm_processing"}:
            return "elsewhere"
        self.status, self.token = "cancelled", ""
        return "moved"

    def act(self, action: str, holder: RunState, percent: int) -> str:
        if refused := self.refuses(generation=holder.generation, stage=holder.phase):
            return refused
        if self.status not in BEFORE.get(action, {self.status}):
            return "elsewhere"
        if self.token != holder.token:
            return "lost"
        getattr(self, f"do_{action}")(percent)
        return "moved"

    def do_renew(self, _percent: int) -> None:
        self.is_live = True

    def do_progress(self, percent: int) -> None:
        self.progress = max(self.progress, percent)

    def do_advance(self, _percent: int) -> None:
        self.status, self.phase, self.progress = "llm_processing", "postprocess", max(self.progress, 50)
        self.token, self.is_due = "", True

    def do_complete(self, _percent: int) -> None:
        self.status, self.progress, self.token = "completed", 100, ""

    def do_fail(self, _percent: int) -> None:
        self.status, self.token = "failed", ""

    def do_wait(self, _percent: int) -> None:
        self.token, self.is_due = "", False

    def do_release(self, _percent: int) -> None:
        self.token, self.is_due = "", True
        self.attempts[self.phase] -= 1


class ModelComparison:
    """Comparison of a run-state with the model after the same transitions."""

    def __init__(self) -> None:
        valkey().flushdb()
        self.generation = 1
        self.holders: list[RunState] = []
        self.was_created = False
        self.model = Model()
        self.create()

    def apply(self, action: str, number: int) -> None:
        before = runstate.read(17)
        getattr(self, action, partial(self.act, action))(number)
        after = runstate.read(17)
        self.compare(after)
        if before and after and before.generation == after.generation:
            assert shown(after) == shown(before) or after.revision > before.revision
            assert after.revision >= before.revision

    def compare(self, state: RunState | None) -> None:
        assert (state is not None) == self.model.exists
        if state:
            names = ("generation", "status", "phase", "progress", "attempts", "started", "token")
            assert {name: getattr(state, name) for name in names} == {name: getattr(self.model, name) for name in names}

    # ---- Transitions
    def create(self, _number: int = 0) -> None:
        started = self.was_created
        verdict = runstate.create(row(generation=self.generation), stage=Stage.OCR, started=started).verdict
        if self.model.exists and self.model.generation == self.generation:
            assert verdict == "same"
        else:
            assert verdict == "moved"
            self.model = Model(exists=True, generation=self.generation, started=started)
        self.was_created = True

    def retry(self, number: int) -> None:
        if self.model.exists and self.model.has_ended:
            self.generation += 1
            self.create(number)

    def late_create(self, _number: int) -> None:
        if self.generation > 1 and self.model.exists:
            assert runstate.create(row(generation=self.generation - 1), stage=Stage.OCR).verdict == "newer"

    def start_ocr(self, _number: int) -> None:
        self.start(Stage.OCR)

    def start_post(self, _number: int) -> None:
        self.start(Stage.POSTPROCESS)

    def start(self, stage: Stage) -> None:
        answer = runstate.start(17, stage=stage)
        assert answer.verdict == self.model.start(stage)
        if self.model.token == "new":
            assert answer.state
            self.model.token = answer.state.token
            self.holders.append(answer.state)

    def cancel(self, _number: int) -> None:
        assert runstate.cancel(17, generation=self.generation).verdict == self.model.cancel(self.generation)

    def act(self, action: str, number: int) -> None:
        if number < len(self.holders):
            holder, percent = self.holders[-1 - number], number * 20
            assert verdict_of(action, holder, percent) == self.model.act(action, holder, percent)

    def lose(self, _number: int) -> None:
        if self.model.exists and not self.model.has_ended:
            lose_lease()
            self.model.is_live = False

    def due(self, _number: int) -> None:
        if self.model.exists and not self.model.has_ended:
            valkey().hset(runstate.key_of(17), "available_at", 0)
            self.model.is_due = True

    def find_due(self, _number: int) -> None:
        runstate.find_due([row(generation=self.generation)])
        runstate.record_message(17, job_id="a")

    def flush(self, _number: int) -> None:
        valkey().flushdb()
        self.model.exists = False


def verdict_of(action: str, holder: RunState, percent: int) -> str:
    acts: dict[str, Callable[[], Any]] = {
        "advance": lambda: runstate.advance(holder, markdown_key="m.md").verdict,
        "complete": lambda: runstate.complete(holder, result={}, usage={}).verdict,
        "fail": lambda: runstate.fail(holder, error={}, usage={}).verdict,
        "wait": lambda: runstate.wait(holder, delay=60, wakes_up=False),
        "release": lambda: runstate.release(holder),
        "renew": lambda: runstate.renew(holder),
        "progress": lambda: runstate.record_progress(holder, percent),
    }
    return str(acts[action]())


def shown(state: RunState) -> tuple[Any, ...]:
    return (state.status, state.phase, state.progress, state.attempts, state.error, state.result, state.metadata)


# The regular transitions are more likely than others, so that most sequences make progress.
ACTIONS = [
    *["start_ocr", "advance", "start_post"] * 3,
    *["progress", "complete", "fail", "wait", "release", "renew", "lose"] * 2,
    *["cancel", "due", "find_due", "create", "late_create", "retry", "flush"],
]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from([0, 0, 0, 1, 2, 4])), max_size=40))
@examples(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_run_states_match_the_model_after_any_sequence_of_actions(actions: list[tuple[str, int]]) -> None:
    """B3, B6: also with repeated transitions, late transitions of fenced holders, and lost run-states. In the model, no
    task goes back to an earlier state, ended tasks stay ended, and cancelled tasks never start.
    """
    comparison = ModelComparison()
    for action, number in actions:
        comparison.apply(action, number)
