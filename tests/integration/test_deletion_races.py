"""B34: deletions beside requests that change the same objects. Each is done or refused, and none fails."""

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
from tests.integration.etl_rehearsal import row_of
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("rehearsed")
ROUNDS = 8


def at_once(*requests: Callable[[], object]) -> None:
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
def test_a_task_is_retried_or_deleted(alice: User, rule: Rule, _round: int) -> None:
    task = ended(alice, rule)
    at_once(
        lambda: actions.retry(task=task, from_stage=Stage.OCR),
        lambda: deletion.delete(task, user=alice, message="Deleted."),
    )
    left = Task.objects.filter(pk=task.pk).first()
    assert left is None or left.status == "pending"


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_task_becomes_a_sample_while_it_is_deleted(alice: User, rule: Rule, _round: int) -> None:
    task = ended(alice, rule)
    at_once(
        lambda: samples.add(Rule.objects.all(), rule.pk, task, {"lines": []}),
        lambda: deletion.delete(task, user=alice, message="Deleted."),
    )
    assert not Task.objects.filter(pk=task.pk).exists()
    assert not Sample.objects.exists()


@pytest.mark.parametrize("_round", range(ROUNDS))
@pytest.mark.parametrize("deleted", ["sample", "task"])
def test_an_evaluation_starts_while_a_sample_is_deleted(alice: User, rule: Rule, deleted: str, _round: int) -> None:
    tasks = [ended(alice, rule) for _ in range(2)]
    kept, gone = (samples.add(Rule.objects.all(), rule.pk, task, {"lines": []})[0] for task in tasks)
    at_once(
        lambda: evaluations.start(Rule.objects.all(), rule.pk, version=None, user=alice),
        (lambda: samples.delete(rule.pk, gone.pk))
        if deleted == "sample"
        else (lambda: deletion.delete(tasks[1], user=alice, message="Deleted.")),
    )
    assert Evaluation.objects.count() == 1
    assert list(Sample.objects.all()) == [kept]
    assert [each.sample_id for each in SampleRun.objects.all()] == [kept.pk]
