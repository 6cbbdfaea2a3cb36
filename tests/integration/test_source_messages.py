"""The message of the source for a failed chunk: visibility, length, and absence from the log. A34."""

from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from exports.api import event_hub
from exports.core.errors import with_meaning
from exports.jobs import actions
from exports.models import Chunk, Dataset, Grant, Job
from exports.source.errors import MAX_MESSAGE
from exports.worker import execution
from tests.conftest import browser_of, change_settings, client_of
from tests.integration.factories import finish, make_job
from tests.integration.staff import page_of, text_of
from tests.integration.test_execution import replace_function

pytestmark = pytest.mark.usefixtures("empty_bucket")

RAISED = "RAISE EXCEPTION 'secret <b>row</b> 42' USING DETAIL = 'row (42)', HINT = E'Ask\\x1bus.';"
MESSAGE = "secret <b>row</b> 42\nrow (42)\nAsk us."


@pytest.fixture
def failed(dataset: Dataset, alice: User, source_db: psycopg.Connection, settings: Any) -> Job:
    """A job with a chunk whose only attempt failed, because the function raised an error."""
    change_settings(settings, export_max_attempts=1)
    replace_function(source_db, RAISED)
    job = make_job(dataset, alice, 1, allow_degraded=False)
    execution.drain()
    job.refresh_from_db()
    assert job.status == "failed"
    return job


def chunk_of(client: APIClient, job: Job) -> dict[str, Any]:
    chunk: dict[str, Any] = client.get(f"/exports/{job.pk}/chunks").json()["results"][0]
    return chunk


def show_errors() -> None:
    Dataset.objects.update(show_errors=True)


# ---- The row --------------------------------------------------------------------------------------------------------


def test_the_chunk_has_the_message_and_the_log_does_not(failed: Job, caplog: Any) -> None:
    """A34: the message has the detail and the hint, without control characters."""
    assert failed.chunks.get().source_message == MESSAGE
    for text in (caplog.text, failed.error_detail, failed.chunks.get().error_detail):
        assert "secret" not in text
        assert "row (42)" not in text


@pytest.mark.parametrize("body", ["RAISE EXCEPTION '%', repeat('x', 100000);", "PERFORM repeat('y', 100000)::int;"])
def test_the_message_is_bounded(dataset: Dataset, alice: User, source_db: psycopg.Connection, body: str) -> None:
    """A34."""
    replace_function(source_db, body)
    make_job(dataset, alice, 1)
    execution.drain()
    assert len(Chunk.objects.get().source_message) == MAX_MESSAGE


def test_a_retry_and_a_success_clear_the_message(
    dataset: Dataset, failed: Job, source_db: psycopg.Connection, alice: User
) -> None:
    """A34: it belongs to the latest error."""
    actions.retry(failed)
    assert Chunk.objects.get().source_message == ""
    execution.drain()
    assert Chunk.objects.get().source_message == MESSAGE
    replace_function(source_db, "")
    actions.retry(failed)
    assert finish(failed).chunks.get().source_message == ""


def test_a_snapshot_has_the_message_of_the_failure_that_it_replaces(
    dataset: Dataset, alice: User, source_db: psycopg.Connection, settings: Any
) -> None:
    """A34: the source failed, so staff see the reason."""
    change_settings(settings, export_max_attempts=1)
    finish(make_job(dataset, alice, 1))
    replace_function(source_db, RAISED)
    finish(job := make_job(dataset, alice, 1, reuse="never"))
    assert (job.chunks.get().source, job.chunks.get().source_message) == ("snapshot", MESSAGE)


# ---- Owners ---------------------------------------------------------------------------------------------------------


def test_owners_see_it_only_if_the_dataset_shows_errors(failed: Job, api: APIClient) -> None:
    """A34."""
    assert api.get("/exports/datasets/things").json()["showErrors"] is False
    assert chunk_of(api, failed)["sourceMessage"] is None
    show_errors()
    assert api.get("/exports/datasets/things").json()["showErrors"] is True
    assert chunk_of(api, failed)["sourceMessage"] == MESSAGE


