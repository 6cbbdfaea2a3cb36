"""The staff's pages and the first page: what opens, what may be done there, and what it costs."""

import html
import re
import time
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from knox.models import AuthToken
from rest_framework.test import APIClient

from exports import links
from exports.errors import EXPLANATIONS
from exports.models import Allowance, Chunk, Dataset, Download, File, Job, Link, Receipt, Slot, Tick
from tests.integration.factories import make_job

MODELS = ("job", "chunk", "file", "receipt", "link", "download", "dataset", "slot", "tick")
READ_ONLY = tuple(model for model in MODELS if model != "dataset")
QUERIES = 10
CHUNKS = 100_000

# A long list of finished and failed work, written by the server: making it through leases would take minutes.
MANY_JOBS = """
INSERT INTO exports_jobs (job_id, user_id, dataset_id, schema_version, format, compression, delivery, dialect, reuse,
    allow_degraded, ttl, status, total, duplicates, done, failed, cancelled, retrying, reused, degraded, rows, bytes,
    error_code, error_detail, created_at, finished_at, completion_attempts)
SELECT md5(n::text)::uuid, %(user)s, %(dataset)s, 1, 'csv', 'none', 'zip', '{}', 'if-present', true, 600, 'failed',
    2, 0, 1, 1, 0, 0, 0, 0, 3, 60, 'EXPORT_SOURCE_ERROR', 'SQLSTATE P0001', now() - n * interval '1 s', now(), 0
FROM generate_series(%(first)s, %(last)s) n
"""
MANY_CHUNKS = """
INSERT INTO exports_chunk (job_id, dataset_id, seq, key, effective_date, path, status, rank, reusable, attempts, source,
    rows, bytes, header_bytes, sha256, etag, error_code, error_detail)
SELECT %(job)s, %(dataset)s, n + 9, 'K' || n, '2024-02-29', 'things/' || n,
    CASE n %% 7 WHEN 0 THEN 'failed' ELSE 'done' END, n, false, 1,
    CASE n %% 7 WHEN 0 THEN '' ELSE 'live' END, 3, 60, 6, 'x', 'x',
    CASE n %% 7 WHEN 0 THEN 'EXPORT_SOURCE_ERROR' ELSE '' END, ''
FROM generate_series(%(first)s, %(last)s) n
"""
REST = """
INSERT INTO exports_file (path, dataset_id, schema_version, key, effective_date, etag, sha256, rows, bytes,
    header_bytes, data_as_of)
SELECT 'things/' || n, %(dataset)s, 1, 'K' || n, '2024-02-29', 'x', 'x', 3, 60, 6, now()
FROM generate_series(%(first)s, %(last)s) n;
INSERT INTO exports_receipt (job_id, object_key, etag, checksum, size_bytes, rows, files, degraded, content_type,
    file_name, expires_at)
SELECT job_id, 'o', 'e', 'c', 1, 1, 1, false, 'text/csv', 'things.csv', now() FROM exports_jobs
ON CONFLICT DO NOTHING;
INSERT INTO exports_link (link_id, receipt_id, expires_at) SELECT gen_random_uuid(), job_id, now() FROM exports_receipt
ON CONFLICT DO NOTHING;
INSERT INTO exports_download (job_id, link_id, outcome, user_agent)
SELECT receipt_id, link_id, 'redeemed', 'curl' FROM exports_link;
INSERT INTO exports_tick SELECT 'tick ' || n, now() FROM generate_series(%(first)s, %(last)s) n;
INSERT INTO exports_slot (dataset_id, number, backend)
SELECT %(dataset)s, n, '' FROM generate_series(%(first)s, %(last)s) n;
INSERT INTO exports_dataset (name, function, base_path, schema_version, formats, key_pattern, statement_timeout,
    created_at, updated_at)
SELECT 'more' || n, 'a.b', 'more' || n, 1, '{csv}', '.', 1, now(), now() FROM generate_series(%(first)s, %(last)s) n;
"""


@pytest.fixture
def staff(transactional_db: None) -> User:
    return User.objects.create_user("sam", password="only for tests", is_staff=True, is_superuser=True)


@pytest.fixture
def pages(staff: User) -> Client:
    """A browser of the staff's."""
    client = Client()
    client.force_login(staff)
    return client


