"""B34: deletions at the same time as requests that change the same objects. Each one is executed or refused."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from django.contrib.auth.models import User

from config.platform.http.problems import Problem
from etl.core.states import Stage
from etl.evaluation import evaluations, samples
from etl.models import Evaluation, Sample, SampleRun, Task
from etl.pipeline import actions, deletion
from rules.models import Rule
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import complete
from tests.integration.stage_runs import row_of
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("configure_stages")
ROUNDS = 8


def run_concurrently(*requests: Callable[[], object]) -> None:
    """Run these requests in threads. A Problem is an expected refusal."""

    def send(number: int) -> None:
        with suppress(Problem):
            requests[number]()

    in_threads(len(requests), send)


def ended(user: User, rule: Rule) -> Task:
    task = make_task(user, rule=rule)
    complete(task)
    return row_of(task)


@pytest.fixture
def rule(alice: User) -> Rule:
    return make_rule(alice, mode="llm", name="race")


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_task_is_either_retried_or_deleted(alice: User, rule: Rule, _round: int) -> None:
    task = ended(alice, rule)
    run_concurrently(
        lambda: actions.retry(task=task, from_stage=Stage.OCR),
        lambda: deletion.delete(task, user=alice, message="Deleted."),
    )
    remaining = Task.objects.filter(pk=task.pk).first()
    assert remaining is None or remaining.status == "pending"


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_task_can_become_a_sample_while_it_is_deleted(alice: User, rule: Rule, _round: int) -> None:
    task = ended(alice, rule)
    run_concurrently(
        lambda: samples.add(Rule.objects.all(), rule.pk, task, {"lines": []}),
        lambda: deletion.delete(task, user=alice, message="Deleted."),
    )
    assert not Task.objects.filter(pk=task.pk).exists()
    assert not Sample.objects.exists()


@pytest.mark.parametrize("_round", range(ROUNDS))
@pytest.mark.parametrize("deleted", ["sample", "task"])
def test_an_evaluation_can_start_while_a_sample_is_deleted(alice: User, rule: Rule, deleted: str, _round: int) -> None:
    tasks = [ended(alice, rule) for _ in range(2)]
    kept, removed = (samples.add(Rule.objects.all(), rule.pk, task, {"lines": []})[0] for task in tasks)
    run_concurrently(
        lambda: evaluations.start(Rule.objects.all(), rule.pk, version=None, user=alice),
        (lambda: samples.delete(rule.pk, removed.pk))
        if deleted == "sample"
        else (lambda: deletion.delete(tasks[1], user=alice, message="Deleted.")),
    )
    assert Evaluation.objects.count() == 1
    assert list(Sample.objects.all()) == [kept]
    assert [each.sample_id for each in SampleRun.objects.all()] == [kept.pk]
