"""Deletion of tasks and all their data, on request and after their retention time. B34."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.utils import timezone
from pydantic import AnyHttpUrl, SecretStr
from rest_framework.test import APIClient

from config.platform import storage
from etl import runstate
from etl.core.states import Stage
from etl.maintenance import cleanup
from etl.models import Deletion, ModelUsage, Task
from etl.pipeline import actions, artifacts, deletion, page_images
from tests import scripted_stages
from tests.conftest import change_settings, client_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.stage_runs import ConfigureStages, row_of, run, run_beside, seen
from tests.integration.test_etl_api import path
from tests.integration.test_staff_access import staff_with
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("configure_stages")


def objects(task: Task) -> set[str]:
    """Return the keys of all objects of a task."""
    prefixes = [task.document_key, *artifacts.folders_of(task.pk)]
    return {item.key for prefix in prefixes for item in storage.list_objects(prefix)}


def completed(user: User, **changes: Any) -> Task:
    task = make_task(user, "Hello.\npost:spend 7", rule=make_rule(user, mode="llm", name=f"of {user.pk}"), **changes)
    assert run(task) == [True, True]
    storage.put(page_images.key_of(task, 1, 320), b"", content_type=page_images.MEDIA_TYPE)
    assert len(objects(task)) >= 4
    return row_of(task)


# ---- On request -----------------------------------------------------------------------------------------------------
def test_only_log_entries_and_model_usage_of_a_deleted_task_remain(api: APIClient, alice: User) -> None:
    """B34."""
    task = completed(alice)
    response = api.delete(path(task))
    assert (response.status_code, response.content) == (204, b"")
    assert api.get(path(task)).status_code == 404
    assert api.get(path(task, "markdown")).status_code == 404
    assert api.get("/api/v1/etl/tasks").json()["results"] == []
    assert api.delete(path(task)).status_code == 404
    assert objects(task) == set()
    assert runstate.read(task.pk) is None
    assert not Task.objects.filter(pk=task.pk).exists()
    entry = LogEntry.objects.get(object_id=str(task.pk))
    assert (entry.action_flag, entry.user, entry.change_message) == (DELETION, alice, "Over the API: deleted.")
    assert ModelUsage.objects.filter(task_id=task.pk).exists()  # the record of paid tokens


def test_a_pending_task_is_cancelled_and_deleted(api: APIClient, alice: User) -> None:
    task = make_task(alice)
    assert api.delete(path(task)).status_code == 204
    assert run(task) == [False, False]
    assert (objects(task), scripted_stages.calls(f"ocr-{task.pk}")) == (set(), [])


@pytest.mark.slow
def test_a_running_task_is_only_deleted_with_force(api: APIClient, alice: User) -> None:
    task = make_task(alice, "until never")
    done: list[bool] = []
    thread = run_beside(task, Stage.OCR, done)
    wait_until(lambda: seen(task).token)
    refused = api.delete(path(task))
    assert (refused.status_code, refused.json()["code"]) == (409, "not_ended")
    assert row_of(task).status == "pending"
    assert api.delete(f"{path(task)}?force=maybe").json()["errors"][0]["pointer"] == "/force"

    assert api.delete(f"{path(task)}?force=true").status_code == 204
    thread.join()
    assert done == [False]
    assert (objects(task), runstate.read(task.pk)) == (set(), None)


def test_other_users_cannot_delete_and_staff_need_the_permission(alice: User, bob: User) -> None:
    task = completed(alice)
    assert client_of(bob).delete(path(task)).status_code == 404
    assert client_of(staff_with("view_task")).delete(path(task)).status_code == 403
    assert client_of(staff_with("view_task", "change_task")).delete(path(task)).status_code == 403
    assert client_of(staff_with("view_task", "change_task", "delete_task")).delete(path(task)).status_code == 204


def test_the_idempotency_key_of_a_deleted_task_can_be_reused(alice: User) -> None:
    task = completed(alice, idempotency_key="again", fingerprint="0" * 64)
    deletion.delete(task, user=alice, message="")
    assert completed(alice, idempotency_key="again", fingerprint="0" * 64).pk != task.pk


# ---- Failures -------------------------------------------------------------------------------------------------------
def test_it_deletes_nothing_without_redis(alice: User, configure_stages: ConfigureStages) -> None:
    """Otherwise, the API would still show the run-state."""
    task = completed(alice)
    before = objects(task)
    configure_stages(etl_redis_url=SecretStr("redis://127.0.0.1:9/0"))
    with pytest.raises(actions.RunStateUnavailable):
        deletion.delete(task, user=alice, message="")
    assert row_of(task).status == "completed"
    assert objects(task) == before


def test_it_deletes_objects_later_if_the_storage_is_unavailable(
    alice: User, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = completed(alice)
    before, working = objects(task), settings.SLUICE
    change_settings(settings, s3_endpoint_url=AnyHttpUrl("http://127.0.0.1:9"))
    deletion.delete(task, user=alice, message="")
    settings.SLUICE = working
    assert not Task.objects.filter(pk=task.pk).exists()
    assert objects(task) == before

    assert deletion.finish_deletions() == 0  # a worker may still write
    monkeypatch.setattr(deletion, "GRACE", timedelta(0))
    assert deletion.finish_deletions() == 1
    assert objects(task) == set()
    assert not Deletion.objects.exists()


def test_a_task_retried_in_the_meantime_is_kept(alice: User) -> None:
    task = completed(alice)
    actions.retry(task=row_of(task), from_stage=Stage.OCR)
    with pytest.raises(deletion.ChangedMeanwhile):
        deletion.delete(task, user=alice, message="")
    assert row_of(task).status == "pending"
    assert not Deletion.objects.exists()
    assert not LogEntry.objects.filter(object_id=str(task.pk)).exists()


def test_a_task_deleted_in_the_meantime_is_not_found(alice: User) -> None:
    task = completed(alice)
    same = row_of(task)
    deletion.delete(task, user=alice, message="")
    with pytest.raises(actions.NoSuchTask):
        deletion.delete(same, user=alice, message="")
    assert LogEntry.objects.filter(object_id=str(same.pk), action_flag=DELETION).count() == 1


def test_objects_written_by_a_late_worker_are_deleted(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    task = completed(alice)
    deletion.delete(task, user=alice, message="")
    storage.put(f"{artifacts.folder(task)}ocr-1/late.md", b"late", content_type="text/markdown")
    monkeypatch.setattr(deletion, "GRACE", timedelta(0))
    assert cleanup.sweep() == []
    assert objects(task) == set()


# ---- Retention ------------------------------------------------------------------------------------------------------
def test_tasks_are_deleted_when_they_expire(api: APIClient, alice: User) -> None:
    """B34."""
    short, kept = completed(alice), completed(alice)
    Task.objects.filter(pk=short.pk).update(expires_at=timezone.now() - timedelta(minutes=1))
    Task.objects.filter(pk=kept.pk).update(expires_at=timezone.now() + timedelta(minutes=1))
    assert deletion.delete_expired() == 1
    assert (objects(short), len(objects(kept)) > 0) == (set(), True)
    assert [each["task_id"] for each in api.get("/api/v1/etl/tasks").json()["results"]] == [kept.pk]


FAILING_COMMIT = """
CREATE FUNCTION no_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'No commit.'; END $$;
CREATE CONSTRAINT TRIGGER no_commit AFTER DELETE ON etl_task DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION no_commit();
"""


def test_an_expired_task_whose_deletion_is_not_committed_keeps_its_objects(alice: User) -> None:
    """The next sweep deletes the task and its objects."""
    task = completed(alice, expires_at=timezone.now() - timedelta(days=1))
    before = objects(task)
    with connection.cursor() as cursor:
        cursor.execute(FAILING_COMMIT)
        try:
            with pytest.raises(DatabaseError):
                deletion.delete_expired()
        finally:
            cursor.execute("DROP FUNCTION no_commit CASCADE")
    assert before
    assert objects(task) == before
    assert deletion.delete_expired() == 1
    assert objects(task) == set()


def test_tasks_are_deleted_after_the_configured_days(alice: User, configure_stages: ConfigureStages) -> None:
    old, new = completed(alice), completed(alice)
    chosen, running = completed(alice), make_task(alice)
    Task.objects.exclude(pk=new.pk).update(created_at=timezone.now() - timedelta(days=31))
    Task.objects.filter(pk=chosen.pk).update(expires_at=timezone.now() + timedelta(days=60))
    assert deletion.delete_expired() == 0  # 0 days: kept
    configure_stages(etl_retention_days=30)
    assert deletion.delete_expired() == 1
    assert set(Task.objects.values_list("pk", flat=True)) == {new.pk, chosen.pk, running.pk}
    assert objects(old) == set()


@pytest.mark.parametrize("days", [1, 36_500])
def test_a_client_can_set_the_retention_of_a_task(api: APIClient, days: int) -> None:
    stored = api.post(
        "/api/v1/etl/uploads", {"filename": "a.txt", "content_type": "text/plain", "size": 6}, format="json"
    )
    storage.put(stored.json()["file_key"], b"Hello.", content_type="text/plain")
    body = {"file_key": stored.json()["file_key"], "keep_days": days}
    response = api.post("/api/v1/etl/submit", body, format="json")
    assert response.status_code == 202, response.content
    task = Task.objects.get(pk=response.json()["task_id"])
    assert task.expires_at is not None
    assert abs(task.expires_at - timezone.now() - timedelta(days=days)) < timedelta(minutes=1)


@pytest.mark.parametrize("days", [0, 36_501, "1", True])
def test_an_invalid_number_of_days_is_refused(api: APIClient, days: object) -> None:
    response = api.post("/api/v1/etl/submit", {"file_key": "etl/uploads/1/x", "keep_days": days}, format="json")
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/keep_days")


def test_objects_of_another_service_are_kept(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that share a bucket have tasks with the same IDs, but with different run numbers."""
    task = completed(alice)
    theirs = f"{artifacts.folder(task)}ocr-9405313/theirs.md"
    storage.put(theirs, b"theirs", content_type="text/markdown")
    deletion.delete(task, user=alice, message="")
    assert objects(task) == {theirs}
    monkeypatch.setattr(deletion, "GRACE", timedelta(0))
    assert deletion.finish_deletions() == 1
    assert objects(task) == {theirs}
    storage.delete(theirs)


def test_an_object_that_cannot_be_deleted_does_not_keep_others(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, an object under a legal hold."""
    held, other = completed(alice), completed(alice)
    for task in (held, other):
        deletion.delete(task, user=alice, message="")
    delete_objects = deletion.delete_objects

    def refuse(row: Deletion) -> None:
        if row.pk == held.pk:
            raise storage.RequestFailed("1 of 4 objects were not deleted", retryable=True)
        delete_objects(row)

    monkeypatch.setattr(deletion, "GRACE", timedelta(0))
    monkeypatch.setattr(deletion, "delete_objects", refuse)
    with pytest.raises(storage.RequestFailed):
        deletion.finish_deletions()
    assert [row.pk for row in Deletion.objects.all()] == [held.pk]
