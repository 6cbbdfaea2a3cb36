"""Model-based test of tasks: random sequences of actions of workers, users, and recovery, and of losses of data.
B2, B3, B6, B7, B10.

`test_runstate.py` compares each transition of one run-state with a model. This test has several tasks with rows and
artifacts, and covers inconsistencies between the stores: ends that are not in the row, a Redis that loses data or is
restored from an older copy, recovery, cancellation, retry, and workers of earlier runs.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from etl import runstate
from etl.core.states import Stage
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline import actions, artifacts, completion, execution
from etl.providers.base import OCRResult
from etl.runstate import RunState, TransitionResult
from rules.models import Rule
from tests.broker import valkey
from tests.conftest import change_settings
from tests.integration.etl_factories import make_rule
from tests.integration.test_runstate import ENDED, Model, lose_lease

HOUR = 3600
FOUND = OCRResult(markdown="# Read", pages=(), provider="local", provider_task_id="", metadata={"pages": 0})


@dataclass
class ExpectedTask:
    """The expected row, run-state, and stored OCR results of a task."""

    state: Model
    status: str = "pending"
    generation: int = 1
    ocr_run: int = 1
    stored: set[int] = field(default_factory=set)
    holders: list[RunState] = field(default_factory=list)
    copy: tuple[bytes, Model] | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_open_in_redis(self) -> bool:
        return self.state.exists and not self.state.has_ended

    def record(self) -> None:
        """Expect the end of the run-state in the row."""
        if not self.has_ended and self.generation == self.state.generation:
            self.status = self.state.status
        else:
            self.correct()

    def correct(self) -> None:
        if self.has_ended and self.state.exists:
            self.state = Model(exists=True, generation=self.generation, status=self.status)

    def recreate(self) -> None:
        self.generation += not self.state.exists
        self.state = Model(exists=True, generation=self.generation, started=True)
        if self.ocr_run in self.stored:
            self.state.status, self.state.phase = "llm_processing", "postprocess"


class Documents(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    user: ClassVar[User]
    rule_of_all: ClassVar[Rule]

    def __init__(self) -> None:
        super().__init__()
        Task.objects.all().delete()
        valkey().flushdb()
        self.known: dict[int, ExpectedTask] = {}

    @initialize(target=tasks)
    def begin(self) -> Any:
        return self.make(is_sent=True)

    @precondition(lambda self: len(self.known) < 3)
    @rule(target=tasks, is_sent=st.booleans())
    def make(self, *, is_sent: bool) -> int:
        """Create a row and, unless the process dies in between (`is_sent` is False), a run-state."""
        row = Task.objects.create(
            user=self.user, rule=self.rule_of_all, rule_version=1, filename="a", kind="txt", size=1, document_key="none"
        )
        self.known[row.pk] = ExpectedTask(Model())
        if is_sent:
            self.create_late(row.pk)
        return row.pk

    @rule(task=tasks)
    def create_late(self, task: int) -> None:
        """Create the run-state of a task whose submission was delayed."""
        known = self.known[task]
        if known.generation == 1 and not known.has_ended:
            made = runstate.create(Task.objects.get(pk=task), stage=Stage.OCR).moved
            assert made == (not known.state.exists)
            known.state = Model(exists=True) if made else known.state

    # ---- Workers
    @rule(task=tasks, stage=st.sampled_from(Stage))
    def start(self, task: int, stage: Stage) -> None:
        """Start a stage like a worker that has received a wake-up message. It reads the row first."""
        known = self.known[task]
        row = execution.find_open(task)
        assert (row is None) == known.has_ended
        if row is None:
            known.correct()
            return
        answer = runstate.start(task, stage=stage, generation=row.generation, uuid=row.uuid)
        expected = known.state.refuses(generation=row.generation, stage=None) or known.state.start(stage)
        assert answer.verdict == expected
        if expected in {"moved", "spent"}:
            assert answer.state
            known.state.token = answer.state.token
            known.holders.append(answer.state)

    @rule(task=tasks)
    def work(self, task: int) -> None:
        """Run the next stage to its end, so that most sequences make progress."""
        stage = Stage(self.known[task].state.phase)
        self.start(task, stage)
        if stage == Stage.OCR:
            self.advance(task, 0)
        else:
            self.end(task, 0, "complete", is_recorded=True)

    def holder(self, task: int, age: int) -> RunState | None:
        """Return the newest holder of the lease, or with `age` an older holder that has not noticed the loss."""
        holders = self.known[task].holders
        return holders[-1 - age] if age < len(holders) else None

    @rule(task=tasks, age=st.integers(0, 2))
    def advance(self, task: int, age: int) -> None:
        if holder := self.holder(task, age):
            stored = artifacts.store_ocr(holder, FOUND, warnings=[], attempts=1, check=lambda: None)
            self.known[task].stored.add(holder.ocr_run)
            answer = runstate.advance(holder, **completion.facts_of(stored))
            assert answer.moved == (self.known[task].state.act("advance", holder, 0) == "moved")

    @rule(task=tasks, age=st.integers(0, 2), how=st.sampled_from(["complete", "fail"]), is_recorded=st.booleans())
    def end(self, task: int, age: int, how: str, *, is_recorded: bool) -> None:
        """End a task. `is_recorded`: write the end to the row, unlike a process that dies in between."""
        if holder := self.holder(task, age):
            known, answer = self.known[task], self.ended(holder, how)
            may = not (how == "fail" and known.state.status == "pending")
            moved = may and known.state.act(how, holder, 0) == "moved"
            assert answer.moved == moved
            if moved and is_recorded:
                assert answer.state
                completion.record(answer.state)
                known.record()

    @staticmethod
    def ended(holder: RunState, how: str) -> TransitionResult:
        if how == "complete":
            return runstate.complete(holder, result={"text": "x"}, usage={})
        return runstate.fail(holder, error={"code": "x"}, usage={})

    @rule(task=tasks, age=st.integers(0, 2), how=st.sampled_from(["renew", "wait", "release"]))
    def use_lease(self, task: int, age: int, how: str) -> None:
        if holder := self.holder(task, age):
            if how == "wait":
                verdict = runstate.wait(holder, delay=HOUR, wakes_up=False)
            else:
                verdict = runstate.renew(holder) if how == "renew" else runstate.release(holder)
            assert (verdict == "moved") == (self.known[task].state.act(how, holder, 0) == "moved")

    # ---- Time and losses
    @rule(task=tasks)
    def time_passes(self, task: int) -> None:
        """Let leases and pauses expire."""
        if self.known[task].is_open_in_redis:
            lose_lease(task)
            valkey().hset(runstate.key_of(task), "available_at", 0)
            self.known[task].state.is_live, self.known[task].state.is_due = False, True

    @rule(task=tasks)
    def lose_run_state(self, task: int) -> None:
        valkey().delete(runstate.key_of(task))
        self.known[task].state = Model()

    @precondition(lambda self: any(known.state.exists for known in self.known.values()))
    @rule()
    def back_up_redis(self) -> None:
        for task, known in self.known.items():
            copy = valkey().dump(runstate.key_of(task))
            known.copy = (copy, deepcopy(known.state)) if copy else known.copy

    @precondition(lambda self: any(known.copy for known in self.known.values()))
    @rule()
    def restore_redis(self) -> None:
        for task, known in self.known.items():
            if known.copy:
                valkey().restore(runstate.key_of(task), 0, known.copy[0], replace=True)
                known.state = deepcopy(known.copy[1])

    # ---- Users
    @rule(task=tasks)
    def cancel(self, task: int) -> None:
        known = self.known[task]
        if not known.has_ended and known.state.cancel(known.generation) == "moved":
            actions.cancel(task=Task.objects.get(pk=task))
            known.record()
        else:
            with pytest.raises(actions.NotCancellable):
                actions.cancel(task=Task.objects.get(pk=task))

    @rule(task=tasks)
    def retry(self, task: int) -> None:
        known = self.known[task]
        if known.state.exists and known.state.has_ended:
            known.record()
        if not known.has_ended:
            with pytest.raises(actions.NotEnded):
                actions.retry(task=Task.objects.get(pk=task), from_stage=Stage.OCR)
            return
        actions.retry(task=Task.objects.get(pk=task), from_stage=Stage.OCR)
        known.status, known.generation = "pending", known.generation + 1
        known.ocr_run = known.generation
        known.state = Model(exists=True, generation=known.generation)

    # ---- Recovery
    @rule()
    def recover(self) -> None:
        Task.objects.update(updated_at=timezone.now() - timedelta(seconds=HOUR))
        recovery.recover_all()
        for known in self.known.values():
            if known.has_ended:
                continue
            if not known.state.exists or known.state.generation < known.generation:
                known.recreate()
            elif known.state.has_ended:
                known.record()

    @rule()
    def review(self) -> None:
        recovery.review()
        for known in self.known.values():
            if known.has_ended and known.is_open_in_redis:
                known.correct()

    @rule()
    def settle_all_tasks(self) -> None:
        """Check that every task ends in the row and in Redis without any user action."""
        for _ in range(2):
            self.recover()
        for task, known in self.known.items():
            if not known.has_ended:
                self.time_passes(task)
                self.start(task, Stage(known.state.phase))
                self.end(task, 0, "fail", is_recorded=False)
        self.recover()
        self.review()
        assert all(known.has_ended for known in self.known.values())
        assert not any(known.is_open_in_redis for known in self.known.values())

    # ---- Invariants after each step
    @invariant()
    def rows_match_the_model(self) -> None:
        rows = {row.pk: row for row in Task.objects.all()}
        assert {pk: (row.status, row.generation, row.ocr_run) for pk, row in rows.items()} == {
            pk: (known.status, known.generation, known.ocr_run) for pk, known in self.known.items()
        }

    @invariant()
    def run_states_match_the_model(self) -> None:
        found = runstate.read_many(self.known)
        for task, known in self.known.items():
            state = found.get(task)
            assert (state is not None) == known.state.exists
            if state:
                assert shown(state) == shown(known.state)
                assert state.generation <= known.generation


def shown(state: RunState | Model) -> tuple[Any, ...]:
    place = () if state.status in ENDED else (state.phase, state.token, state.started)
    return (state.generation, str(state.status), *map(str, place))


@pytest.mark.slow
@pytest.mark.timeout(600)  # Hypothesis shrinks a failure before it reports it
def test_rows_and_run_states_match_the_model_and_every_task_ends_after_any_loss(
    alice: User, settings: LazySettings
) -> None:
    change_settings(settings, etl_lease_seconds=HOUR)
    Documents.user, Documents.rule_of_all = alice, make_rule(alice)
    run_state_machine_as_test(Documents, settings=examples(max_examples=15, stateful_step_count=40))
