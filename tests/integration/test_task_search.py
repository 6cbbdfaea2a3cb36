"""Search for documents in the API, on the page, and in the admin. Duplicate and bulk-deleted documents. B39."""

import unicodedata
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from config.platform import storage
from etl import runstate
from etl.core.states import Stage, Status
from etl.maintenance import recovery
from etl.models import Task
from etl.pipeline import deletion, execution
from rules.models import Rule
from tests.broker import valkey
from tests.conftest import browser_of, change_settings
from tests.integration.etl_factories import make_row, make_rule, make_task
from tests.integration.etl_progress import complete, fail
from tests.integration.plans import Plan, nodes, plan_lines, plans_of, rows_of
from tests.integration.staff import confirm, list_of, messages_of, select
from tests.integration.stage_runs import row_of, run
from tests.integration.test_leases import in_threads
from tests.integration.test_submission import pointers

TASKS = "/api/v1/etl/tasks"
SUBMIT = "/api/v1/etl/submit"
PAGE = "/app/documents"


def found(api: APIClient, **filters: Any) -> list[str]:
    response = api.get(f"{TASKS}?{urlencode(filters)}")
    assert response.status_code == 200, response.json()
    return [task["filename"] for task in response.json()["results"]]


def refused(api: APIClient, **filters: Any) -> set[tuple[str, str]]:
    response = api.get(f"{TASKS}?{urlencode(filters)}")
    assert response.status_code == 400, response.json()
    return pointers(response)


