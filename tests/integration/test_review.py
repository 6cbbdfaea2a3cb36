"""Review of results: corrections and approvals. B37."""

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from config.platform import exact_json
from etl import runstate
from etl.api.results import original_of
from etl.core.states import Stage
from etl.models import ReviewEvent, Task
from etl.pipeline import actions, completion, review
from etl.runstate import RunState
from tests.broker import valkey
from tests.conftest import client_of
from tests.integration.etl_factories import make_task
from tests.integration.etl_progress import complete, fail
from tests.integration.reviewed import DATA, SCHEMA, extract, make_invoice
from tests.integration.stage_runs import row_of
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("configure_stages")
TASKS = "/api/v1/etl/tasks"


@pytest.fixture
def task(alice: User) -> Task:
    return make_invoice(alice)


def path(task: Task, part: str = "/result") -> str:
    return f"{TASKS}/{task.pk}{part}"


def correct(api: APIClient, task: Task, patch: Any, tag: str | None = None) -> Any:
    """Correct a result. `tag`: the ETag, by default of the current result.

    A patch as text keeps the digits of numbers.
    """
    tag = api.get(path(task))["ETag"] if tag is None else tag
    body = f'{{"data": {patch}}}' if isinstance(patch, str) else exact_json.dumps({"data": patch})
    return api.patch(path(task), body, content_type="application/json", headers={"If-Match": tag})


def history(api: APIClient, task: Task) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = api.get(path(task, "/history")).json()["results"]
    return results


def matches(result: dict[str, Any]) -> dict[str, str]:
    return {each["pointer"]: each["match"] for each in result["citations"]}


# ---- Corrections ----------------------------------------------------------------------------------------------------
def test_a_corrected_result_replaces_the_original_which_stays(task: Task, api: APIClient) -> None:
    """B37: in all responses, also while Redis still has the original result."""
    before = api.get(path(task)).json()
    assert runstate.read_many([task.pk]), "the ended run-state is still in Redis"

    corrected = correct(api, task, {"number": "INV-71", "supplier": {"vat": "DE1"}, "kind": None})

    expected = {name: value for name, value in before["data"].items() if name != "kind"}
    expected |= {"number": "INV-71", "supplier": {"name": "Bright Lamps Ltd", "vat": "DE1"}}
    assert (corrected.status_code, corrected.json()["data"]) == (200, expected)
    shown = api.get(path(task, "")).json()
    assert (shown["result"], shown["corrected"]) == (corrected.json(), True)
    assert api.get(path(task)).json() == corrected.json()
    assert api.get(path(task))["ETag"] == corrected["ETag"] != api.get(f"{path(task)}?original=true")["ETag"]
    assert api.get(f"{path(task)}?original=true").json() == before
    assert {**corrected.json(), "data": 0, "citations": 0} == {**before, "data": 0, "citations": 0}


def test_numbers_keep_their_digits(task: Task, api: APIClient) -> None:
    """B37, B43: in the original, in the patch, and in the history."""
    total, price = b"90071992547409.930", b"31.50"
    answer = correct(api, task, '{"total": 123456789012345678901234567890.10}')
    assert b"123456789012345678901234567890.10" in answer.content
    assert price in answer.content
    assert total in api.get(f"{path(task)}?original=true").content
    assert b'"before":%s,"after":123456789012345678901234567890.10' % total in api.get(path(task, "/history")).content
    assert b"123456789012345678901234567890.10" in api.get(path(task, "")).content
    same_number = correct(api, task, '{"total": 123456789012345678901234567890.1}')
    assert b"123456789012345678901234567890.1," in same_number.content, "another notation is a correction"


