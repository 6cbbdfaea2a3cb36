"""Pages of samples and evaluations, without a browser. B38."""

import html
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from etl.core.states import Status
from etl.evaluation import evaluations, execution
from etl.models import Evaluation, Sample, Task
from etl.models.evaluation import EvaluationStatus
from rules.library import access, editing
from rules.models import Rule
from tests.conftest import browser_of
from tests.integration.openai_server import ModelServer, data_reply
from tests.integration.test_evaluations import EXPECTED, SCHEMA, read_document


@pytest.fixture
def rule(alice: User, model_server: ModelServer) -> Rule:
    model_server.set_default(data_reply(EXPECTED))
    return editing.create(owner=alice, values={"name": "Invoices", "json_schema": SCHEMA, "postprocess_mode": "llm"})


@pytest.fixture
def me(alice: User) -> Client:
    return browser_of(alice)


def url(rule: Rule, rest: str = "evaluations") -> str:
    return f"/app/rules/{rule.pk}/{rest}"


def text(response: Any) -> str:
    return html.unescape(response.content.decode())


def evaluate(alice: User, rule: Rule) -> Evaluation:
    started = evaluations.start(access.changeable(alice, rule.pk), rule.pk, version=None, user=alice)
    for _ in range(5):
        execution.run_next(alice.pk)
    started.refresh_from_db()
    assert started.status == EvaluationStatus.COMPLETED
    return started


def test_an_empty_page_explains_the_first_step(me: Client, rule: Rule) -> None:
    page = text(me.get(url(rule)))
    assert "Add at least one sample below" in page
    assert "No evaluations yet." in page
    assert "aria-invalid" not in page


def test_null_is_not_expected_data(alice: User, me: Client) -> None:
    """The rule has no schema that would refuse it."""
    rule = editing.create(owner=alice, values={"name": "Text", "postprocess_mode": "skip"})
    task = read_document(alice, rule=rule)
    response = me.post(url(rule, "samples"), {"task": str(task.pk), "expected": "null"})
    assert (response.status_code, "Must not be null." in text(response)) == (400, True)


def test_links_of_a_refused_form_lead_to_the_page(alice: User, me: Client, rule: Rule) -> None:
    """The address of the form accepts only POST."""
    task = read_document(alice, rule=rule)
    me.post(url(rule, "samples"), {"task": str(task.pk), "expected": '{"number": "INV-17", "total": 12.50}'})
    evaluations.start(access.changeable(alice, rule.pk), rule.pk, version=None, user=alice)
    page = text(me.post(url(rule, "samples"), {"task": "x"}))
    assert f'hx-get="{url(rule)}"' in page


@pytest.mark.parametrize("version", ["abc", "0", "2", str(10**30)])
def test_an_unknown_version_is_not_evaluated(alice: User, me: Client, rule: Rule, version: str) -> None:
    """The current version must not be evaluated instead, which costs tokens."""
    Sample.objects.create(rule=rule, task=read_document(alice, rule=rule), expected=EXPECTED)
    response = me.post(url(rule, "evaluations/start"), {"version": version}, follow=True)
    assert "The rule has no such version." in text(response)
    assert not Evaluation.objects.exists()


def test_a_sample_is_added_and_evaluated(alice: User, me: Client, rule: Rule) -> None:
    """B38."""
    task = read_document(alice, rule=rule)
    typed = {"task": str(task.pk), "expected": '{"number": "INV-17",\r\n "total": 12.50}'}
    response = me.post(url(rule, "samples"), typed)
    assert response.status_code == 302, text(response)
    response = me.post(url(rule, "evaluations/start"), {"version": "1"}, follow=True)
    assert "Evaluation of version 1 started." in text(response)
    fragment = text(me.get(url(rule), headers={"HX-Request": "true"}))
    assert "every 3s" in fragment
    assert "<h1>" not in fragment
    execution.run_next(alice.pk)

    page = text(me.get(url(rule)))
    assert "100 %" in page
    assert "every 3s" not in page
    assert "12.50" in page


