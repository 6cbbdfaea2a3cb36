"""Samples and evaluations of rules: the API, crashed and slow workers, duplicate messages, and cancellation. B38."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from config.platform.observability.metrics import CAUGHT
from etl.core.errors import Fenced
from etl.core.stage_context import Usage as Spent
from etl.core.states import Stage
from etl.evaluation import evaluations, execution, queue, samples
from etl.maintenance import evaluations as recovery
from etl.models import Evaluation, ModelUsage, Sample, SampleRun, Task, Usage
from etl.models.evaluation import SampleStatus
from etl.pipeline import artifacts, deletion
from rules.library import access
from rules.models import Rule
from tests.broker import lose_messages, queued
from tests.conftest import change_settings, client_of
from tests.integration.etl_factories import make_row
from tests.integration.llm_factories import ocr_of
from tests.integration.openai_server import ModelServer, Request, data_reply, problem
from tests.integration.test_leases import in_threads

URL = "/api/v1/etl/rules"
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "string"}, "total": {"type": "number"}},
    "required": ["number", "total"],
    "additionalProperties": False,
}
EXPECTED = {"number": "INV-17", "total": 12.5}


@pytest.fixture
def rule(api: APIClient, model_server: ModelServer) -> Rule:
    model_server.set_default(data_reply(EXPECTED))
    created = api.post(URL, {"name": "Invoices", "json_schema": SCHEMA}).json()
    return Rule.objects.get(pk=created["rule_id"])


def read_document(user: User, text: str = "Invoice INV-17", **fields: Any) -> Task:
    """Create a document whose OCR is finished."""
    task = make_row(user, text, **fields)
    artifacts.store_ocr(task, ocr_of(text), warnings=[], attempts=1, check=lambda: None)
    return task


def path(rule: Rule, rest: str) -> str:
    return f"{URL}/{rule.pk}/{rest}"


def add(api: APIClient, rule: Rule, task: Task, expected: Any = EXPECTED) -> Any:
    return api.post(path(rule, "samples"), {"task_id": task.pk, "expected": expected})


def start(api: APIClient, rule: Rule, **body: Any) -> int:
    response = api.post(path(rule, "evaluations"), body)
    assert response.status_code == 202, response.json()
    return int(response.json()["number"])


def get(api: APIClient, rule: Rule, number: int) -> Any:
    return api.get(path(rule, f"evaluations/{number}")).json()


def work(user: User, times: int = 20) -> None:
    """End the delays of waiting samples, and process this number of messages, as workers do."""
    SampleRun.objects.filter(status=SampleStatus.WAITING).update(available_at=Now())
    for _ in range(times):
        execution.run_next(user.pk)


def expire_leases() -> None:
    SampleRun.objects.filter(status=SampleStatus.RUNNING).update(leased_until=Now() - timedelta(seconds=1))


# ---- Samples --------------------------------------------------------------------------------------------------------
def test_a_document_becomes_a_sample_once(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: a second request replaces the expected data."""
    task = read_document(alice, rule=rule)
    created = add(api, rule, task)
    assert created.status_code == 201
    assert created.json()["expected"] == EXPECTED
    assert created.json()["task_id"] == task.pk

    replaced = add(api, rule, task, {**EXPECTED, "total": 13})
    assert replaced.status_code == 200
    assert replaced.json()["sample_id"] == created.json()["sample_id"]
    [listed] = api.get(path(rule, "samples")).json()["results"]
    assert listed == replaced.json()


def test_a_file_is_submitted_and_becomes_a_sample(api: APIClient, rule: Rule) -> None:
    """B38: a second request with the same idempotency key creates neither a document nor a sample."""

    def send() -> Any:
        file = SimpleUploadedFile("invoice.txt", b"Invoice INV-17")
        body = {"file": file, "expected": '{"number": "INV-17", "total": 12.50}'}
        return api.post(path(rule, "samples"), body, format="multipart", headers={"Idempotency-Key": "one"})

    first, second = send(), send()
    assert (first.status_code, second.status_code) == (201, 200), first.json()
    assert first.json() == second.json()
    assert b"12.50" in first.content  # all digits are kept
    task = Task.objects.get()
    assert (task.pk, task.filename, task.rule_id) == (first.json()["task_id"], "invoice.txt", rule.pk)


