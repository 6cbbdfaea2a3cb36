"""The race between cancelling and starting a document. Row 19 of docs/reliability.md."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from etl import runstate
from etl.core.states import Stage
from etl.models import Task
from etl.pipeline import actions
from rules.models import Rule
from tests.chaos.documents import ALL, BOTH_QUEUES, code_of, ocr_calls, runstate_of, settle, submit
from tests.chaos.site import QUEUES, Site
from tests.integration.etl_factories import make_row, make_rule
from tests.waiting import let_pass

RACES = 200


@pytest.mark.timeout(180)
def test_a_cancel_racing_a_start_has_exactly_one_winner(site: Site, rule: Rule) -> None:
    """19: 200 times, over HTTP and with real workers.

    A document that was cancelled before OCR is never read, and any other is read once.
    """
    site.start_web()
    site.start_worker(ALL, children=2)
    site.start_beat()
    settle(submit(site, "Hello.", rule=rule))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as clients:
        # With different delays, so that both sides win sometimes, on slow and fast machines.
        outcomes = list(clients.map(lambda number: race(site, rule, number % 8 * 0.02), range(RACES)))
    tasks = [task for task, _ in outcomes]
    settle(*tasks, limit=90)

    won = {"cancelled": 0, "completed": 0}
    for task, response in outcomes:
        winner = "cancelled" if response.status_code == 200 else "completed"
        outcome, stage = code_of(task)
        assert outcome == winner
        assert ocr_calls(task) == (stage == Stage.POSTPROCESS)  # even if it was cancelled between the stages
        if winner == "completed":
            assert (response.status_code, response.json()["code"]) == (409, "not_cancellable")
        won[winner] += 1
    assert min(won.values()) > 0, won
    site.record_duration("19: 200 races of a cancel and a start", time.monotonic() - began, **won)


def race(site: Site, rule: Rule, delay: float) -> tuple[Task, Any]:
    try:
        task = submit(site, "Hello.", rule=rule)
    finally:
        connection.close()  # of this thread
    let_pass(delay)
    return task, site.client.post(f"/api/v1/etl/tasks/{task.pk}/cancel", json={})


@pytest.mark.timeout(240)
def test_a_simultaneous_cancel_and_start_have_one_winner(site: Site) -> None:
    """19: without network delays. The run-state shows which one won."""
    barrier = threading.Barrier(2)
    plain = make_rule(site.owner)
    won: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as threads:
        for _ in range(RACES):
            task = make_row(site.owner, rule=plain)
            runstate.create(task, stage=Stage.OCR)
            cancelled = threads.submit(concurrently, barrier, try_to_cancel, task)
            started = threads.submit(concurrently, barrier, try_to_start, task)
            assert cancelled.result() != started.result()
            assert runstate_of(task) == ("cancelled" if cancelled.result() else "mineru_parsing")
            won[runstate_of(task)] += 1
            requeue(task)
    # Workers start after the races, so that they do not interfere.
    site.start_worker(QUEUES, ETL_RECOVERY_SECONDS=10)
    site.start_worker(BOTH_QUEUES, children=3)
    site.start_beat(ETL_RECOVERY_SECONDS=10)
    settle(*Task.objects.open(), limit=150)
    assert sorted(won) == ["cancelled", "mineru_parsing"], won


def concurrently(barrier: threading.Barrier, action: Callable[[Task], bool], task: Task) -> bool:
    barrier.wait(10)
    try:
        return action(task)
    finally:
        connection.close()


def try_to_cancel(task: Task) -> bool:
    try:
        actions.cancel(task=task)
    except actions.NotCancellable:
        return False
    return True


def try_to_start(task: Task) -> bool:
    return runstate.start(task.pk, stage=Stage.OCR, generation=task.generation).moved


def requeue(task: Task) -> None:
    """Requeue a task that this process started, so that a worker can claim it before the lease expires."""
    state = runstate.read(task.pk)
    assert state
    if state.token:
        runstate.release(state)