@pytest.mark.parametrize(
    ("typed", "field", "why"),
    [
        ({"task": "seventeen"}, "id_task", "Task not found."),
        ({"expected": '{"broken": '}, "id_expected", "not JSON"),
        ({"expected": '{"number": "1"}'}, "id_expected", "'total' is missing"),
    ],
)
def test_a_refused_sample_keeps_its_input(  # noqa: PLR0917 - parameters of a table
    alice: User,
    me: Client,
    rule: Rule,
    typed: dict[str, str],
    field: str,
    why: str,
) -> None:
    task = read_document(alice, rule=rule)
    response = me.post(url(rule, "samples"), {"task": str(task.pk), "expected": "", **typed})
    page = text(response)
    assert response.status_code == 400
    assert why in page
    assert 'aria-invalid="true"' in page.split(f'id="{field}"')[1].split(">")[0]
    assert all(value in page for value in typed.values())
    assert not Sample.objects.exists()


def test_a_document_without_a_result_needs_expected_data(alice: User, me: Client, rule: Rule) -> None:
    response = me.post(url(rule, "samples"), {"task": str(read_document(alice, rule=rule).pk), "expected": ""})
    assert response.status_code == 409
    assert "no extracted data" in text(response)


def test_a_completed_document_becomes_a_sample_with_one_click(
    alice: User,
    bob: User,
    me: Client,
    rule: Rule,
) -> None:
    """B38: its result becomes the expected data."""
    task = read_document(alice, rule=rule)
    result = {"markdown_s3_key": "k", "provider_task_id": "", "metadata": {}, "data": EXPECTED, "citations": []}
    Task.objects.filter(pk=task.pk).update(status=Status.COMPLETED, result=result, phase="postprocess")
    other = browser_of(bob)
    assert other.post(f"/app/documents/{task.pk}/sample").status_code == 404
    response = me.post(f"/app/documents/{task.pk}/sample", follow=True)
    assert "Added to the samples of its rule." in text(response)
    assert "Sample of its rule" in text(response)
    assert Sample.objects.get().expected == EXPECTED


def test_the_page_of_versions_shows_a_drop_in_accuracy(
    alice: User,
    me: Client,
    rule: Rule,
    model_server: ModelServer,
) -> None:
    """B38: the drop is shown after the new version was evaluated."""
    sample = Sample.objects.create(rule=rule, task=read_document(alice, rule=rule), expected=EXPECTED)
    evaluate(alice, rule)
    fragment = url(rule, "accuracies")
    assert "Accuracy fell" not in text(me.get(fragment))
    assert fragment in text(me.get(url(rule, "versions")))

    editing.change(Rule.objects.all(), rule.pk, system_prompt="Guess.")
    assert "Version 2 has not been evaluated." in text(me.get(fragment))
    model_server.set_default(data_reply({**EXPECTED, "total": 1}))
    evaluate(alice, rule)
    page = text(me.get(fragment))
    assert "Accuracy fell." in page
    assert "Version 2 has 50 % on your samples, −50 points compared to version 1 (100 %)." in page
    compared = text(me.get(url(rule), {"a": 1, "b": 2}))
    assert "expected “12.5”, found “1”" in compared
    assert sample.task.filename in compared


def test_an_evaluation_is_cancelled_and_a_sample_deleted(alice: User, me: Client, rule: Rule) -> None:
    sample = Sample.objects.create(rule=rule, task=read_document(alice, rule=rule), expected=EXPECTED)
    me.post(url(rule, "evaluations/start"), {})
    assert "Evaluation 1 cancelled." in text(me.post(url(rule, "evaluations/1/cancel"), follow=True))
    assert "The evaluation has ended." in text(me.post(url(rule, "evaluations/1/cancel"), follow=True))
    assert "Sample deleted." in text(me.post(url(rule, f"samples/{sample.pk}/delete"), follow=True))


def test_other_users_rules_are_not_found(alice: User, bob: User, rule: Rule) -> None:
    sample = Sample.objects.create(rule=rule, task=read_document(alice, rule=rule), expected=EXPECTED)
    evaluations.start(access.changeable(alice, rule.pk), rule.pk, version=None, user=alice)
    other = browser_of(bob)
    for rest in ("evaluations", "accuracies"):
        assert other.get(url(rule, rest)).status_code == 404
    for rest in ("evaluations/start", "samples", "evaluations/1/cancel", f"samples/{sample.pk}/delete"):
        assert other.post(url(rule, rest)).status_code == 404