@pytest.fixture
def failed(dataset: Dataset, alice: User) -> Job:
    """A job of which one chunk is done and two failed."""
    job = make_job(dataset, alice)
    fail(job, chunks=2)
    return job


def fail(job: Job, *, chunks: int) -> None:
    ids = list(job.chunks.order_by("seq").values_list("pk", flat=True))
    Chunk.objects.filter(pk__in=ids[:chunks]).update(
        status="failed", attempts=4, error_code="EXPORT_SOURCE_ERROR", error_detail="SQLSTATE P0001"
    )
    Chunk.objects.filter(pk__in=ids[chunks:]).update(
        status="done", attempts=1, source="live", rows=3, bytes=60, sha256="x", etag="x"
    )
    Job.objects.filter(pk=job.pk).update(
        status="failed", failed=chunks, done=len(ids) - chunks, finished_at=timezone.now(),
        error_code="EXPORT_SOURCE_ERROR", error_detail="SQLSTATE P0001",
    )  # fmt: skip


@pytest.fixture
def delivered(dataset: Dataset, alice: User) -> Receipt:
    """A finished job with its file, receipt, link and one download."""
    job = make_job(dataset, alice, chunks=1)
    fail(job, chunks=0)
    Job.objects.filter(pk=job.pk).update(status="success", error_code="", error_detail="")
    chunk = job.chunks.get()
    File.objects.create(
        path=chunk.path, dataset=dataset, schema_version=1, key=chunk.key, effective_date=chunk.effective_date,
        etag="x", sha256="x", rows=3, bytes=60, data_as_of=timezone.now(),
    )  # fmt: skip
    receipt = Receipt.objects.create(
        job=job, object_key="_receipts/x", etag="x", checksum="x", size_bytes=60, rows=3, files=1,
        content_type="text/csv", file_name="things.csv", expires_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip
    link = links.mint(receipt)
    Download.objects.create(job=job, link=link, outcome="redeemed", address="192.0.2.1", user_agent="curl")
    Tick.objects.create(name="reap", ran_at=timezone.now())
    return receipt


def fill(dataset: Dataset, user: User, *, first: int, last: int) -> None:
    """Add rows to every list."""
    values: dict[str, Any] = {
        "user": user.pk,
        "dataset": dataset.pk,
        "first": first,
        "last": last,
        "job": Job.objects.latest("created_at").pk,
    }
    with connection.cursor() as cursor:
        for statement in (MANY_JOBS, MANY_CHUNKS, REST):
            cursor.execute(statement, values)
    people = User.objects.bulk_create(User(username=f"person{n}", password="x") for n in range(first, last + 1))
    AuthToken.objects.bulk_create(AuthToken(digest=f"{u.pk:0128}", token_key="slc_abcd", user=u) for u in people)


def list_of(model: str, **query: Any) -> str:
    return reverse(f"admin:{model}_changelist", query=query) if "_" in model else list_of(f"exports_{model}", **query)


def page_of(row: Any, verb: str = "change") -> str:
    return reverse(f"admin:exports_{row._meta.model_name}_{verb}", args=[quote(row.pk)])


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


LINK = r'href="(/admin/exports/\w+/(?:[^"/]+/change/|\?[^"]+))'
LISTS = (*MODELS, "auth_user", "auth_group", "knox_authtoken")


# ---- Looking ------------------------------------------------------------------------------------------------------
def test_it_shows_a_list_and_a_page_of_each_model(pages: Client, failed: Job, delivered: Receipt) -> None:
    for model in MODELS:
        row = apps.get_model("exports", model).objects.order_by("pk").last()
        assert f'href="{page_of(row)}' in text_of(pages.get(list_of(model)))
        assert str(row) in text_of(pages.get(page_of(row)))


def test_it_opens_lists_that_are_empty(pages: Client) -> None:
    for model in LISTS:
        assert pages.get(list_of(model)).status_code == 200


def test_it_leads_from_a_job_to_all_that_belongs_to_it(pages: Client, delivered: Receipt) -> None:
    """Follows every link to a row, and to the rows of a row, until there are no new ones."""
    seen, todo = set[str](), {page_of(delivered.job)}
    while todo:
        path = todo.pop()
        seen.add(path)
        todo |= set(re.findall(LINK, text_of(pages.get(path)))) - seen

    rows = (Chunk, File, Receipt, Link, Download, Dataset, Job)
    assert {page_of(model.objects.get()) for model in rows} <= seen
    assert {list_of(model, job=delivered.pk) for model in ("chunk", "link", "download")} <= seen


def test_it_explains_what_went_wrong(pages: Client, failed: Job) -> None:
    title, advice = EXPLANATIONS["EXPORT_SOURCE_ERROR"]
    for row in (failed, failed.chunks.filter(status="failed").first()):
        text = text_of(pages.get(page_of(row)))
        assert title in text
        assert advice in text
        assert "SQLSTATE P0001" in text
    assert title not in text_of(pages.get(page_of(failed.chunks.get(status="done"))))


def test_it_does_not_show_links_that_work(pages: Client, delivered: Receipt) -> None:
    link = Link.objects.get()
    for path in (page_of(link), page_of(delivered), page_of(delivered.job), list_of("link")):
        assert links.token_of(link).partition(".")[2] not in text_of(pages.get(path))


@pytest.mark.parametrize(
    ("model", "query", "rows"),
    [
        ("job", {"q": "{job}"}, 1),
        ("job", {"q": "alice"}, 1),
        ("job", {"q": "alic"}, 0),
        ("job", {"q": "00000000-0000-0000-0000-000000000000"}, 0),
        ("chunk", {"q": "{job}"}, 3),
        ("chunk", {"q": "JFK"}, 3),
        ("chunk", {"job": "{job}", "status__exact": "failed"}, 2),
        ("chunk", {"job": "not one"}, 0),
        ("chunk", {"error_code": "EXPORT_SOURCE_ERROR"}, 2),
        ("link", {"q": "nothing"}, 0),
        ("link", {"job": "{job}"}, 0),
        ("file", {"q": "things/none.csv"}, 0),
    ],
)
def test_it_finds(pages: Client, failed: Job, model: str, query: dict[str, str], rows: int) -> None:
    response = pages.get(list_of(model), {name: value.format(job=failed.pk) for name, value in query.items()})

    assert response.status_code == 200
    assert response.context["cl"].result_count == rows


# ---- Who and what -------------------------------------------------------------------------------------------------
def test_it_sends_others_to_the_login(alice: User) -> None:
    nobody, owner = Client(), Client()
    owner.force_login(alice)
    for client, model in product((nobody, owner), LISTS):
        response = client.get(list_of(model))
        assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/admin/login/")


def test_it_lets_nobody_type_outcomes(pages: Client, delivered: Receipt) -> None:
    for model in READ_ONLY:
        rows = apps.get_model("exports", model).objects.order_by("pk")
        before = list(rows.values())
        row = rows.last()

        assert pages.get(reverse(f"admin:exports_{model}_add")).status_code == 403
        assert pages.post(reverse(f"admin:exports_{model}_add"), {}).status_code == 403
        assert pages.post(page_of(row), {"status": "success"}).status_code == 403
        assert pages.post(page_of(row, "delete"), {"post": "yes"}).status_code == 403
        pages.post(list_of(model), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

        assert list(rows.all().values()) == before


# ---- What it costs ------------------------------------------------------------------------------------------------
def test_it_needs_as_many_queries_for_200_rows_as_for_5(pages: Client, failed: Job, alice: User) -> None:
    fill(failed.dataset, alice, first=1, last=5)
    few = {model: queries_for(pages, model) for model in LISTS}
    fill(failed.dataset, alice, first=6, last=200)
    many = {model: queries_for(pages, model) for model in LISTS}

    assert few == many
    assert max(many.values()) <= QUERIES


def queries_for(pages: Client, model: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert pages.get(list_of(model)).status_code == 200
    return len(queries)


def test_it_stays_quick_with_100_000_chunks(pages: Client, failed: Job) -> None:
    add_chunks(failed, CHUNKS)
    job = str(failed.pk)
    looks: list[dict[str, str]] = [
        {}, {"p": "200"}, {"status__exact": "failed"}, {"error_code": "EXPORT_SOURCE_ERROR"}, {"q": "K99999"},
        {"job": job}, {"job": job, "status__exact": "failed"}, {"q": job},
    ]  # fmt: skip
    pages.get(list_of("chunk"))  # templates are read once a process

    for look in looks:
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as queries:
            assert pages.get(list_of("chunk"), look).status_code == 200
        assert time.perf_counter() - began < 1, look
        statements = [query["sql"] for query in queries]
        assert not [sql for sql in statements if "DISTINCT" in sql]
        assert [sql for sql in statements if "COUNT(" in sql and "exports_chunk" in sql]
        assert not [sql for sql in statements if "COUNT(" in sql and "LIMIT" not in sql]


def add_chunks(job: Job, count: int) -> None:
    values: dict[str, Any] = {"dataset": job.dataset_id, "job": job.pk, "first": 1, "last": count}
    with connection.cursor() as cursor:
        cursor.execute(MANY_CHUNKS, values)
        cursor.execute("ANALYZE exports_chunk")


def test_it_says_when_it_did_not_count_on(pages: Client, failed: Job) -> None:
    add_chunks(failed, 10_001)

    assert "more than 10,000 chunks" in " ".join(text_of(pages.get(list_of("chunk"))).split())


# ---- Retry --------------------------------------------------------------------------------------------------------
def retry_selected(pages: Client, *jobs: Job) -> Any:
    return pages.post(list_of("job"), {"action": "retry_selected", "_selected_action": [job.pk for job in jobs]})


def test_it_retries_selected_jobs_and_says_what_it_touched(
    pages: Client, staff: User, failed: Job, dataset: Dataset, alice: User
) -> None:
    another, fine = make_job(dataset, alice, chunks=2, key="EWR"), make_job(dataset, alice, chunks=1, key="LGA")
    fail(another, chunks=1)

    response = retry_selected(pages, failed, another, fine)

    assert said(response) == [
        "Retried 2 exports: 3 failed chunks started again.",
        "Unchanged: 1 export. Only a failed export can be retried; this one has not failed.",
    ]
    assert set(Job.objects.values_list("status", "failed")) == {("running", 0), ("pending", 0)}
    assert Chunk.objects.filter(status="pending").count() == 4
    entries = {(entry.object_id, entry.user_id, entry.change_message) for entry in LogEntry.objects.all()}
    assert entries == {
        (str(failed.pk), staff.pk, "Retried 1 export: 2 failed chunks started again."),
        (str(another.pk), staff.pk, "Retried 1 export: 1 failed chunk started again."),
    }
    assert "2 failed chunks started again" in text_of(pages.get(page_of(failed, "history")))


def test_it_retries_a_job_from_its_page(pages: Client, failed: Job) -> None:
    button = page_of(failed, "retry")
    assert f'href="{button}"' in text_of(pages.get(page_of(failed)))
    assert "Retry this export?" in text_of(pages.get(button))
    assert Job.objects.get(pk=failed.pk).status == "failed"  # looking changes nothing

    response = pages.post(button, {"_form_submitted": "true"}, headers={"HX-Request": "true"})

    assert response["HX-Redirect"] == page_of(failed)
    assert said(response) == ["Retried 1 export: 2 failed chunks started again."]
    assert LogEntry.objects.get().object_id == str(failed.pk)
    assert Job.objects.get(pk=failed.pk).status == "running"
    assert f'href="{button}"' not in text_of(pages.get(page_of(failed)))

    response = pages.post(button, {"_form_submitted": "true"})

    assert response["Location"] == page_of(failed)
    assert said(response)[-1] == "Unchanged: 1 export. Only a failed export can be retried; this one has not failed."
    assert LogEntry.objects.count() == 1


def test_it_retries_a_delivery_alone(pages: Client, failed: Job) -> None:
    fail(failed, chunks=0)

    assert said(retry_selected(pages, failed)) == ["Retried 1 export: the delivery alone, as no chunk had failed."]


def test_it_lets_those_who_only_look_retry_nothing(staff: User, pages: Client, failed: Job) -> None:
    staff.is_superuser = False
    staff.save()
    staff.user_permissions.set(Permission.objects.filter(codename="view_job"))

    assert page_of(failed, "retry") not in text_of(pages.get(page_of(failed)))
    assert pages.post(page_of(failed, "retry"), {"_form_submitted": "true"}).status_code == 403
    retry_selected(pages, failed)

    assert Job.objects.get(pk=failed.pk).status == "failed"
    sidebar = text_of(pages.get(list_of("job")))
    assert list_of("job") in sidebar
    assert list_of("auth_user") not in sidebar


def test_it_knows_no_job_by_a_wrong_id(pages: Client, slots: int) -> None:
    assert pages.get("/admin/exports/job/nonsense/change/").status_code == 302  # Django's: to the index, with a message
    assert pages.post("/admin/exports/job/nonsense/retry/", {"_form_submitted": "true"}).status_code == 404


# ---- Cancel -------------------------------------------------------------------------------------------------------
def test_it_cancels_selected_jobs_and_says_what_it_touched(
    pages: Client, failed: Job, dataset: Dataset, alice: User
) -> None:
    waiting = make_job(dataset, alice, chunks=2, key="EWR")

    selected = {"action": "cancel_selected", "_selected_action": [failed.pk, waiting.pk]}
    response = pages.post(list_of("job"), selected)

    assert said(response) == [
        "Cancelled 1 export: 2 chunks will not be exported.",
        "Unchanged: 1 export. Only an export that has not ended can be cancelled; this one has.",
    ]
    assert Job.objects.get(pk=waiting.pk).status == "cancelled"
    assert LogEntry.objects.get().change_message == "Cancelled 1 export: 2 chunks will not be exported."


def test_it_cancels_a_job_from_its_page(pages: Client, dataset: Dataset, alice: User) -> None:
    job = make_job(dataset, alice, chunks=1)
    button = page_of(job, "cancel")
    page = text_of(pages.get(page_of(job)))
    assert f'href="{button}"' in page
    assert page_of(job, "retry") not in page
    assert "Cancel this export?" in text_of(pages.get(button))
    assert Job.objects.get().status == "pending"

    assert said(pages.post(button, {"_form_submitted": "true"})) == [
        "Cancelled 1 export: 1 chunk will not be exported."
    ]
    assert Job.objects.get().status == "cancelled"
    assert button not in text_of(pages.get(page_of(job)))


def test_a_retry_over_the_users_quota_says_so(pages: Client, failed: Job, alice: User) -> None:
    Allowance.objects.create(user=alice, daily_chunks=0)

    (words,) = said(retry_selected(pages, failed))
    assert words.startswith("Unchanged: 1 export. Its user's quota: This takes 2 chunks, and 0 of today's 0 are left.")
    assert Job.objects.get(pk=failed.pk).status == "failed"


# ---- Datasets -----------------------------------------------------------------------------------------------------
def form_of(**changes: Any) -> dict[str, Any]:
    form = {
        "name": "new", "function": "data.rows_for", "base_path": "new", "schema_version": 1, "formats": ["csv", "json"],
        "key_pattern": "^[A-Z]+$", "statement_timeout": 30, "max_concurrency": 3, "reuse_max_age": "",
    }  # fmt: skip
    return form | changes


def test_it_offers_all_formats_for_a_new_dataset(pages: Client) -> None:
    text = text_of(pages.get(reverse("admin:exports_dataset_add")))

    boxes = re.findall(r'<input type="checkbox" name="formats" value="(\w+)"[^>]* checked', text)
    assert boxes == ["csv", "jsonl", "json"]


def test_it_saves_a_dataset(pages: Client, dataset: Dataset) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of())

    assert response.status_code == 302
    new = Dataset.objects.get(name="new")
    assert (new.formats, new.max_concurrency, new.reuse_max_age) == (["csv", "json"], 3, None)
    assert Slot.objects.filter(dataset=new).count() == 3
    assert len(said(response)) == 1  # no warning

    assert pages.post(page_of(new), form_of(formats=["jsonl"], schema_version=2)).status_code == 302
    new.refresh_from_db()
    assert (new.formats, new.schema_version) == (["jsonl"], 2)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_path": "things/inner"}, "base_path"),
        ({"base_path": "things"}, "base_path"),
        ({"base_path": "../x"}, "base_path"),
        ({"key_pattern": "[a-"}, "key_pattern"),
        ({"function": "rows_for"}, "function"),
        ({"formats": []}, "formats"),
        ({"formats": ["xlsx"]}, "formats"),
        ({"statement_timeout": 541}, "statement_timeout"),
        ({"max_concurrency": 0}, "max_concurrency"),
    ],
)
def test_it_refuses_a_dataset(pages: Client, dataset: Dataset, changes: dict[str, Any], field: str) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of(**changes))

    assert list(response.context["adminform"].form.errors) == [field]
    assert not Dataset.objects.filter(name="new").exists()


