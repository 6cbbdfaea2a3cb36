"""C2: the staff's pages of tasks: what they show, what may be done there (nothing), and what they cost."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from etl.models import Task
from tests.broker import valkey
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.etl_progress import complete, fail

LIST = "/admin/etl/task/"


@pytest.fixture(autouse=True)
def _empty(transactional_db: None) -> None:
    valkey().flushdb()


@pytest.fixture
def pages() -> Client:
    """A browser of somebody who may look at tasks and at nothing else."""
    staff = User.objects.create_user("sam", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_task"))
    client = Client()
    client.force_login(staff)
    return client


def text(pages: Client, url: str) -> str:
    response: Any = pages.get(url)
    assert response.status_code == 200
    return str(response.content.decode())


def test_staff_find_tasks_and_see_how_they_ended(pages: Client, alice: User) -> None:
    """C2."""
    failed, done = make_task(alice), make_task(alice, filename="<b>invoice</b>.pdf")
    fail(failed)
    complete(done)
    whole = text(pages, LIST)
    assert "file_encrypted" in whole
    assert "&lt;b&gt;invoice&lt;/b&gt;.pdf" in whole
    assert "<b>invoice" not in whole
    assert reverse("admin:etl_task_changelist") in text(pages, "/admin/")

    assert "Remove its password" in text(pages, f"{LIST}{failed.pk}/change/")
    assert "markdown_s3_key" in text(pages, f"{LIST}{done.pk}/change/")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status__exact=failed", 1),
        ("phase__exact=ocr", 2),
        ("q=alice", 3),
        ("q=bob", 0),
        ("q=x", 0),
        ("q=" + "9" * 30, 0),
    ],
)
def test_lists_are_filtered_and_searched(pages: Client, alice: User, query: str, found: int) -> None:
    """C2."""
    tasks = [make_task(alice) for _ in range(3)]
    fail(tasks[0])
    complete(tasks[1])
    assert len(pages.get(f"{LIST}?{query}").context["cl"].result_list) == found
    assert len(pages.get(f"{LIST}?q={tasks[2].pk}").context["cl"].result_list) == 1


def test_nothing_can_be_changed(pages: Client, alice: User) -> None:
    task = make_task(alice)
    assert pages.get(f"{LIST}add/").status_code == 403
    assert pages.post(f"{LIST}{task.pk}/change/", {"status": "failed"}).status_code == 403
    assert pages.post(f"{LIST}{task.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Task.objects.get().status == "pending"


def test_a_list_costs_the_same_with_many(pages: Client, alice: User) -> None:
    """C2: and reads no results."""
    rule = make_rule(alice)
    costs = []
    for count in (1, 60):
        Task.objects.bulk_create(
            Task(user=alice, rule=rule, rule_version=1, kind="txt", size=1, document_key="x") for _ in range(count)
        )
        with CaptureQueriesContext(connection) as captured:
            text(pages, LIST)
        costs.append(len(captured))
    assert costs[0] == costs[1]
    assert not any('"etl_task"."result"' in query["sql"] for query in captured.captured_queries)


def test_who_is_no_staff_sees_nothing(alice: User) -> None:
    client = Client()
    client.force_login(alice)
    assert client.get(LIST).status_code == 302
