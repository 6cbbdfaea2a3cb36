"""C1, B36: the pages of batches in a browser without JavaScript."""

import re
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client

from etl.core.states import Stage
from etl.models import DocumentBatch, Task
from tests.conftest import browser_of, change_settings
from tests.integration.etl_factories import make_batch, make_rule
from tests.integration.etl_progress import begin, complete, fail
from tests.integration.test_document_batches import body, fail_after_ocr, texts, zipped
from tests.integration.test_etl_submission import RTF

pytestmark = pytest.mark.usefixtures("transactional_db", "empty_redis")

LIST = "/app/documents/batches"


@pytest.fixture
def client(alice: User) -> Client:
    return browser_of(alice)


def page(client: Client, path: str, **options: Any) -> str:
    response = client.get(path, **options)
    assert response.status_code == 200
    return str(response.content.decode())


def test_a_form_that_is_sent_twice_creates_one_batch(client: Client, alice: User) -> None:
    """B36."""
    rule = make_rule(alice)
    key = re.search(r'name="once" value="([^"]+)"', page(client, LIST))
    assert key
    for _ in range(2):  # a double click
        form = {"name": "March", "rule_id": rule.pk, "once": key[1], "file": texts("a.txt", "b.txt")}
        response = client.post(f"{LIST}/submit", form)
        batch = DocumentBatch.objects.get()
        assert (response.status_code, response["Location"]) == (302, f"{LIST}/{batch.pk}")
    assert (batch.name, batch.rule_id, batch.total) == ("March", rule.pk, 2)
    assert "March" in page(client, LIST)
    assert f"Batch {batch.pk}" in page(client, "/app/documents")


def test_refused_files_of_an_archive_are_listed_by_name(client: Client) -> None:
    response = client.post(f"{LIST}/submit", {"file": zipped({"a.txt": b"Text.", "in/<b>.rtf": RTF})})
    shown = page(client, response["Location"])
    assert "1 file not accepted" in shown
    assert "in/&lt;b&gt;.rtf <code>unsupported_format</code>" in shown


@pytest.mark.parametrize(
    ("form", "status", "text"),
    [
        ({}, 400, "This field is required"),
        ({"file": texts("a.txt"), "rule_id": "999999"}, 400, "rule"),
        ({"file": zipped({"a.rtf": RTF})}, 400, "a.rtf: The file type is RTF."),
        ({"file": texts("a.txt", "b.txt", "c.txt")}, 429, "this needs 3 more"),
    ],
)
def test_a_refused_form_shows_its_errors(
    client: Client, settings: LazySettings, form: Any, status: int, text: str
) -> None:
    change_settings(settings, etl_max_open_per_user=2)
    for file in form.get("file", []) if isinstance(form.get("file"), list) else [form.get("file")]:
        if file:
            file.seek(0)
    response = client.post(f"{LIST}/submit", form)
    assert response.status_code == status
    assert text in response.content.decode()
    assert not DocumentBatch.objects.exists()


def test_the_page_shows_progress_and_failures_by_reason(client: Client, alice: User) -> None:
    """B36."""
    batch, tasks = make_batch(alice, 4, name="March")
    complete(tasks[0])
    fail(tasks[1])
    shown = page(client, f"{LIST}/{batch.pk}")
    assert "50 % done." in shown
    assert "data-open" in shown
    assert "Retry 1 failed document<" in shown
    assert "file_encrypted" in shown
    assert page(client, f"{LIST}/{batch.pk}?status=failed").count('class="named title"><a') == 1
    part = page(client, f"{LIST}/{batch.pk}", headers={"HX-Request": "true"})
    assert "50 % done." in part
    assert "<h1>" not in part
    for task in tasks[2:]:
        complete(task)
    ended = client.get(f"{LIST}/{batch.pk}", headers={"HX-Request": "true"})
    assert ended["HX-Refresh"] == "true"
    shown = page(client, f"{LIST}/{batch.pk}")
    assert "3 of 4 documents completed." in shown
    assert "data-open" not in shown
    assert f"← Batch {batch.pk}" in page(client, f"/app/documents/{tasks[0].pk}")


@pytest.mark.slow
def test_buttons_retry_and_cancel_a_batch(client: Client, alice: User) -> None:
    """B36."""
    batch, tasks = make_batch(alice, 3)
    fail(tasks[0])
    fail_after_ocr(tasks[1])
    begin(tasks[2])
    shown = client.post(f"{LIST}/{batch.pk}/retry", follow=True).content.decode()
    assert "2 documents queued again." in shown
    assert "2 documents cancelled." in client.post(f"{LIST}/{batch.pk}/cancel", follow=True).content.decode()
    shown = client.post(f"{LIST}/{batch.pk}/cancel", follow=True).content.decode()
    assert "Being processed: 1 document. To cancel such documents too, stop all" in shown
    shown = client.post(f"{LIST}/{batch.pk}/cancel", {"force": "1"}, follow=True).content.decode()
    assert "1 document cancelled." in shown
    assert (
        "No document of this batch has failed." in client.post(f"{LIST}/{batch.pk}/retry", follow=True).content.decode()
    )
    assert set(Task.objects.values_list("status", "phase")) == {
        ("cancelled", Stage.OCR), ("cancelled", Stage.POSTPROCESS),
    }  # fmt: skip


def test_results_can_be_downloaded(client: Client, alice: User) -> None:
    """B36: if `rows` is empty, there is a row for each document."""
    batch, tasks = make_batch(alice, 1, name="March 1/2")
    complete(tasks[0])
    response = client.get(f"{LIST}/{batch.pk}/results?format=csv&rows=&formula_policy=escape&bom=true")
    assert body(response).decode("utf-8-sig").splitlines()[0] == "task_id,filename,status,error"
    assert 'filename="March 1_2.csv"' in response["Content-Disposition"]
    assert client.get(f"{LIST}/{batch.pk}/results?format=x").status_code == 400


def test_pages_of_other_users_batches_are_not_found(alice: User, bob: User) -> None:
    """B36."""
    batch, _ = make_batch(alice)
    other = browser_of(bob)
    assert "Batch" in page(other, LIST)
    assert f'batches/{batch.pk}"' not in page(other, LIST)
    for response in (
        other.get(f"{LIST}/{batch.pk}"), other.get(f"{LIST}/{batch.pk}/results?format=csv"),
        other.post(f"{LIST}/{batch.pk}/cancel"), other.post(f"{LIST}/{batch.pk}/retry"),
    ):  # fmt: skip
        assert response.status_code == 404


def test_staff_manage_batches_in_the_admin(alice: User, pages: Client) -> None:
    """B36, C2."""
    refused = [{"filename": "secret.rtf", "code": "unsupported_format"}]
    batch, tasks = make_batch(alice, 2, name="March", refused=refused)
    fail(tasks[0])
    listed = pages.get("/admin/etl/documentbatch/").content.decode()
    assert "1 of 2" in listed
    shown = pages.get(f"/admin/etl/documentbatch/{batch.pk}/change/").content.decode()
    assert "unsupported_format" in shown
    assert "secret.rtf" not in shown
    assert pages.get(f"/admin/etl/task/?batch__batch_id__exact={batch.pk}").status_code == 200
    task = pages.get(f"/admin/etl/task/{tasks[0].pk}/change/").content.decode()
    assert f"/admin/etl/documentbatch/{batch.pk}/" in task