@pytest.mark.parametrize(
    ("expected", "pointer"),
    [
        ({"number": "1"}, "/expected"),
        ({"number": "1", "total": "much"}, "/expected/total"),
        ({"number": "1", "total": 1, "more": 2}, "/expected"),
        ([1], "/expected"),
        ({"number": "x" * 300_000, "total": 1}, "/expected"),
    ],
)
def test_expected_data_must_fit_the_schema(
    alice: User, api: APIClient, rule: Rule, expected: Any, pointer: str
) -> None:
    """B38: the error has a pointer, and nothing is stored."""
    response = add(api, rule, read_document(alice, rule=rule), expected)
    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"] == pointer
    assert not Sample.objects.exists()


@pytest.mark.parametrize("expected", ["{", "[]", '{"total": 1}'])
def test_a_refused_file_is_not_submitted(api: APIClient, rule: Rule, expected: str) -> None:
    """B38: the expected data is checked first."""
    file = SimpleUploadedFile("invoice.txt", b"Invoice INV-17")
    response = api.post(path(rule, "samples"), {"file": file, "expected": expected}, format="multipart")
    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"].startswith("/expected")
    assert not Task.objects.exists()


def test_only_own_documents_and_rules_have_samples(alice: User, bob: User, api: APIClient, rule: Rule) -> None:
    """B38."""
    response = add(api, rule, read_document(bob))
    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"] == "/task_id"

    mine = read_document(alice, rule=rule)
    sample = add(api, rule, mine).json()["sample_id"]
    other = client_of(bob)
    assert add(other, rule, read_document(bob)).status_code == 404
    assert other.get(path(rule, "samples")).status_code == 404
    assert other.delete(path(rule, f"samples/{sample}")).status_code == 404
    assert other.post(path(rule, "evaluations"), {}).status_code == 404
    default = Rule.objects.get(slug="default")
    assert api.get(path(default, "samples")).json()["code"] == "system_rule"


