"""Access of staff to objects of other users: permissions in the API and on pages, and entries in the audit log."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from knox.models import AuthToken
from rest_framework.test import APIClient

from config.platform.http.auth import Credential, valid_credentials
from etl.core.states import Stage
from etl.models import Task
from exports.models import Dataset, Job
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.factories import make_job
from tests.integration.locks import waits_for_a_lock
from tests.integration.stage_runs import row_of, run
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("configure_stages")

DOCUMENTS, EXPORTS = "/api/v1/etl/tasks", "/exports"
VIEW = ("view_task", "view_job", "view_rule")
CHANGE = ("change_task", "change_job")


def staff_with(*permissions: str) -> User:
    user = User.objects.create_user(f"staff-{len(permissions)}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def records(row: Any) -> list[str]:
    entries = LogEntry.objects.filter(object_id=str(row.pk)).order_by("pk")
    return [entry.get_change_message() for entry in entries]


@pytest.fixture
def document(alice: User) -> Task:
    task = make_task(alice)
    run(task)
    assert row_of(task).status == "completed"
    return task


@pytest.fixture
def job(dataset: Dataset, alice: User) -> Job:
    return make_job(dataset, alice)


# ---- Without permission ---------------------------------------------------------------------------------------------
def test_staff_status_alone_opens_nothing(document: Task, job: Job, alice: User) -> None:
    """Documents, exports, and rules of another user return 404, in the API and on pages."""
    rule = make_rule(alice, name="hers")
    user = staff_with()
    api, pages = client_of(user), browser_of(user)
    for path in ("", "/markdown", "/events"):
        assert api.get(f"{DOCUMENTS}/{document.pk}{path}").status_code == 404, path
    for path in ("", "/chunks", "/events"):
        assert api.get(f"{EXPORTS}/{job.pk}{path}").status_code == 404, path
    assert api.get(f"/api/v1/etl/rules/{rule.pk}").status_code == 404
    for path in ("", "/original", "/markdown", "/json", "/pages", "/branch"):
        assert pages.get(f"/app/documents/{document.pk}{path}").status_code == 404, path
    assert pages.get(f"/app/exports/{job.pk}").status_code == 404
    assert pages.get(f"/app/rules/{rule.pk}").status_code == 404
    assert_unchanged_by(api, pages, document, job, status=404)
    assert not LogEntry.objects.exists()


def assert_unchanged_by(api: APIClient, pages: Client, document: Task, job: Job, *, status: int) -> None:
    for path in ("cancel", "retry"):
        body = {"from_stage": "ocr"} if path == "retry" else None
        assert api.post(f"{DOCUMENTS}/{document.pk}/{path}", body).status_code == status, path
        form = pages.post(f"/app/documents/{document.pk}/{path}", body or {})
        assert form.status_code == (404 if status == 404 else 302), path
    for path in ("cancel", "retry", "replay"):
        assert api.post(f"{EXPORTS}/{job.pk}/{path}").status_code == status, path
        assert pages.post(f"/app/exports/{job.pk}/{path}").status_code == (404 if status == 404 else 302), path
    assert row_of(document).status == "completed"
    job.refresh_from_db()
    assert (job.status, Job.objects.count()) == ("pending", 1)


def test_staff_who_may_only_view_change_nothing(document: Task, job: Job) -> None:
    user = staff_with(*VIEW)
    api, pages = client_of(user), browser_of(user)
    assert api.get(f"{DOCUMENTS}/{document.pk}").status_code == 200
    assert pages.get(f"/app/exports/{job.pk}").status_code == 200
    before = LogEntry.objects.count()
    assert_unchanged_by(api, pages, document, job, status=403)
    assert api.post(f"{EXPORTS}/{job.pk}/cancel").json()["code"] == "permission_denied"
    assert LogEntry.objects.count() == before


def test_pages_offer_only_the_permitted_actions(document: Task, job: Job, alice: User) -> None:
    """B14: a button without permission would only lead to an error."""
    running = make_task(alice)
    offered = ("/cancel", "/retry")
    for path in (f"/app/documents/{document.pk}", f"/app/documents/{running.pk}", f"/app/exports/{job.pk}"):
        viewers, changers = (
            browser_of(staff_with(*which)).get(path).content.decode() for which in (VIEW, VIEW + CHANGE)
        )
        assert not any(f'{path}{each}"' in viewers for each in offered)
        assert any(f'{path}{each}"' in changers for each in offered)
        User.objects.filter(username__startswith="staff-").delete()


def test_staff_without_permission_to_change_cannot_export_again(job: Job, alice: User) -> None:
    """B14."""
    assert client_of(alice).post(f"{EXPORTS}/{job.pk}/cancel").status_code == 200
    path = f"/app/exports/{job.pk}"
    assert f'{path}/replay"' not in browser_of(staff_with(*VIEW)).get(path).content.decode()
    assert f'{path}/replay"' in browser_of(staff_with(*VIEW, *CHANGE)).get(path).content.decode()


def test_permissions_without_staff_status_open_nothing(document: Task, job: Job, bob: User) -> None:
    bob.user_permissions.set(Permission.objects.filter(codename__in=(*VIEW, *CHANGE)))
    assert client_of(bob).get(f"{DOCUMENTS}/{document.pk}").status_code == 404
    assert client_of(bob).post(f"{EXPORTS}/{job.pk}/cancel").status_code == 404


# ---- Changes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_api", [True, False])
def test_changes_by_staff_are_recorded(document: Task, job: Job, alice: User, *, is_api: bool) -> None:
    user = staff_with(*VIEW, *CHANGE)
    client: Any = client_of(user) if is_api else browser_of(user)
    tasks, jobs = (DOCUMENTS, EXPORTS) if is_api else ("/app/documents", "/app/exports")
    client.post(f"{tasks}/{document.pk}/retry", {"from_stage": "ocr"})
    client.post(f"{tasks}/{document.pk}/cancel")
    client.post(f"{jobs}/{job.pk}/replay")
    client.post(f"{jobs}/{job.pk}/cancel")

    assert row_of(document).status == "cancelled"
    job.refresh_from_db()
    assert job.status == "cancelled"
    where = "Over the API: " if is_api else "On the web page: "
    assert len(records(document)) == len(records(job)) == 2
    assert all(message.startswith(where) for message in records(document) + records(job))
    assert set(LogEntry.objects.values_list("user__username", flat=True)) == {user.username}


def test_refused_changes_and_changes_of_own_objects_are_not_recorded(document: Task, job: Job, alice: User) -> None:
    user = staff_with(*VIEW, *CHANGE)
    api, pages = client_of(user), browser_of(user)
    assert api.post(f"{DOCUMENTS}/{document.pk}/cancel").status_code == 409
    assert pages.post(f"/app/documents/{document.pk}/cancel").status_code == 302
    assert api.post(f"{EXPORTS}/{job.pk}/retry").status_code == 409
    own = make_task(user)
    assert api.post(f"{DOCUMENTS}/{own.pk}/cancel").status_code == 200
    assert client_of(alice).post(f"{EXPORTS}/{job.pk}/cancel").status_code == 200
    assert not LogEntry.objects.exists()


def test_a_change_of_a_document_that_is_deleted_meanwhile_is_not_recorded(
    transactional_db: None, document: Task
) -> None:
    browser, number = browser_of(staff_with(*VIEW, *CHANGE)), document.pk

    def retry() -> int:
        try:
            return browser.post(f"/app/documents/{number}/retry", {"from_stage": Stage.OCR}).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Task.objects.select_for_update().get(pk=number)
            request = pool.submit(retry)
            wait_until(waits_for_a_lock)
            document.delete()
        assert request.result(60) == 404
    assert not LogEntry.objects.exists()


def test_a_retry_by_staff_uses_the_owners_quota(document: Task, alice: User, settings: Any) -> None:
    change_settings(settings, etl_max_open_per_user=1)
    make_task(alice)
    user = staff_with(*VIEW, *CHANGE)
    response = client_of(user).post(f"{DOCUMENTS}/{document.pk}/retry", {"from_stage": Stage.OCR})
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert records(document) == []


# ---- Content --------------------------------------------------------------------------------------------------------
READS: dict[str, Callable[[Any, int], Any]] = {
    "Over the API: opened the result.": lambda client, pk: client.get(f"{DOCUMENTS}/{pk}"),
    "Over the API: opened the Markdown.": lambda client, pk: client.get(f"{DOCUMENTS}/{pk}/markdown"),
    "On the web page: opened the document.": lambda client, pk: client.get(f"/app/documents/{pk}"),
    "On the web page: downloaded the original document.": lambda client, pk: client.get(
        f"/app/documents/{pk}/original"
    ),
    "On the web page: downloaded the md file.": lambda client, pk: client.get(f"/app/documents/{pk}/markdown"),
}


def opened(response: Any) -> int:
    """Read the response to its end, and return its status."""
    if response.streaming:
        list(response)
    return int(response.status_code)


@pytest.mark.parametrize("message", READS)
def test_opening_the_content_of_another_users_document_is_recorded_once_an_hour(
    document: Task, alice: User, message: str
) -> None:
    user = staff_with("view_task", "open_data")
    client = browser_of if "web page" in message else client_of
    for _ in range(2):
        assert opened(READS[message](client(user), document.pk)) in {200, 302}
    assert records(document) == [message]
    opened(READS[message](client(alice), document.pk))
    assert records(document) == [message]


def test_the_status_of_a_document_is_not_content(alice: User) -> None:
    task = make_task(alice)
    user = staff_with("view_task", "open_data")
    assert client_of(user).get(f"{DOCUMENTS}/{task.pk}").status_code == 200
    assert browser_of(user).get(f"/app/documents/{task.pk}").status_code == 200
    assert not LogEntry.objects.exists()


def test_parts_of_a_page_are_content(document: Task) -> None:
    user = staff_with("view_task", "open_data")
    assert browser_of(user).get(f"/app/documents/{document.pk}/pages").status_code == 200
    assert records(document) == ["On the web page: opened the document."]


def test_markdown_that_staff_open_in_the_rule_editor_is_recorded(alice: User) -> None:
    document = make_task(alice, rule=make_rule(alice))
    run(document)
    page = browser_of(staff_with(*VIEW, "open_data")).get(f"/app/rules/markdown?document={document.pk}")
    assert page.status_code == 200
    assert "Hello." in page.content.decode()
    assert LogEntry.objects.filter(object_id=document.pk).exists()


# ---- During a stream ------------------------------------------------------------------------------------------------
@pytest.mark.django_db
def test_the_credential_of_a_stream_is_invalid_when_staff_lose_the_permission() -> None:
    user = staff_with("view_task")
    token, _ = AuthToken.objects.create(user=user)
    watching = Credential(user.pk, "etl.view_task", token=token.digest)
    own = Credential(user.pk, token=token.digest)
    assert valid_credentials([watching, own]) == {watching, own}
    user.user_permissions.clear()
    assert valid_credentials([watching, own]) == {own}