def test_it_warns_of_a_function_that_cannot_be_used(pages: Client, dataset: Dataset) -> None:
    response = pages.post(reverse("admin:exports_dataset_add"), form_of(function="data.missing"))

    assert Dataset.objects.filter(name="new").exists()
    assert any("data.missing cannot be used now: EXPORT_SOURCE_ERROR" in text for text in said(response))


def test_it_deletes_a_dataset_only_while_nothing_was_made_of_it(pages: Client, failed: Job) -> None:
    unused = Dataset.objects.create(name="unused", function="a.b", base_path="unused")

    assert pages.post(page_of(failed.dataset, "delete"), {"post": "yes"}).status_code == 403
    assert pages.post(page_of(unused, "delete"), {"post": "yes"}).status_code == 302
    assert list(Dataset.objects.all()) == [failed.dataset]


# ---- Accounts -----------------------------------------------------------------------------------------------------
def test_it_revokes_a_token_and_shows_no_digest(pages: Client, alice: User, api: APIClient) -> None:
    token = AuthToken.objects.get(user=alice)
    text = text_of(pages.get(list_of("knox_authtoken")))
    assert token.token_key[:8] in text
    assert token.digest not in text
    assert token.token_key not in text
    assert pages.get(reverse("admin:knox_authtoken_change", args=[token.pk])).status_code == 403
    (button,) = set(re.findall(r'href="(/admin/knox/authtoken/[^"]+/revoke/)"', text))
    assert "Revoke this token?" in text_of(pages.get(button))
    assert api.get("/exports").status_code == 200

    response = pages.post(button, {"_form_submitted": "true"})

    assert said(response) == [f"Revoked the token {token.token_key[:8]}… of alice."]
    assert api.get("/exports").status_code == 401
    assert LogEntry.objects.get().get_edited_object() == alice
    assert pages.post(button, {"_form_submitted": "true"}).status_code == 404