def test_a_rule_has_a_limited_number_of_samples(
    alice: User, api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B38."""
    monkeypatch.setattr(samples, "MAX_SAMPLES", 1)
    first = read_document(alice, rule=rule)
    assert add(api, rule, first).status_code == 201
    assert add(api, rule, read_document(alice, rule=rule)).json()["code"] == "too_many_samples"
    assert add(api, rule, first).status_code == 200


def test_a_sample_is_deleted_alone_or_with_its_document(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: the accuracy of earlier evaluations does not change."""
    tasks = [read_document(alice, rule=rule) for _ in range(2)]
    ids = [add(api, rule, task).json()["sample_id"] for task in tasks]
    number = start(api, rule)
    work(alice)
    assert api.delete(path(rule, f"samples/{ids[0]}")).status_code == 204
    assert api.delete(path(rule, f"samples/{ids[0]}")).status_code == 404
    Task.objects.filter(pk=tasks[1].pk).update(status="cancelled")
    deletion.delete(Task.objects.get(pk=tasks[1].pk), user=alice, message="Deleted.")

    assert not Sample.objects.exists()
    assert not SampleRun.objects.exists()
    assert get(api, rule, number)["accuracy"] == 1


# ---- Evaluations ----------------------------------------------------------------------------------------------------
def test_an_evaluation_measures_a_version(alice: User, api: APIClient, rule: Rule, model_server: ModelServer) -> None:
    """B38: it uses the stored Markdown, and returns the accuracy of each field and the model usage."""
    for text in ("Invoice INV-17", "Invoice INV-18"):
        add(api, rule, read_document(alice, text, rule=rule), {**EXPECTED, "number": text[8:]})
    response = api.post(path(rule, "evaluations"), {})
    assert response.status_code == 202
    assert response["Location"] == path(rule, "evaluations/1")
    assert response.json()["status"] == "running"
    work(alice)

    answer = get(api, rule, 1)
    assert answer["status"] == "completed"
    assert (answer["version"], answer["samples"], answer["ended"], answer["failed"]) == (1, 2, 2, 0)
    assert answer["fields"] == {"/number": 0.5, "/total": 1}
    assert answer["accuracy"] == 0.75
    assert answer["usage"] == {"prompt_tokens": 22, "completion_tokens": 14, "calls": 2}
    assert answer["ended_at"]
    prompts = [request.message("user") for request in model_server.requests]
    assert [text in each for text, each in zip(("INV-17", "INV-18"), prompts, strict=True)] == [True, True]
    assert ModelUsage.objects.filter(user=alice).totals() == answer["usage"]
    assert Usage.objects.get(user=alice).tests == 2


def test_two_versions_are_compared(alice: User, api: APIClient, rule: Rule, model_server: ModelServer) -> None:
    """B38: they are compared by field and by sample."""
    task = read_document(alice, rule=rule)
    sample = add(api, rule, task).json()["sample_id"]
    start(api, rule)
    work(alice)
    api.patch(f"{URL}/{rule.pk}", {"system_prompt": "Be quick."})
    model_server.set_default(data_reply({**EXPECTED, "total": 12}))
    start(api, rule)
    work(alice)

    answer = api.get(path(rule, "evaluations/compare"), {"a": 1, "b": 2}).json()
    assert [answer[name]["version"] for name in "ab"] == [1, 2]
    assert (answer["change"], answer["same_samples"]) == (-0.5, True)
    assert answer["fields"] == [
        {"pointer": "/number", "a": 1, "b": 1, "change": 0},
        {"pointer": "/total", "a": 1, "b": 0, "change": -1},
    ]
    assert answer["samples"] == [{"sample_id": sample, "task_id": task.pk, "a": 1, "b": 0.5, "change": -0.5}]
    assert SampleRun.objects.get(evaluation__number=2).misses == [{"field": "/total", "expected": 12.5, "found": 12}]
    fallen, first = evaluations.by_version(rule.pk)
    assert (fallen.evaluation.version, fallen.change, first.change) == (2, -0.5, None)
    assert api.get(path(rule, "evaluations/compare"), {"a": 1}).json()["errors"][0]["pointer"] == "/b"
    assert api.get(path(rule, "evaluations/compare"), {"a": 1, "b": 9}).status_code == 404


def test_evaluations_with_deleted_samples_do_not_have_the_same_samples(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: the accuracies still include the deleted sample, but the list of compared samples does not."""
    ids = [add(api, rule, read_document(alice, rule=rule)).json()["sample_id"] for _ in range(2)]
    for _ in range(2):
        start(api, rule)
        work(alice, 2)
    url, pair = path(rule, "evaluations/compare"), {"a": 1, "b": 2}
    assert api.get(url, pair).json()["same_samples"] is True
    api.delete(path(rule, f"samples/{ids[0]}"))
    answer = api.get(url, pair).json()
    assert (len(answer["samples"]), answer["same_samples"]) == (1, False)


def test_a_start_locks_the_row_of_its_user(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: also of different rules, because the number of running evaluations is limited for each user."""
    add(api, rule, read_document(alice, rule=rule))
    with CaptureQueriesContext(connection) as queries:
        start(api, rule)
    locks = [each["sql"] for each in queries if "FOR NO KEY UPDATE" in each["sql"]]
    assert '"auth_user"' in locks[0]


def test_an_old_version_can_be_evaluated(alice: User, api: APIClient, rule: Rule, model_server: ModelServer) -> None:
    """B38."""
    add(api, rule, read_document(alice, rule=rule))
    api.patch(f"{URL}/{rule.pk}", {"system_prompt": "Second."})
    api.patch(f"{URL}/{rule.pk}", {"system_prompt": "Third."})
    start(api, rule, version=2)
    work(alice)
    assert "Second." in model_server.requests[0].message("system")
    wrong = api.post(path(rule, "evaluations"), {"version": 4})
    assert wrong.json()["errors"][0] == {
        "pointer": "/version",
        "code": "unknown_version",
        "detail": "The rule has no such version. The current version is 3.",
    }


def test_an_impossible_evaluation_is_refused(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: each reason has a code, and nothing is stored."""
    assert api.post(path(rule, "evaluations"), {}).json()["code"] == "no_samples"
    add(api, rule, read_document(alice, rule=rule))
    api.patch(f"{URL}/{rule.pk}", {"postprocess_mode": "skip"})
    assert api.post(path(rule, "evaluations"), {}).json()["code"] == "no_data"
    start(api, rule, version=1)
    assert api.post(path(rule, "evaluations"), {"version": 1}).json()["code"] == "evaluation_running"
    assert Evaluation.objects.count() == 1


def test_evaluations_count_as_tests_of_rules(alice: User, api: APIClient, rule: Rule, settings: LazySettings) -> None:
    """B38: each sample is charged. If the quota is too low for all samples, the evaluation is refused."""
    for _ in range(2):
        add(api, rule, read_document(alice, rule=rule))
    change_settings(settings, etl_daily_rule_tests=1)
    refused = api.post(path(rule, "evaluations"), {})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert "needs 2 tests" in refused.json()["detail"]
    assert not Evaluation.objects.exists()


def test_an_invalid_result_counts_as_wrong(alice: User, api: APIClient, rule: Rule, model_server: ModelServer) -> None:
    """B38: the sample fails, as a task would."""
    add(api, rule, read_document(alice, rule=rule))
    model_server.set_default(data_reply({"number": 1}))
    number = start(api, rule)
    work(alice)
    answer = get(api, rule, number)
    assert (answer["status"], answer["accuracy"], answer["failed"]) == ("completed", 0, 1)
    assert (SampleRun.objects.get().error or {})["code"] == "schema_validation"
    assert answer["usage"]["calls"] == len(model_server.requests)


def test_a_model_outage_does_not_count_against_the_rule(
    alice: User, api: APIClient, rule: Rule, model_server: ModelServer
) -> None:
    """B38: after as many attempts as for a document, the evaluation fails without an accuracy."""
    add(api, rule, read_document(alice, rule=rule))
    number = start(api, rule)
    model_server.set_default(problem(503))
    work(alice, 1)
    assert SampleRun.objects.get().status == SampleStatus.WAITING
    for _ in range(4):
        work(alice, 1)
    answer = get(api, rule, number)
    assert (answer["status"], answer["accuracy"]) == ("failed", None)
    assert answer["error"]["code"] == "llm_unavailable"


def test_an_exhausted_budget_does_not_count_against_the_rule(
    alice: User, api: APIClient, rule: Rule, settings: LazySettings
) -> None:
    """B38: the budget is exceeded after the first of two samples. The evaluation fails without an accuracy."""
    for _ in range(2):
        add(api, rule, read_document(alice, rule=rule))
    change_settings(settings, etl_daily_tokens=1)
    number = start(api, rule)
    work(alice)
    answer = get(api, rule, number)
    assert (answer["status"], answer["accuracy"], answer["failed"]) == ("failed", None, 1)
    assert answer["error"]["code"] == "token_budget_exceeded"


@pytest.mark.parametrize(
    "case",
    [
        ("LlmForbidden", "failed", None),
        ("VisionUnsupported", "failed", None),
        ("PagesUnavailable", "completed", 0),
        ("DocumentTooLong", "completed", 0),
        ("LlmRefused", "completed", 0),
    ],
)
def test_permanent_errors_count_against_the_rule_unless_the_installation_causes_them(
    alice: User, api: APIClient, rule: Rule, settings: LazySettings, case: Any
) -> None:
    """B38: none of these errors is retried."""
    error, *outcome = case
    use_scripted_processor(settings)
    add(api, rule, read_document(alice, f"post:raise {error}", rule=rule))
    number = start(api, rule)
    work(alice, 1)
    answer = get(api, rule, number)
    assert [answer["status"], answer["accuracy"]] == outcome


def test_it_waits_for_a_document_that_is_being_read(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: no attempts are counted while it waits."""
    task = make_row(alice, "Invoice INV-17", rule=rule)
    add(api, rule, task)
    number = start(api, rule)
    for _ in range(5):
        work(alice, 1)
    run = SampleRun.objects.get()
    assert (run.status, run.attempts) == (SampleStatus.WAITING, 0)
    artifacts.store_ocr(task, ocr_of("Invoice INV-17"), warnings=[], attempts=1, check=lambda: None)
    work(alice, 1)
    assert get(api, rule, number)["accuracy"] == 1


def test_a_document_that_was_not_read_counts_as_wrong(alice: User, api: APIClient, rule: Rule) -> None:
    """B38."""
    task = make_row(alice, "Invoice INV-17", rule=rule)
    add(api, rule, task)
    Task.objects.filter(pk=task.pk).update(status="cancelled")
    number = start(api, rule)
    work(alice, 1)
    assert get(api, rule, number)["failed"] == 1


# ---- Faults ---------------------------------------------------------------------------------------------------------
def test_another_worker_takes_over_from_a_killed_worker(
    alice: User, api: APIClient, rule: Rule, model_server: ModelServer, settings: LazySettings
) -> None:
    """B38: its lease expires, recovery wakes another worker, and the first one is fenced off."""
    add(api, rule, read_document(alice, rule=rule))
    number = start(api, rule)
    dead = queue.claim(alice.pk)
    assert dead is not None
    work(alice, 1)  # the lease is held
    assert model_server.requests == []

    expire_leases()
    lose_messages()
    recovery.recover()
    assert queued(settings.ETL_QUEUES[Stage.POSTPROCESS]) == 1
    work(alice, 1)
    assert get(api, rule, number)["accuracy"] == 1
    with pytest.raises(Fenced):
        queue.end(dead, SampleStatus.DONE, fields={"/number": [0, 1]})
    assert get(api, rule, number)["accuracy"] == 1
    assert len(model_server.requests) == 1


def test_a_sample_that_kills_its_workers_fails(
    alice: User, api: APIClient, rule: Rule, model_server: ModelServer
) -> None:
    """B38: it fails after as many attempts as a document."""
    add(api, rule, read_document(alice, rule=rule))
    number = start(api, rule)
    for _ in range(3):
        assert queue.claim(alice.pk) is not None
        expire_leases()
    work(alice, 1)
    answer = get(api, rule, number)
    assert (answer["status"], answer["error"]["code"]) == ("failed", "timeout")
    assert model_server.requests == []


@pytest.mark.slow
def test_duplicate_messages_evaluate_each_sample_once(
    alice: User, api: APIClient, rule: Rule, model_server: ModelServer
) -> None:
    """B38: this includes concurrent messages. At most two samples of a user run at the same time."""
    for _ in range(6):
        add(api, rule, read_document(alice, rule=rule))
    running, maximum, lock = 0, 0, threading.Lock()

    def slow(_request: Request) -> Any:
        nonlocal running, maximum
        with lock:
            running += 1
            maximum = max(maximum, running)
        model_server.stopped.wait(0.1)
        with lock:
            running -= 1
        return data_reply(EXPECTED)

    model_server.set_default(slow)
    number = start(api, rule)

    def handle_messages(_: int) -> None:
        for _message in range(15):
            execution.run_next(alice.pk)

    in_threads(4, handle_messages)
    work(alice)
    answer = get(api, rule, number)
    assert (answer["status"], answer["ended"]) == ("completed", 6)
    assert len(model_server.requests) == 6
    assert 1 <= maximum <= queue.AT_ONCE
    assert ModelUsage.objects.count() == 6


def test_a_cancelled_evaluation_writes_nothing(
    alice: User, api: APIClient, rule: Rule, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B38: the worker stops, and the tokens that it has used are counted."""
    monkeypatch.setattr(execution, "RENEW_SECONDS", 0.1)
    for _ in range(2):
        add(api, rule, read_document(alice, rule=rule))
    number = start(api, rule)
    url = path(rule, f"evaluations/{number}/cancel")

    def cancel(_request: Request) -> Any:
        try:
            assert client_of(alice).post(url, {}).status_code == 200
        finally:
            connection.close()  # the connection of the server's thread
        return data_reply(EXPECTED)

    model_server.set_default(cancel)
    work(alice, 3)
    answer = get(api, rule, number)
    assert (answer["status"], answer["accuracy"], answer["ended"]) == ("cancelled", None, 0)
    assert len(model_server.requests) == 1
    assert ModelUsage.objects.get().calls == 1
    assert api.post(url, {}).json()["code"] == "not_running"


def test_an_evaluation_whose_samples_were_deleted_ends(alice: User, api: APIClient, rule: Rule) -> None:
    """B38: recovery ends it. If other samples remain, the evaluation has their accuracy."""
    tasks = [read_document(alice, rule=rule) for _ in range(2)]
    ids = [add(api, rule, task).json()["sample_id"] for task in tasks]
    first = start(api, rule)
    work(alice, 1)
    api.delete(path(rule, f"samples/{ids[1]}"))
    recovery.recover()
    assert get(api, rule, first)["accuracy"] == 1

    second = start(api, rule)
    api.delete(path(rule, f"samples/{ids[0]}"))
    recovery.recover()
    answer = get(api, rule, second)
    assert (answer["status"], answer["error"]["code"]) == ("failed", "no_samples")


def use_scripted_processor(settings: LazySettings) -> None:
    """Use a processor that follows the instructions in a document's text."""
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, "llm": "tests.scripted_stages.Processor"}


def test_a_worker_that_stops_returns_its_sample(
    alice: User, api: APIClient, rule: Rule, settings: LazySettings
) -> None:
    """B38: it returns the sample immediately, and the attempt does not count."""
    use_scripted_processor(settings)
    add(api, rule, read_document(alice, "post:once:exit", rule=rule))
    number = start(api, rule)
    with pytest.raises(SystemExit):
        execution.run_next(alice.pk)
    run = SampleRun.objects.get()
    assert (run.status, run.attempts, run.token) == (SampleStatus.WAITING, 0, None)
    work(alice, 1)
    assert get(api, rule, number)["status"] == "completed"


def test_an_unexpected_error_is_counted_and_retried(
    alice: User, api: APIClient, rule: Rule, settings: LazySettings
) -> None:
    """B38: the next attempt succeeds, and the tokens of both are counted."""
    use_scripted_processor(settings)
    add(api, rule, read_document(alice, "post:spend 7\npost:once:raise Unexpected", rule=rule))
    number = start(api, rule)
    before = CAUGHT.labels("stage")._value.get()
    work(alice, 1)
    assert CAUGHT.labels("stage")._value.get() == before + 1
    work(alice, 1)
    answer = get(api, rule, number)
    assert answer["status"] == "completed"
    assert answer["usage"] == {"prompt_tokens": 14, "completion_tokens": 2, "calls": 2}
    assert ModelUsage.objects.filter(user=alice).totals() == answer["usage"]


def test_concurrent_starts_create_one_evaluation(alice: User, api: APIClient, rule: Rule) -> None:
    """B38."""
    add(api, rule, read_document(alice, rule=rule))

    def start_one(_: int) -> int:
        try:
            rules = access.changeable(alice, rule.pk)
            evaluations.start(rules, rule.pk, version=None, user=alice)
        except evaluations.AlreadyRunning:
            return 0
        return 1

    assert sum(in_threads(4, start_one)) == 1
    assert list(Evaluation.objects.values_list("number", flat=True)) == [1]


def test_constraints_refuse_contradictory_rows(alice: User, api: APIClient, rule: Rule) -> None:
    add(api, rule, read_document(alice, rule=rule))
    start(api, rule)
    for changes in ({"status": "completed"}, {"status": "cancelled"}, {"accuracy": 1.0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Evaluation.objects.update(**changes)
    with pytest.raises(IntegrityError), transaction.atomic():
        SampleRun.objects.update(status=SampleStatus.RUNNING)


def test_a_lost_reply_does_not_double_the_ledger(
    alice: User, api: APIClient, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(api, rule, read_document(alice, rule=rule))
    start(api, rule)
    run = queue.claim(alice.pk)
    assert run is not None
    ledger, save = execution.Ledger(run), ModelUsage.save

    def lost(self: ModelUsage, **options: Any) -> None:
        save(self, **options)
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(ModelUsage, "save", lost)
        with pytest.raises(OperationalError):
            ledger.record(Spent(calls=1, prompt_tokens=5))
    ledger.record(Spent(calls=2, prompt_tokens=9))
    assert list(ModelUsage.objects.values_list("calls", "prompt_tokens")) == [(2, 9)]


def test_the_admin_lists_samples_without_results(pages: Client, alice: User, api: APIClient, rule: Rule) -> None:
    add(api, rule, read_document(alice))
    with CaptureQueriesContext(connection) as queries:
        assert pages.get("/admin/etl/sample/").status_code == 200
    assert not [each for each in queries.captured_queries if '"last_result"' in each["sql"]]
