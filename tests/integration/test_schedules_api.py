"""Schedules over the API: creation with the validation of exports, changes, manual runs, and ownership. A33."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from config.platform.db import clock
from exports.api.serializers import ExportRequestSerializer
from exports.jobs import actions, representation
from exports.models import Allowance, Dataset, Job, Schedule
from exports.schedules import runs
from tests.conftest import change_settings, client_of
from tests.integration.test_submission import submit_during_deletion

pytestmark = pytest.mark.usefixtures("empty_redis")

PATH = "/exports/schedules"


def body(**changes: Any) -> dict[str, Any]:
    return {
        "name": "Yesterday", "cron": "0 6 * * *", "timezone": "Europe/Berlin",
        "request": {"dataset": "things", "keys": ["JFK", "LGA"], "format": "jsonl"},
        "window": {"unit": "day", "from": -1, "to": -1}, "misfire": "catch_up", "enabled": True, **changes,
    }  # fmt: skip


def create(api: APIClient, **changes: Any) -> dict[str, Any]:
    response = api.post(PATH, body(**changes))
    assert response.status_code == 201, response.content
    created: dict[str, Any] = response.json()
    return created


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 400, response.content
    return {error["pointer"]: error["code"] for error in response.json()["errors"]}


def run_due(schedule: dict[str, Any]) -> datetime:
    planned = Schedule.objects.get(pk=schedule["id"]).next_run_at
    assert planned
    runs.run_due(ExportRequestSerializer.read, now=planned)
    return planned


def test_a_schedule_shows_its_next_and_its_last_run(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    response = api.post(PATH, body())
    created = response.json()
    assert response["Location"] == f"{PATH}/{created['id']}"
    assert {name: created[name] for name in body()} == body()
    assert (created["lastRun"], created["disabledReason"]) == (None, None)
    following = datetime.fromisoformat(created["nextRunAt"])
    assert following > clock.now()
    assert following.hour in (4, 5)  # 06:00 in Berlin

    planned = run_due(created)
    shown = api.get(response["Location"]).json()
    (job,) = api.get("/exports", {"scheduleId": created["id"]}).json()["results"]
    assert shown["lastRun"]["jobId"] == job["jobId"]
    assert shown["lastRun"]["status"] == job["status"] == "pending"
    assert datetime.fromisoformat(shown["lastRun"]["plannedAt"]) == planned
    assert (job["scheduleId"], datetime.fromisoformat(job["plannedAt"])) == (created["id"], planned)
    assert (job["format"], job["progress"]["total"]) == ("jsonl", 2)
    chunks = api.get(f"/exports/{job['jobId']}/chunks").json()["results"]
    day = (planned.date() - timedelta(days=1)).isoformat()
    assert [(each["key"], each["effectiveDate"]) for each in chunks] == [("JFK", day), ("LGA", day)]


def test_other_jobs_have_no_schedule_and_the_filter_accepts_only_ids(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    accepted = api.post("/exports", {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}]})
    job = api.get(accepted["Location"]).json()
    assert (job["scheduleId"], job["plannedAt"]) == (None, None)
    assert api.get("/exports", {"scheduleId": job["jobId"]}).json()["results"] == []
    assert errors(api.get("/exports", {"scheduleId": "morning"})) == {"/scheduleId": "invalid"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cron": "61 * * * *"}, {"/cron": "invalid"}),
        ({"cron": "0 0 30 2 *"}, {"/cron": "invalid"}),
        ({"cron": 6}, {"/cron": "invalid"}),
        ({"timezone": "Mars/Base"}, {"/timezone": "invalid"}),
        ({"name": " "}, {"/name": "blank"}),
        ({"misfire": "later"}, {"/misfire": "invalid_choice"}),
        ({"enabled": "yes"}, {"/enabled": "invalid"}),
        ({"window": {"unit": "week", "from": -1, "to": -1}}, {"/window/unit": "invalid_choice"}),
        ({"window": {"from": -1}}, {"/window/to": "required"}),
        ({"window": {"from": -1, "to": -2}}, {"/window/to": "invalid"}),
        ({"window": {"from": -9999, "to": -1}}, {"/window/from": "min_value"}),
        ({"request": []}, {"/request": "invalid"}),
        ({"request": {"dataset": "things"}}, {"/request/keys": "required"}),
        ({"request": {"keys": ["JFK"]}}, {"/request/dataset": "required"}),
        ({"request": {"dataset": "nothing", "keys": ["JFK"]}}, {"/request/dataset": "unknown_dataset"}),
        ({"request": {"dataset": "things", "keys": ["JFK", "../x"]}}, {"/request/keys/1": "invalid"}),
        ({"request": {"dataset": "things", "keys": ["JFK"], "format": "xml"}}, {"/request/format": "invalid_choice"}),
        ({"request": {"dataset": "things", "keys": ["A"], "deliveryTtlSeconds": 1}},
         {"/request/deliveryTtlSeconds": "min_value"}),
        ({"request": {"dataset": "things", "keys": ["A"], "filters": {}, "items": []}},
         {"/request/filters": "unknown_field", "/request/items": "unknown_field"}),
        ({"request": {"dataset": "things", "keys": ["A"], "formt": "csv"}}, {"/request/formt": "unknown_field"}),
        ({"request": {"dataset": "things", "keys": ["A"]}, "window": {"from": -3660, "to": 3660}},
         {"/request/keys": "too_many_chunks"}),
        ({"cron": "x", "request": {"dataset": "nothing", "keys": ["A"]}},
         {"/cron": "invalid", "/request/dataset": "unknown_dataset"}),
        ({"nextRunAt": "2026-01-01T00:00:00Z"}, {"/nextRunAt": "unknown_field"}),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_with_a_pointer(
    changes: dict[str, Any], expected: dict[str, str], api: APIClient, dataset: Dataset, settings: LazySettings
) -> None:
    """A33: on creation and on change, without an effect."""
    change_settings(settings, export_max_chunks_per_job=1000)
    assert errors(api.post(PATH, body(**changes))) == expected
    assert not Schedule.objects.exists()
    created = create(api)
    changed = api.patch(f"{PATH}/{created['id']}", changes)
    assert errors(changed) == expected
    assert api.get(f"{PATH}/{created['id']}").json() == created


def test_other_users_and_staff_get_404(api: APIClient, dataset: Dataset, staff: User) -> None:
    """A33."""
    created, other = create(api), client_of(staff)
    path = f"{PATH}/{created['id']}"
    for response in (other.get(path), other.patch(path, {"name": "x"}), other.delete(path), other.post(f"{path}/run")):
        assert response.status_code == 404
        assert response.json()["detail"] == "Schedule not found."
    assert other.get(PATH).json()["results"] == []
    assert other.get("/exports", {"scheduleId": created["id"]}).json()["results"] == []
    assert api.get(path).json() == created


def test_a_schedule_is_paused_and_resumed(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    path = f"{PATH}/{create(api)['id']}"
    paused = api.patch(path, {"enabled": False}).json()
    assert (paused["enabled"], paused["nextRunAt"]) == (False, None)
    assert paused["disabledReason"] == "Paused by a user."
    assert api.patch(path, {"name": "Other", "cron": "0 7 * * *"}).json()["nextRunAt"] is None
    resumed = api.patch(path, {"enabled": True}).json()
    assert (resumed["enabled"], resumed["disabledReason"], resumed["cron"]) == (True, None, "0 7 * * *")
    assert datetime.fromisoformat(resumed["nextRunAt"]) > clock.now()


def test_a_schedule_is_not_resumed_while_its_request_is_invalid(api: APIClient, dataset: Dataset) -> None:
    """A33: it can still be renamed."""
    path = f"{PATH}/{create(api, enabled=False)['id']}"
    Dataset.objects.update(formats=["csv"])
    assert errors(api.patch(path, {"enabled": True})) == {"/request/format": "invalid_choice"}
    assert api.patch(path, {"name": "Renamed"}).json()["name"] == "Renamed"


def test_a_new_timetable_is_planned_from_now_and_other_changes_keep_the_plan(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    created = create(api)
    path = f"{PATH}/{created['id']}"
    assert created["sinceLastSuccess"] is False
    changed = api.patch(path, {"window": {"from": -7, "to": -1}, "misfire": "skip", "sinceLastSuccess": True}).json()
    assert changed["sinceLastSuccess"] is True
    assert changed["nextRunAt"] == created["nextRunAt"]
    assert (changed["window"], changed["misfire"]) == ({"unit": "day", "from": -7, "to": -1}, "skip")
    replanned = api.patch(path, {"timezone": "Pacific/Auckland"}).json()
    assert replanned["nextRunAt"] != created["nextRunAt"]


def test_a_manual_run_is_an_export_for_today(api: APIClient, dataset: Dataset) -> None:
    """A33: also while the schedule is paused. Only one run can be active at a time."""
    created = create(api, enabled=False, timezone="UTC", window={"from": 0, "to": 0})
    path = f"{PATH}/{created['id']}"
    before = clock.now().date()
    response = api.post(f"{path}/run", {}, headers={"Idempotency-Key": "today"})
    assert response.status_code == 202
    job = api.get(response["Location"]).json()
    assert (job["scheduleId"], job["plannedAt"]) == (created["id"], None)
    (day,) = {each["effectiveDate"] for each in api.get(f"{response['Location']}/chunks").json()["results"]}
    assert day in {before.isoformat(), clock.now().date().isoformat()}  # they differ at midnight

    again = api.post(f"{path}/run", {}, headers={"Idempotency-Key": "today"})
    assert (again.json(), again["Idempotency-Replayed"]) == (response.json(), "true")
    busy = api.post(f"{path}/run")
    assert (busy.status_code, busy.json()["code"]) == (409, "run_active")
    actions.cancel(Job.objects.get())
    assert api.get(path).json()["lastRun"]["status"] == "cancelled"
    assert api.post(f"{path}/run").status_code == 202
    assert api.post(f"{path}/run", {"surprise": 1}).status_code == 400


def test_a_manual_run_is_refused_with_the_reason(api: APIClient, alice: User, dataset: Dataset) -> None:
    """A33."""
    path = f"{PATH}/{create(api)['id']}"
    Allowance.objects.create(user=alice, daily_jobs=0)
    assert api.post(f"{path}/run").json()["code"] == "quota_exceeded"
    Dataset.objects.update(formats=["csv"])
    refused = api.post(f"{path}/run")
    assert (refused.status_code, refused.json()["code"]) == (409, "schedule_invalid")
    assert "/request/format: This dataset supports: csv." in refused.json()["detail"]
    assert api.get(path).json()["lastRun"] is None


def test_a_manual_run_is_refused_if_its_dataset_is_deleted_meanwhile(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    path = f"{PATH}/{create(api)['id']}"
    refused = submit_during_deletion(dataset, lambda: api.post(f"{path}/run"))
    assert (refused.status_code, refused.json()["code"]) == (409, "schedule_invalid")
    assert "/dataset: Dataset not found." in refused.json()["detail"]
    assert api.get(path).json()["lastRun"] is None


def test_a_repeated_creation_makes_one_schedule(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    key = {"Idempotency-Key": "morning"}
    first = api.post(PATH, body(), headers=key)
    again = api.post(PATH, body(), headers=key)
    assert (again.status_code, again.json(), again["Idempotency-Replayed"]) == (201, first.json(), "true")
    assert api.post(PATH, body(name="Other"), headers=key).status_code == 422
    assert Schedule.objects.count() == 1


def test_the_number_of_schedules_of_a_user_is_limited(
    api: APIClient, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A33."""
    monkeypatch.setattr("exports.schedules.editing.MAX_PER_USER", 1)
    create(api)
    refused = api.post(PATH, body())
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_schedules")