def test_other_users_see_the_message_only_in_the_admin(failed: Job, bob: User, staff: User, pages: Client) -> None:
    """A34: staff who may see the job can use the admin, which records the access."""
    show_errors()
    assert client_of(bob).get(f"/exports/{failed.pk}/chunks").status_code == 404
    assert chunk_of(client_of(staff), failed)["sourceMessage"] is None
    assert "secret" not in text_of(pages.get(f"/app/exports/{failed.pk}"))


def test_an_owner_without_access_to_the_key_does_not_see_the_message(
    failed: Job, dataset: Dataset, alice: User, api: APIClient
) -> None:
    """A34, C12."""
    show_errors()
    group = Group.objects.create(name="team")
    alice.groups.add(group)
    grant = Grant.objects.create(dataset=dataset, group=group, key_pattern="LGA")
    assert chunk_of(api, failed)["sourceMessage"] is None
    Grant.objects.filter(pk=grant.pk).update(key_pattern="JFK")
    assert chunk_of(api, failed)["sourceMessage"] == MESSAGE


def test_streams_do_not_contain_the_message(failed: Job, api: APIClient) -> None:
    """A34: the owner and staff receive the same frames."""
    show_errors()
    frames = b"".join(frame for _, frame in event_hub.read({failed.pk: 0})[0][failed.pk].frames)
    assert b'"sourceMessage":null' in frames
    assert b"secret" not in frames
    assert "secret" not in api.get(f"/exports/{failed.pk}").content.decode()


def test_the_page_shows_the_message_with_the_summary_of_failures(failed: Job, alice: User) -> None:
    """A34: the message is escaped."""
    browser = browser_of(alice)
    page = f"/app/exports/{failed.pk}"
    assert "secret" not in browser.get(page).content.decode()
    show_errors()
    shown = browser.get(page).content.decode()
    assert "secret &lt;b&gt;row&lt;/b&gt; 42" in shown
    assert 'The source database reports for JFK <span class="nowrap">2024-02-28</span>:' in shown
    assert "raised by the function" in shown


def test_chunks_without_a_message_cost_no_query(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A34: the three queries read the token, the job, and its chunks."""
    show_errors()
    job = make_job(dataset, alice, 3)
    with CaptureQueriesContext(connection) as queries:
        api.get(f"/exports/{job.pk}/chunks")
    assert len(queries) == 3


# ---- Staff ----------------------------------------------------------------------------------------------------------


def test_staff_see_it_in_the_admin_and_access_is_recorded(failed: Job, pages: Client, staff: User) -> None:
    """A34: for every dataset, with at most one record per hour and chunk."""
    chunk = failed.chunks.get()
    for _ in range(2):
        assert "secret <b>row</b> 42" in text_of(pages.get(page_of(chunk)))
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (staff, str(failed.pk))
    assert entry.change_message == f"Read the source's message of chunk {chunk.pk}."
    assert "secret" not in entry.change_message + entry.object_repr
    assert "secret" not in text_of(pages.get("/admin/exports/chunk/"))


def test_staff_without_the_permission_do_not_see_the_message(failed: Job, bob: User) -> None:
    """A34."""
    bob.is_staff = True
    bob.save()
    bob.user_permissions.add(Permission.objects.get(codename="view_job"))
    browser = browser_of(bob)
    assert browser.get(page_of(failed.chunks.get())).status_code == 403
    assert "secret" not in text_of(browser.get(page_of(failed)))
    assert not LogEntry.objects.exists()


# ---- Texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("SQLSTATE 22012", "SQLSTATE 22012: division by zero"),
        ("SQLSTATE 42501", "SQLSTATE 42501: insufficient privilege"),
        ("SQLSTATE P0001", "SQLSTATE P0001: raised by the function"),
        ("SQLSTATE 25006", "SQLSTATE 25006: write in a read-only transaction"),
        ("SQLSTATE ZZ999", "SQLSTATE ZZ999"),
        ("a row has 5 bytes", "a row has 5 bytes"),
        ("", ""),
    ],
)
def test_a_known_sqlstate_is_explained(detail: str, words: str) -> None:
    """A34: other details, such as codes of future Postgres versions, stay as they are."""
    assert with_meaning(detail) == words