def test_a_wrong_value_can_be_corrected_to_null(alice: User, api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B37: rules often require a member and allow null for values that are not in the document."""
    members: Any = SCHEMA["properties"]
    monkeypatch.setitem(members, "total", {"type": ["number", "null"]})
    answer = correct(api, make_invoice(alice), {"total": None, "kind": None})
    assert (answer.status_code, answer.json()["data"]["total"], "kind" in answer.json()["data"]) == (200, None, False)


@pytest.mark.parametrize(
    ("literal", "status"), [("1e-9999", 422), ("0e99999999", 422), ("1e-99999999999999999999", 400)]
)
def test_numbers_that_cannot_be_stored_are_refused(task: Task, api: APIClient, literal: str, status: int) -> None:
    """B37, B43."""
    before = api.get(path(task)).content
    answer = correct(api, task, f'{{"total": {literal}}}')
    assert (answer.status_code, len(answer.json()["errors"])) == (status, 1)
    assert api.get(path(task)).content == before


def test_the_history_has_the_user_time_and_values_of_each_change(task: Task, api: APIClient, alice: User) -> None:
    """B37."""
    correct(api, task, {"number": "INV-71", "kind": None, "tags": ["paper"]})
    correct(api, task, {"number": "INV-72"})

    newest, *first = history(api, task)

    assert (newest["kind"], newest["by"], newest["correction"], newest["run"]) == ("corrected", "alice", 2, 1)
    assert (newest["pointer"], newest["change"]) == ("/number", {"before": "INV-71", "after": "INV-72"})
    assert {each["pointer"]: each["change"] for each in first} == {
        "/number": {"before": "INV-17", "after": "INV-71"},
        "/kind": {"before": "invoice"},
        "/tags": {"after": ["paper"]},
    }
    assert {each["correction"] for each in first} == {1}
    assert newest["at"] > first[0]["at"]


def test_citations_of_corrected_values_are_marked_as_corrected(task: Task, api: APIClient) -> None:
    """B37: other values keep their citations, also after a removed row."""
    lines = exact_json.loads(DATA)["lines"]
    patch = {"number": "INV-71", "paid": None, "lines": [lines[0], lines[2] | {"quantity": 2}, {"item": "Cable"}]}
    result = correct(api, task, patch).json()

    found = matches(result)
    assert (found["/number"], found["/total"], found["/lines/0/item"]) == ("corrected", "exact", "exact")
    assert found["/lines/2/item"] == "corrected"
    (citation,) = (each for each in result["citations"] if each["pointer"] == "/number")
    assert citation == {"pointer": "/number", "page": None, "bbox": None, "quote": None, "match": "corrected"}

    removed = correct(api, task, {"number": "INV-17", "lines": lines[1:]}).json()
    assert (matches(removed)["/number"], matches(removed)["/lines/0/item"]) == ("exact", "exact")
    (moved,) = (each for each in removed["citations"] if each["pointer"] == "/lines/0/item")
    assert moved["quote"] == "Quote of /lines/1/item"


def test_a_value_does_not_take_the_citation_of_a_removed_row(task: Task, api: APIClient) -> None:
    """B37: an edited row is a different row from the one that was at its position, even if some values are equal."""
    lines = exact_json.loads(DATA)["lines"]
    edited = correct(api, task, {"lines": [lines[1] | {"item": "Lamp", "price": lines[0]["price"]}]}).json()
    assert {pointer: match for pointer, match in matches(edited).items() if pointer.startswith("/lines")} == {
        f"/lines/0/{name}": "corrected" for name in ("item", "quantity", "price")
    }

    one = correct(api, task, {"lines": [lines[0], lines[1] | {"item": "Lamp"}, lines[2]]}).json()
    (kept,) = (each for each in one["citations"] if each["pointer"] == "/lines/1/price")
    assert (matches(one)["/lines/1/item"], kept["quote"]) == ("corrected", "Quote of /lines/1/price")


def test_a_correction_needs_the_tag_of_the_result_that_was_read(task: Task, api: APIClient) -> None:
    """B37: without a tag, the response is 428; with an old tag, it is 412. Nothing is changed."""
    first = api.get(path(task))["ETag"]
    missing = api.patch(path(task), {"data": {"number": "x"}})
    assert (missing.status_code, missing.json()["code"]) == (428, "precondition_required")
    assert correct(api, task, {"number": "INV-71"}, first).status_code == 200
    for tag in (first, "", "odd", f"W/{first}"):
        stale = correct(api, task, {"number": "INV-72"}, tag)
        assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed"), tag
    assert api.get(path(task)).json()["data"]["number"] == "INV-71"
    assert correct(api, task, {"number": "INV-72"}, "*").status_code == 200
    assert ReviewEvent.objects.count() == 2


def test_one_of_two_concurrent_corrections_is_refused(task: Task, alice: User) -> None:
    """B37: the row's lock decides."""
    api, names = client_of(alice), ("a", "b")
    tag = api.get(path(task))["ETag"]
    statuses = in_threads(2, lambda n: correct(client_of(alice), task, {"number": names[n]}, tag).status_code)
    found = dict(zip(names, statuses, strict=True))

    assert sorted(found.values()) == [200, 412]
    (winner,) = (name for name, status in found.items() if status == 200)
    assert row_of(task).current_result["data"]["number"] == winner  # type: ignore[index]
    assert ReviewEvent.objects.count() == 1


@pytest.mark.parametrize(
    ("patch", "pointers"),
    [
        ('{"total": "much", "extra": 1}', {"/data/total", "/data"}),
        ('{"total": null}', {"/data"}),
        ('{"date": "29.2.2024"}', {"/data/date"}),
        ('{"lines": [{"item": "a"}, {"item": 7}]}', {"/data/lines/1/item"}),
        ('"text"', {"/data"}),
        ("null", {"/data"}),
        (f'{{"total": 1.{"0" * 400}1}}', {"/data/total"}),
    ],
)
def test_data_that_does_not_fit_is_refused_with_pointers(
    task: Task, api: APIClient, patch: str, pointers: set[str]
) -> None:
    """B37."""
    refused = correct(api, task, patch)
    assert (refused.status_code, refused.json()["code"]) == (422, "schema_validation")
    assert {error["pointer"] for error in refused.json()["errors"]} == pointers
    assert not row_of(task).corrections


def test_corrections_are_checked_with_the_schema_of_the_rule_version_of_the_task(task: Task, api: APIClient) -> None:
    """B37."""
    rule = api.get(f"/api/v1/etl/rules/{task.rule_id}").json()
    body = {name: rule[name] for name in ("name", "postprocess_mode")} | {"json_schema": {"type": "array"}}
    assert api.put(f"/api/v1/etl/rules/{task.rule_id}", body).status_code == 200
    assert correct(api, task, {"number": "INV-71"}).status_code == 200


@pytest.mark.parametrize("body", ["{}", '{"data": {}, "more": 1}', "[]", "{"])
def test_a_malformed_body_is_refused(task: Task, api: APIClient, body: str) -> None:
    answer = api.patch(path(task), body, content_type="application/json", headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_a_correction_without_a_difference_changes_nothing(task: Task, api: APIClient) -> None:
    api.post(path(task, "/approve"))
    tag = api.get(path(task))["ETag"]
    same = correct(api, task, '{"total": 90071992547409.930, "extra": null}')
    assert (same.status_code, same["ETag"]) == (200, tag)
    assert [each["kind"] for each in history(api, task)] == ["approved"]


def test_only_completed_tasks_with_data_are_corrected(alice: User, api: APIClient) -> None:
    """B37."""
    plain, open_one, failed = make_task(alice), make_task(alice), make_task(alice)
    complete(plain)
    fail(failed)
    for task, code in ((plain, "no_data"), (open_one, "not_completed"), (failed, "not_completed")):
        answer = correct(api, task, {}, "*")
        assert (answer.status_code, answer.json()["code"]) == (409, code)
    for task in (open_one, failed):
        assert api.get(path(task)).json()["code"] == "not_completed"
        assert api.post(path(task, "/approve")).json()["code"] == "not_completed"
    assert api.post(path(plain, "/approve")).status_code == 200


def test_a_correction_of_very_many_values_is_one_event(alice: User, api: APIClient) -> None:
    lines = ",".join(f'{{"item": "{n}"}}' for n in range(review.MAX_EVENTS + 1))
    task = make_invoice(alice, f'{{"number": "1", "total": 1, "lines": [{lines}]}}')
    assert correct(api, task, {"lines": [{"item": f"x{n}"} for n in range(review.MAX_EVENTS + 1)]}).status_code == 200
    (event,) = history(api, task)
    assert event["pointer"] == ""
    assert event["change"]["before"]["lines"][0] == {"item": "0"}


def test_a_result_is_not_sent_again_if_it_has_not_changed(task: Task, api: APIClient) -> None:
    tag = api.get(path(task))["ETag"]
    unchanged = api.get(path(task), headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged["ETag"]) == (304, tag)
    correct(api, task, {"number": "x"})
    assert api.get(path(task), headers={"If-None-Match": tag}).status_code == 200


# ---- Approval -------------------------------------------------------------------------------------------------------
def test_an_approval_has_a_user_and_a_time(task: Task, api: APIClient) -> None:
    """B37: a second approval changes nothing, and DELETE removes the approval."""
    approved = api.post(path(task, "/approve"))
    assert (approved.status_code, approved.json()["approved_by"]) == (200, "alice")
    shown = api.get(path(task, "")).json()
    assert (shown["approved_at"], shown["corrected"]) == (approved.json()["approved_at"], False)
    assert api.post(path(task, "/approve")).json()["approved_at"] == shown["approved_at"]
    for _ in range(2):
        assert api.delete(path(task, "/approve")).status_code == 204
    shown = api.get(path(task, "")).json()
    assert (shown["approved_at"], shown["approved_by"]) == (None, None)
    assert [each["kind"] for each in history(api, task)] == ["approval_removed", "approved"]


def test_the_event_stream_begins_with_the_approval(task: Task, api: APIClient) -> None:
    """B37."""
    api.post(path(task, "/approve"))
    stream = api.get(path(task, "/events")).content.decode()
    assert '"approved_by":"alice"' in stream


def test_a_correction_removes_the_approval(task: Task, api: APIClient) -> None:
    """B37: because a different result was approved."""
    api.post(path(task, "/approve"))
    correct(api, task, {"number": "INV-71"})
    assert api.get(path(task, "")).json()["approved_at"] is None
    assert {each["kind"] for each in history(api, task)} == {"approved", "corrected", "approval_removed"}


def test_an_approval_with_an_old_tag_is_refused(task: Task, api: APIClient) -> None:
    """B37: so that users do not approve changes of other users that they have not seen."""
    tag = api.get(path(task))["ETag"]
    correct(api, task, {"number": "INV-71"})
    assert api.post(path(task, "/approve"), headers={"If-Match": tag}).status_code == 412
    assert row_of(task).approved_at is None


def test_lists_are_filtered_by_approval_and_correction(alice: User, api: APIClient) -> None:
    """B37."""
    plain, approved, corrected = make_task(alice), make_task(alice), make_invoice(alice)
    complete(approved)
    correct(api, corrected, {"number": "INV-71"})
    api.post(path(approved, "/approve"))

    def listed(query: str) -> set[int]:
        return {each["task_id"] for each in api.get(f"{TASKS}?{query}").json()["results"]}

    assert listed("approved=true") == {approved.pk}
    assert listed("approved=false") == {plain.pk, corrected.pk}
    assert listed("approved=false&status=completed") == {corrected.pk}
    assert listed("corrected=true") == {corrected.pk}
    assert listed("corrected=false&approved=false") == {plain.pk}
    assert api.get(f"{TASKS}?approved=maybe").json()["errors"][0]["pointer"] == "/approved"


# ---- Retries --------------------------------------------------------------------------------------------------------
def test_a_retry_makes_a_result_without_review_and_keeps_the_history(task: Task, api: APIClient) -> None:
    """B37: until the retry has completed, the corrected result is the previous result."""
    corrected = correct(api, task, {"number": "INV-71"}).json()
    api.post(path(task, "/approve"))

    actions.retry(task=row_of(task), from_stage=Stage.POSTPROCESS)
    waiting = api.get(path(task, "")).json()
    extract(task)
    done = api.get(path(task, "")).json()

    assert (waiting["previous_result"], waiting["approved_at"], waiting["corrected"]) == (corrected, None, False)
    assert done["result"]["data"]["number"] == "INV-17"
    assert (done["approved_at"], done["corrected"], done["previous_result"]) == (None, False, None)
    assert {each["run"] for each in history(api, task)} == {1}
    assert not api.get(f"{TASKS}?approved=true").json()["results"]
    again = correct(api, task, {"kind": "credit note"}).json()["data"]
    assert (again["number"], again["kind"]) == ("INV-17", "credit note")
    assert row_of(task).corrections == 1


def test_a_corrected_result_stays_when_a_late_worker_overwrites_the_run_state(task: Task, api: APIClient) -> None:
    """B37: readers use the row, because only the row has the corrections."""
    number = correct(api, task, {"number": "INV-71"}).json()["data"]["number"]
    runstate.create(row_of(task), stage=Stage.OCR, status="pending", again=True)  # type: ignore[arg-type]
    completion.correct(task.pk)
    shown = api.get(path(task, "")).json()
    assert (shown["result"]["data"]["number"], shown["corrected"]) == (number, True)


def test_a_redis_outage_changes_nothing(task: Task, api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """B37: otherwise, Redis would still have the result without the correction."""
    tag = api.get(path(task))["ETag"]

    def fail_to_connect(*_: Any, **__: Any) -> Any:
        raise runstate.Unavailable("no connection")

    monkeypatch.setattr(runstate, "forget", fail_to_connect)
    answer = correct(api, task, {"number": "x"}, tag)
    assert (answer.status_code, answer.json()["code"]) == (503, "run_state_unavailable")
    assert (row_of(task).corrections, ReviewEvent.objects.count()) == (0, 0)


# ---- Access ---------------------------------------------------------------------------------------------------------
def test_corrections_by_staff_are_recorded_without_content(
    task: Task, staff: User, bob: User, caplog: pytest.LogCaptureFixture
) -> None:
    """B37: other users get 404."""
    caplog.set_level("INFO")
    assert correct(client_of(bob), task, {"number": "secret-71"}, "*").status_code == 404
    for part in ("/history", "/result"):
        assert client_of(bob).get(path(task, part)).status_code == 404
    assert client_of(bob).post(path(task, "/approve")).status_code == 404
    assert correct(client_of(staff), task, {"number": "secret-71"}, "*").status_code == 200
    assert client_of(staff).post(path(task, "/approve")).json()["approved_by"] == "sam"
    messages = [entry.get_change_message() for entry in LogEntry.objects.filter(object_id=str(task.pk))]
    assert "Over the API: corrected the result." in messages
    assert "Over the API: approved the result." in messages
    assert "secret-71" not in caplog.text
    assert not any("secret-71" in message for message in messages)


def test_the_history_is_deleted_with_its_task(task: Task, api: APIClient) -> None:
    """B37, B34."""
    correct(api, task, {"number": "INV-71"})
    assert api.delete(path(task, "")).status_code == 204
    assert not ReviewEvent.objects.exists()


def test_a_flushed_redis_loses_no_review(task: Task, api: APIClient) -> None:
    """B37."""
    corrected = correct(api, task, {"number": "INV-71"}).json()
    valkey().flushall()
    assert api.get(path(task)).json() == corrected


def test_the_original_of_a_deleted_task_is_not_null(task: Task, api: APIClient) -> None:
    """The task is deleted or retried between the two reads of its row."""
    correct(api, task, {"number": "RE-2"})
    state = RunState.of_row(Task.objects.get(pk=task.pk))
    Task.objects.filter(pk=task.pk).delete()
    with pytest.raises(review.NotCompleted):
        original_of(state)


@pytest.mark.slow
def test_a_page_of_large_changes_is_shorter(task: Task, api: APIClient) -> None:
    """B37: a change can contain megabytes."""
    for letter in "abc":
        assert correct(api, task, {"number": letter * 600_000}).status_code == 200
    page = api.get(path(task, "/history")).json()
    assert (len(page["results"]), page["next"] is None) == (1, False)