def test_it_switches_accounts_off_and_deletes_none(pages: Client, alice: User) -> None:
    text = text_of(pages.get(reverse("admin:auth_user_change", args=[alice.pk])))
    assert "This form" not in text
    assert pages.get(reverse("admin:auth_user_password_change", args=[alice.pk])).status_code == 200
    assert pages.get(reverse("admin:auth_user_add")).status_code == 200
    assert pages.post(reverse("admin:auth_user_delete", args=[alice.pk]), {"post": "yes"}).status_code == 403


def test_it_leads_from_the_login_to_the_index(staff: User) -> None:
    client = Client()
    assert client.get("/admin/login/").status_code == 200

    response = client.post("/admin/login/", {"username": "sam", "password": "only for tests"})

    assert response["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


# ---- The first page -----------------------------------------------------------------------------------------------
def test_it_greets_at_the_base_url(client: Client) -> None:
    text = text_of(client.get("/"))

    paths = re.findall(r'<a href="([^"]+)"', text)
    assert {"/api/docs", "/admin/", "/readyz"} <= set(paths)
    assert "curl http://testserver/exports " in text
    assert client.head("/").status_code == 200
    assert client.post("/").status_code == 405


def test_its_first_page_needs_no_other_host_and_no_script(client: Client) -> None:
    text = text_of(client.get("/"))

    linked = re.findall(r'(?:href|src|action)="([^"]*)"', text)
    assert linked
    assert all(re.match(r"/(?!/)", address) for address in linked)
    assert "<script" not in text
    assert " style=" not in text
    for address in linked:
        if address.startswith("/static/"):
            assert finders.find(address.removeprefix("/static/")), address