def test_exports_outlive_their_schedule_and_keep_its_id(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    created = create(api)
    run_due(created)
    assert api.delete(f"{PATH}/{created['id']}").status_code == 204
    assert api.get(f"{PATH}/{created['id']}").status_code == 404
    (job,) = api.get("/exports", {"scheduleId": created["id"]}).json()["results"]
    assert job["scheduleId"] == created["id"]


def test_the_id_of_a_purged_job_is_still_shown(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    created = create(api)
    run_due(created)
    job_id = str(Job.objects.get().pk)
    Job.objects.all().delete()
    last = api.get(f"{PATH}/{created['id']}").json()["lastRun"]
    assert (last["jobId"], last["status"]) == (job_id, "purged")


def test_webhooks_name_the_schedule(api: APIClient, dataset: Dataset) -> None:
    """A33: in the body that `representation.webhook_job` builds for every event."""
    created = create(api)
    planned = run_due(created)
    actions.cancel(Job.objects.get())
    job = representation.with_details(Job.objects.all()).get()
    sent = representation.webhook_job(job, datetime.now(UTC))
    assert (sent["scheduleId"], sent["plannedAt"]) == (created["id"], planned)


def test_lists_of_any_length_take_the_same_number_of_queries(api: APIClient, dataset: Dataset) -> None:
    """A33."""
    counts: list[int] = []
    for _ in range(2):
        run_due(create(api))
        with CaptureQueriesContext(connection) as queries:
            assert len(api.get(PATH).json()["results"]) == len(counts) + 1
        counts.append(len(queries))
    assert counts[0] == counts[1]