def on(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


# ---- Search ---------------------------------------------------------------------------------------------------------
def test_a_part_of_the_file_name_is_enough(api: APIClient, alice: User, bob: User) -> None:
    """B39."""
    for name in ("Invoice-0042.pdf", "old invoice.pdf", "100%_sure.pdf", "ÜBERSICHT.pdf"):
        make_row(alice, filename=name)
    make_row(bob, filename="invoice of bob.pdf")
    assert found(api, q="invoice") == ["old invoice.pdf", "Invoice-0042.pdf"]
    assert found(api, q=" VOICE-00 ") == ["Invoice-0042.pdf"]
    assert found(api, q="%_s") == ["100%_sure.pdf"]
    assert found(api, q="a%e") == []
    assert found(api, q="übersicht") == ["ÜBERSICHT.pdf"]
    assert len(found(api, q="")) == 4


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_name_is_found_in_each_unicode_form(api: APIClient, form: Literal["NFC", "NFD"]) -> None:
    """B39: some systems send decomposed letters."""
    name = unicodedata.normalize(form, "Überweisung.md")
    api.post(SUBMIT, {"file": SimpleUploadedFile(name, b"Hello.")}, format="multipart")
    for sought in ("NFC", "NFD"):
        assert found(api, q=unicodedata.normalize(sought, "überw")) == ["Überweisung.md"]


def test_a_name_is_found_with_the_characters_that_were_removed_from_it(api: APIClient) -> None:
    """B39: macOS writes a narrow no-break space into the names of screenshots."""
    name = "Screenshot at 9.41.00\u202fAM.md"
    api.post(SUBMIT, {"file": SimpleUploadedFile(name, b"Hello.")}, format="multipart")
    assert found(api, q=name) == ["Screenshot at 9.41.00AM.md"]


def test_a_short_text_matches_the_beginning_of_the_name(api: APIClient, alice: User) -> None:
    """B39."""
    for name in ("Invoice.pdf", "my invoice.pdf"):
        make_row(alice, filename=name)
    assert found(api, q="in") == ["Invoice.pdf"]


def test_rule_status_and_days_are_combined(api: APIClient, alice: User) -> None:
    """B39."""
    rule = make_rule(alice, name="other")
    for name, created_at in (("a", "2024-02-28T23:59:59.999999"), ("b", "2024-02-29"), ("c", "2024-03-01")):
        make_row(alice, filename=name, created_at=on(created_at))
    make_row(alice, filename="d", rule=rule, created_at=on("2024-02-29T23:59:59.999999"))
    assert found(api, **{"from": "2024-02-29", "to": "2024-02-29"}) == ["d", "b"]
    assert found(api, **{"from": "2024-03-01"}) == ["c"]
    assert found(api, to="2024-02-28") == ["a"]
    assert found(api, rule_id=rule.pk) == ["d"]
    assert found(api, rule_id=rule.pk, to="2024-02-28") == []
    assert found(api, rule_id=10**15) == []
    Task.objects.filter(filename="b").update(status="cancelled")
    assert found(api, status="cancelled", **{"from": "2024-02-29"}) == ["b"]
    assert found(api, status="pending", rule_id=rule.pk) == ["d"]


def test_pages_of_results_keep_the_filters(api: APIClient, alice: User) -> None:
    """B39."""
    for number in range(5):
        make_row(alice, filename=f"invoice {number}")
        make_row(alice, filename="other")
    names, url = [], f"{TASKS}?q=invoice&limit=2"
    while url:
        page = api.get(url).json()
        names += [task["filename"] for task in page["results"]]
        url = page["next"]
    assert names == [f"invoice {number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("filters", "errors"),
    [
        ({"q": "a" * 256}, {("/q", "max_length")}),
        ({"q": "a\x07b"}, {("/q", "invalid")}),
        ({"rule_id": "0"}, {("/rule_id", "invalid")}),
        ({"rule_id": "x", "status": "done"}, {("/rule_id", "invalid"), ("/status", "invalid_choice")}),
        ({"from": "2024-02-30"}, {("/from", "invalid")}),
        ({"from": "2024-W09-4", "to": "20240229"}, {("/from", "invalid"), ("/to", "invalid")}),
        ({"from": "2024-03-01", "to": "2024-02-29"}, {("/to", "invalid")}),
        ({"to": ""}, {("/to", "invalid")}),
    ],
)
def test_invalid_filters_are_refused_by_name(api: APIClient, filters: Any, errors: set[Any]) -> None:
    """B39."""
    assert refused(api, **filters) == errors


def test_the_first_and_last_possible_days_are_accepted(api: APIClient, alice: User) -> None:
    make_row(alice, filename="a")
    assert found(api, **{"from": "0001-01-01", "to": "9999-12-31"}) == ["a"]


def test_the_page_has_the_same_filters(alice: User) -> None:
    """B39."""
    client = browser_of(alice)
    rule = make_rule(alice, name="of alice")
    make_row(alice, filename="Invoice-7.pdf", rule=rule)
    make_row(alice, filename="letter.pdf")
    page = client.get(f"{PAGE}?q=voice&rule_id={rule.pk}&from=&to=").content.decode()
    assert "Invoice-7.pdf" in page
    assert "letter.pdf" not in page
    assert f'value="{rule.pk}" selected' in page
    assert f"?q=voice&amp;rule_id={rule.pk}&amp;from=&amp;to=&amp;status=completed" in page
    nothing = client.get(f"{PAGE}?q=nothing").content.decode()
    assert "No documents match this filter." in nothing
    assert client.get(f"{PAGE}?from=tomorrow").status_code == 400


def test_staff_find_documents_by_part_of_the_file_name(
    pages: Client,
    alice: User,
) -> None:
    """B39."""
    make_row(alice, filename="Invoice-7.pdf")
    make_row(alice, filename="letter.pdf")
    assert "Invoice-7.pdf" in pages.get(list_of("etl_task", q="voice")).content.decode()
    by_name = pages.get(list_of("etl_task", q="letter")).content.decode()
    assert ("letter.pdf" in by_name, "Invoice-7.pdf" in by_name) == (True, False)
    of_owner = pages.get(list_of("etl_task", q=alice.username)).content.decode()
    assert ("letter.pdf" in of_owner, "Invoice-7.pdf" in of_owner) == (True, True)


# ---- Many documents -------------------------------------------------------------------------------------------------
MANY = 60_000
ROWS = """
INSERT INTO etl_task (user_id, rule_id, rule_version, filename, kind, size, document_key, status, phase, progress, run,
    ocr_run, journal_run, fence, result, metadata, request_id, idempotency_key, fingerprint, sha256, created_at,
    updated_at)
SELECT %(user)s, CASE WHEN n %% 20000 = 7 THEN %(rare)s ELSE %(rule)s END, 1,
    CASE WHEN n %% 20000 = 7 THEN 'Contract-' ELSE 'invoice-' END || md5(n::text) || '.pdf', 'pdf', 1, 'x', 'completed',
    'ocr', 100, 1, 1, 1, 1, '{}', '{}', '', '', '', md5(n::text) || md5(n::text), now() - n * interval '1 minute', now()
FROM generate_series(1, %(many)s) n
"""


@pytest.fixture
def many(transactional_db: None, alice: User, bob: User) -> Rule:
    rule, rare = make_rule(alice, name="usual"), make_rule(name="shared, and rare among those of alice", slug="rare")
    with connection.cursor() as cursor:
        cursor.execute(ROWS, {"user": alice.pk, "rule": rule.pk, "rare": rare.pk, "many": MANY})
        cursor.execute(ROWS, {"user": bob.pk, "rule": rare.pk, "rare": rare.pk, "many": MANY // 4})
        cursor.execute("VACUUM ANALYZE etl_task")
    return rare


def scans_of_tasks(work: Any) -> list[tuple[Plan, str]]:
    return [
        (node, "\n".join(plan_lines(plan)))
        for statement, plan in plans_of(lambda _: work())
        if "etl_task" in statement
        for node in nodes(plan)
        if node.get("Relation Name") == "etl_task" or str(node.get("Index Name", "")).startswith("etl_task")
    ]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_each_filter_reads_few_rows_of_many_documents(api: APIClient, many: Rule, alice: User) -> None:
    """B39: rare rows may be the oldest, so a scan by time would read all rows."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"q": "contract"}, "etl_task_filename"),
        ({"q": "invoice"}, "etl_task_newest|etl_task_of_user"),
        ({"q": "co"}, "etl_task_filename"),
        ({"q": "zebra"}, "etl_task_filename"),
        ({"rule_id": many.pk}, "etl_task_of_rule"),
        ({"from": "2020-01-01", "to": "2020-12-31"}, "etl_task_newest|etl_task_of_user"),
    ]
    for filters, indexes in cases:
        scans = scans_of_tasks(lambda filters=filters: found(api, **filters))
        shown_plans = "\n\n".join({text for _, text in scans})
        assert scans, filters
        assert not [node for node, _ in scans if node["Node Type"] == "Seq Scan"], shown_plans
        assert {node.get("Index Name") for node, _ in scans} & set(indexes.split("|")), shown_plans
        assert max(rows_of(node) for node, _ in scans) <= 200, shown_plans

    newest = Task.objects.first()
    assert newest
    scans = scans_of_tasks(lambda: Task.objects.newest_duplicate(user_id=alice.pk, sha256=newest.sha256))
    assert [node.get("Index Name") for node, _ in scans] == ["etl_task_same_bytes"]


# ---- Duplicates -----------------------------------------------------------------------------------------------------
def submit(api: APIClient, content: bytes = b"Hello.", *, key: str = "") -> Any:
    file = SimpleUploadedFile("a.txt", content)
    headers = {"Idempotency-Key": key} if key else {}
    response = api.post(SUBMIT, {"file": file}, format="multipart", headers=headers)
    assert response.status_code == 202, response.json()
    return response.json()


def upload(api: APIClient) -> str:
    made = api.post("/api/v1/etl/uploads", {"filename": "b.txt", "content_type": "text/plain", "size": 6}).json()
    storage.put(made["file_key"], b"Hello.", content_type="text/plain")
    return str(made["file_key"])


def shown(api: APIClient, task_id: int) -> Any:
    return api.get(f"{TASKS}/{task_id}").json()


def test_the_newest_earlier_task_with_the_same_bytes_is_named(api: APIClient, alice: User, bob: User) -> None:
    """B39."""
    make_rule(bob)
    others = APIClient()
    others.force_authenticate(bob)
    assert submit(others)["duplicate_of"] is None
    first = submit(api)
    assert first["duplicate_of"] is None
    assert submit(api, b"Hello!")["duplicate_of"] is None
    second = submit(api)
    third = submit(api)
    assert (second["duplicate_of"], third["duplicate_of"]) == (first["task_id"], second["task_id"])
    assert shown(api, third["task_id"])["duplicate_of"] == second["task_id"]


def test_a_repeated_request_gets_the_same_answer(api: APIClient) -> None:
    """B39: a task is not its own duplicate. The response still names the earlier task after it is deleted."""
    first = submit(api)
    second = submit(api, key="k")
    assert second["duplicate_of"] == first["task_id"]
    assert api.delete(f"{TASKS}/{first['task_id']}").status_code == 204
    assert submit(api, key="k") == second


def test_of_simultaneous_submissions_all_but_one_are_duplicates(api: APIClient, alice: User) -> None:
    """B39."""
    make_rule(alice)

    def one(_: int) -> Any:
        client = APIClient()
        client.force_authenticate(alice)
        return submit(client)

    answers = in_threads(4, one)
    assert [answer["duplicate_of"] for answer in answers].count(None) == 1


@pytest.mark.usefixtures("configure_stages")
def test_an_upload_has_its_duplicate_after_it_was_read(api: APIClient, alice: User) -> None:
    """B39: only a worker reads the bytes, and the row gets the digest at the end of the task."""
    first = submit(api)
    accepted = api.post(SUBMIT, {"file_key": upload(api)}, headers={"Idempotency-Key": "k"}).json()
    assert accepted["duplicate_of"] is None
    task = Task.objects.get(pk=accepted["task_id"])
    assert task.sha256 == ""
    run(task)
    assert shown(api, task.pk)["duplicate_of"] == first["task_id"]
    row = row_of(task)
    assert (row.sha256, row.duplicate_of) == (Task.objects.get(pk=first["task_id"]).sha256, first["task_id"])
    valkey().flushdb()
    assert shown(api, task.pk)["duplicate_of"] == first["task_id"]
    again = api.post(SUBMIT, {"file_key": row.document_key}, headers={"Idempotency-Key": "k"})
    assert again.status_code == 422  # another body
    assert submit(api)["duplicate_of"] == task.pk


@pytest.mark.usefixtures("configure_stages")
def test_the_digest_survives_a_lost_run_state(api: APIClient, alice: User, settings: Any) -> None:
    """B39: the OCR result in the object storage has it too, and the search for the earlier task is repeated."""
    first = submit(api)
    run(Task.objects.get(pk=first["task_id"]))
    accepted = api.post(SUBMIT, {"file_key": upload(api)}).json()
    task = Task.objects.get(pk=accepted["task_id"])
    assert execution.run_next(Stage.OCR, task_id=task.pk)
    valkey().flushdb()
    change_settings(settings, etl_recovery_seconds=0)
    recovery.recover_all()
    state = runstate.read(task.pk)
    assert state
    assert len(state.sha256) == 64
    execution.run_next(Stage.POSTPROCESS, task_id=task.pk)
    row = row_of(task)
    assert (row.sha256, row.duplicate_of) == (state.sha256, first["task_id"])


def test_the_page_names_the_earlier_document_until_it_is_deleted(api: APIClient, alice: User) -> None:
    """B39."""
    client = browser_of(alice)
    first, second = submit(api), submit(api)
    complete(Task.objects.get(pk=second["task_id"]))
    page = client.get(f"{PAGE}/{second['task_id']}").content.decode()
    assert f'Same file as <a href="{PAGE}/{first["task_id"]}">' in page
    deletion.delete(Task.objects.get(pk=first["task_id"]), user=alice, message="Deleted.")
    assert "Same file as" not in client.get(f"{PAGE}/{second['task_id']}").content.decode()


# ---- Bulk actions ---------------------------------------------------------------------------------------------------
def test_the_page_deletes_selected_documents(alice: User, bob: User) -> None:
    """B34: running documents and documents of other users are kept."""
    client = browser_of(alice)
    ended, waiting, running, other = make_task(alice), make_task(alice), make_task(alice), make_task(bob)
    fail(ended)
    assert runstate.start(running.pk, stage=Stage.OCR).moved
    ids = [ended.pk, waiting.pk, running.pk, other.pk]
    page = client.post(f"{PAGE}/several", {"task": ids, "do": "delete"}, follow=True).content.decode()
    assert "2 deleted. 1 unchanged:" in page
    assert set(Task.objects.values_list("pk", flat=True)) == {running.pk, other.pk}


@pytest.mark.parametrize("action", [{}, {"do": "erase"}])
def test_the_page_refuses_an_unknown_action(alice: User, action: dict[str, str]) -> None:
    """A retry as the default would cost tokens."""
    client = Client()
    client.force_login(alice)
    fail(task := make_task(alice))
    page = client.post(f"{PAGE}/several", {"task": [task.pk], **action}, follow=True).content.decode()
    assert "Choose an action first." in page
    task.refresh_from_db()
    assert task.status == Status.FAILED


def test_staff_delete_selected_documents_with_one_record_each(
    pages: Client,
    staff: User,
    alice: User,
) -> None:
    """B34."""
    tasks = [make_task(alice), make_task(alice)]
    fail(tasks[0])
    asked = select(pages, "delete_with_objects", *tasks)
    answer = confirm(pages, asked)
    assert any("Deleted 2 documents." in message for message in messages_of(answer))
    assert not Task.objects.exists()
    entries = LogEntry.objects.filter(object_id__in=[str(task.pk) for task in tasks])
    assert {(entry.action_flag, entry.user_id) for entry in entries} == {(DELETION, staff.pk)}
    assert entries.count() == 2
    assert not storage.head(tasks[0].document_key)
