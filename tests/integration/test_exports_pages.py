"""C1: pages of exports, without a browser: ownership, queries, forms, and receipts."""

import html
import re
import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from django.conf import LazySettings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from config.platform.http import throttling
from exports.delivery import links
from exports.jobs import actions
from exports.models import Allowance, Dataset, Event, Job, Link, Receipt, Usage
from exports.pages import pasted_pairs
from exports.worker import execution
from tests.broker import valkey
from tests.conftest import browser_of, change_settings
from tests.integration.factories import end_chunk, fail_chunk, finish, make_job
from tests.integration.staff import messages_of
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("empty_bucket")

AGENT = "Mozilla/5.0 (X11) Test/1.0"
BROWSER = {"User-Agent": AGENT}
HTMX = {"HX-Request": "true"}
NOT_KEPT = ("once", "items", "reuse", "allow_degraded", "delivery", "keep_for")
ITEMS = "JFK 2024-02-29\nLGA,2024-03-01\n"
FORM = {
    "dataset": "things",
    "mode": "items",
    "items": ITEMS,
    "format": "csv",
    "written_for": "standard",
    "compression": "none",
    "delivery": "auto",
    "reuse": "on",
    "allow_degraded": "on",
}


def as_user(user: User) -> Client:
    return browser_of(user, headers=BROWSER)


@pytest.fixture
def visitor(alice: User) -> Client:
    return as_user(alice)


@pytest.fixture
def ready(dataset: Dataset, alice: User) -> Job:
    """A successful job with two chunks and its receipt."""
    return finish(make_job(dataset, alice, 2))


def form(**changes: Any) -> dict[str, Any]:
    return {**FORM, "once": str(uuid4()), **changes}


def text(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        {"columns": "n\nk"},
        {"items": "data:x;" + "A" * 140_000},
        {"dataset": "documents", "rule": "9" * 5000},
    ],
    ids=["line break", "long cell", "many digits"],
)
def test_odd_text_is_refused_in_the_form(dataset: Dataset, visitor: Client, odd: dict[str, str]) -> None:
    response = visitor.post("/app/exports/new", form(**odd))
    assert (response.status_code, Job.objects.count()) == (200, 0)


def test_an_invalid_address_in_a_header_is_ignored(ready: Job, visitor: Client) -> None:
    response = visitor.get(f"/app/exports/{ready.pk}/now", headers={"HX-Current-URL": "http://["})
    assert response.status_code == 200


def test_an_export_of_a_deleted_schedule_has_no_link_to_it(ready: Job, visitor: Client) -> None:
    schedule_id = uuid4()
    Job.objects.filter(pk=ready.pk).update(schedule_id=schedule_id)
    for path in ("/app/exports", f"/app/exports/{ready.pk}", f"/app/exports?schedule={schedule_id}"):
        assert f"schedules/{schedule_id}" not in visitor.get(path).content.decode()


# ---- Ownership ------------------------------------------------------------------------------------------------------

JOB_PATHS = ["", "/now", "/chunks", "/receipt", "/files/JFK/2024-02-28"]
ACTIONS = ["cancel", "retry", "replay", "link", "download"]


def test_jobs_of_other_users_return_404(ready: Job, bob: User) -> None:
    stranger = as_user(bob)
    for path in JOB_PATHS:
        assert stranger.get(f"/app/exports/{ready.pk}{path}").status_code == 404, path
    for name in ACTIONS:
        assert stranger.post(f"/app/exports/{ready.pk}/{name}").status_code == 404, name
    assert stranger.get(f"/app/exports/new?from={ready.pk}").status_code == 404
    assert str(ready.pk) not in stranger.get("/app/exports").content.decode()
    assert Link.objects.count() == 1
    assert Job.objects.count() == 1


def test_bulk_actions_affect_only_own_jobs(dataset: Dataset, alice: User, bob: User) -> None:
    theirs = make_job(dataset, bob)
    for more in ({}, {"sure": "1"}):
        as_user(alice).post("/app/exports/several", {"do": "cancel", "job": [str(theirs.pk), "no id"], **more})
    theirs.refresh_from_db()
    assert theirs.status == "pending"


def test_staff_actions_on_jobs_of_other_users_are_logged(dataset: Dataset, alice: User, staff: User) -> None:
    jobs = [make_job(dataset, alice) for _ in range(2)]
    as_user(staff).post(f"/app/exports/{jobs[0].pk}/cancel")
    as_user(alice).post(f"/app/exports/{jobs[1].pk}/cancel")
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (staff, str(jobs[0].pk))
    assert "Export cancelled" in entry.change_message


def test_staff_see_any_job_without_its_data(ready: Job, pages: Client) -> None:
    shown = pages.get(f"/app/exports/{ready.pk}").content.decode()
    assert "Requested by alice" in shown
    assert "token=" not in shown
    assert "/files/" not in shown
    assert pages.get(f"/app/exports/{ready.pk}/files/JFK/2024-02-28").status_code == 404
    for name in ("link", "download"):
        assert pages.post(f"/app/exports/{ready.pk}/{name}").status_code == 404


def test_unauthenticated_visitors_are_redirected_to_sign_in(ready: Job) -> None:
    for path in ("", "/new", f"/{ready.pk}"):
        response = Client().get(f"/app/exports{path}")
        assert (response.status_code, response["Location"].partition("?")[0]) == (302, "/app/sign-in"), path
    for name in ACTIONS:
        assert Client().post(f"/app/exports/{ready.pk}/{name}")["Location"].startswith("/app/sign-in")
    part = Client().get(f"/app/exports/{ready.pk}/now", headers=HTMX)
    assert part.status_code == 401
    assert "You are signed out" in text(part)


def test_changes_require_a_post_with_a_csrf_token(ready: Job, alice: User) -> None:
    client = browser_of(alice, enforce_csrf_checks=True, headers=BROWSER)
    paths = [f"/app/exports/{ready.pk}/{name}" for name in ACTIONS] + [
        "/app/exports/several",
        "/app/exports/new/preview",
    ]
    for path in paths:
        assert client.get(path).status_code == 405, path
        assert client.post(path).status_code == 403, path
    assert client.post("/app/exports/new", form()).status_code == 403
    assert (Job.objects.count(), Link.objects.count()) == (1, 1)


# ---- Queries --------------------------------------------------------------------------------------------------------


def queries(visitor: Client, path: str) -> int:
    """Return the number of statements, without those that begin and end the snapshot."""
    with CaptureQueriesContext(connection) as captured:
        assert visitor.get(path).status_code == 200
    return sum(not each["sql"].startswith(("BEGIN", "SET TRANSACTION", "COMMIT")) for each in captured)


def test_lists_of_2_and_200_jobs_take_the_same_number_of_queries(
    dataset: Dataset, alice: User, visitor: Client
) -> None:
    for _ in range(2):
        make_job(dataset, alice, 1)
    few = queries(visitor, "/app/exports?limit=200")
    Job.objects.bulk_create(
        [
            Job(
                user=alice,
                dataset=dataset,
                schema_version=1,
                format="csv",
                delivery="zip",
                ttl=600,
                total=2,
                status=status,
            )
            for status in ["pending", "failed", "running"] * 66
        ]
    )
    shown = visitor.get("/app/exports?limit=200")
    assert shown.content.decode().count('name="job"') == 200
    assert queries(visitor, "/app/exports?limit=200") == few <= 10


def test_jobs_of_2_and_many_chunks_take_the_same_number_of_queries(
    dataset: Dataset, alice: User, visitor: Client
) -> None:
    few, many = make_job(dataset, alice, 2), make_job(dataset, alice, 300)
    for part, maximum in (("", 12), ("/now", 8), ("/chunks", 8)):
        cost = queries(visitor, f"/app/exports/{few.pk}{part}")
        assert queries(visitor, f"/app/exports/{many.pk}{part}") == cost <= maximum, part


# ---- The list -------------------------------------------------------------------------------------------------------


def test_lists_are_filtered_and_paginated(dataset: Dataset, alice: User, visitor: Client) -> None:
    jobs = [make_job(dataset, alice, 1) for _ in range(3)]
    actions.cancel(jobs[0])
    cancelled = visitor.get("/app/exports?status=cancelled").content.decode()
    assert (str(jobs[0].pk) in cancelled, str(jobs[1].pk) in cancelled) == (True, False)
    assert "every 3s" not in cancelled, "a list of ended exports is not polled"
    active = visitor.get("/app/exports?status=active&limit=1").content.decode()
    assert str(jobs[2].pk) in active
    assert "every 3s" in active
    older = re.search(r'rel="next" href="([^"]+)"', active)
    assert older
    assert str(jobs[1].pk) in visitor.get("/app/exports" + older[1].replace("&amp;", "&")).content.decode()
    assert "No exports match this filter" in visitor.get("/app/exports?dataset=nothing").content.decode()
    assert visitor.get("/app/exports?dataset=nothing%00").status_code == 400
    assert visitor.get("/app/exports?status=odd").status_code == 400


def test_an_empty_start_page_shows_the_first_steps(alice: User, visitor: Client) -> None:
    assert "No exports yet" in visitor.get("/app/exports").content.decode()
    assert "No datasets of the source database are available" in visitor.get("/app/exports/new").content.decode()


def test_only_staff_with_the_permission_can_add_a_dataset(transactional_db: None) -> None:
    for is_superuser in (True, False):
        user = User.objects.create_user(f"sam-{is_superuser}", is_staff=True, is_superuser=is_superuser)
        page = browser_of(user).get("/app/exports/new").content.decode()
        assert ("/dataset/add/" in page, "Ask an administrator" in page) == (is_superuser, not is_superuser)


def test_bulk_actions_ask_for_confirmation(dataset: Dataset, alice: User, visitor: Client) -> None:
    failed = make_job(dataset, alice, 2)
    end_chunk()
    fail_chunk()
    jobs = [make_job(dataset, alice, 3), make_job(dataset, alice, 3), failed]
    selection = {"do": "cancel", "job": [str(job.pk) for job in jobs]}

    confirmation = visitor.post("/app/exports/several", selection)
    assert "Cancel 2 exports?" in text(confirmation)
    assert "6 unfinished chunks will be cancelled" in text(confirmation)
    assert Job.objects.filter(status="pending").count() == 2
    done = visitor.post("/app/exports/several", {**selection, "sure": "1"})
    assert "2 exports cancelled." in messages_of(done)
    assert sorted(Job.objects.values_list("status", flat=True)) == ["cancelled", "cancelled", "failed"]

    selection["do"] = "retry"
    assert "1 failed chunk will be retried" in text(visitor.post("/app/exports/several", selection))
    done = visitor.post("/app/exports/several", {**selection, "sure": "1"})
    assert "1 export queued for retry." in messages_of(done)
    failed.refresh_from_db()
    assert failed.status == "running"
    assert "Select one or more exports" in messages_of(visitor.post("/app/exports/several", {"do": "cancel"}))[-1]


# ---- The form -------------------------------------------------------------------------------------------------------


def test_pasted_pairs_become_the_job(dataset: Dataset, visitor: Client) -> None:
    lines = ["\ufeffkey,effectiveDate", '"JFK","2024-02-29"', "", "# a remark", "LGA;2024-03-01;", "EWR\t2024-03-02"]
    pasted = "\r\n".join([*lines, "JFK 2024-02-29"])
    response = visitor.post("/app/exports/new", form(items=pasted, written_for="excel", reuse="", delivery="manifest"))
    job = Job.objects.get()
    assert response["Location"] == f"/app/exports/{job.pk}"
    assert [f"{key} {day}" for key, day in job.chunks.order_by("seq").values_list("key", "effective_date")] == [
        "JFK 2024-02-29",
        "LGA 2024-03-01",
        "EWR 2024-03-02",
    ]
    assert (job.duplicates, job.delivery, job.reuse, job.allow_degraded) == (1, "manifest", "never", True)
    assert job.dialect == {"bom": True, "delimiter": ",", "formula_policy": "escape"}
    assert job.agent == links.LinkClient(address=None, user_agent=AGENT).agent


def test_keys_and_dates_become_the_job(dataset: Dataset, visitor: Client) -> None:
    visitor.post(
        "/app/exports/new",
        form(mode="filters", keys="JFK, LGA\nEWR", date_from="2024-02-28", date_to="2024-03-01", format="jsonl"),
    )
    job = Job.objects.get()
    assert (job.total, job.format, job.delivery) == (9, "jsonl", "zip")
    assert job.filters == {"keys": ["JFK", "LGA", "EWR"], "dateFrom": "2024-02-28", "dateTo": "2024-03-01"}


def test_an_uploaded_file_becomes_the_job_and_is_kept_after_errors(dataset: Dataset, visitor: Client) -> None:
    def send(content: bytes) -> Any:
        return visitor.post("/app/exports/new", form(items="", file=SimpleUploadedFile("pairs.csv", content)))

    wrong = send(b"JFK,2024-02-29\nLGA,yesterday\n")
    assert "Line 2: “yesterday” is not a date. Write it as 2024-02-29." in text(wrong)
    assert "LGA,yesterday\n</textarea>" in wrong.content.decode()
    assert "not UTF-8 text" in text(send(b"\xff\xfe\x00"))
    assert send(b"JFK,2024-02-29\nLGA,2024-03-01\n").status_code == 302
    assert Job.objects.get().total == 2


@pytest.mark.parametrize(
    ("items", "line"),
    [
        ("JFK 2024-02-29\n" * 16 + "JFK 29.02.2024", "Line 17: “29.02.2024” is not a date. Write it as 2024-02-29."),
        ("\n# x\nJFK", "Line 3: the date is missing. Write KEY 2024-02-29."),
        ("J/K 2024-02-29", "Line 1: “J/K” is not a key of this dataset."),
        ("JFK,2024-02-29,more", "Line 1: too many columns"),
        ("key,date\nJFK,2024-02-30", "Line 2: “2024-02-30” is not a calendar date"),
        (",2024-02-29", "Line 1: the key is missing. Write KEY 2024-02-29."),
        ("", "Enter at least one key and date"),
    ],
)
def test_errors_are_shown_at_their_line(dataset: Dataset, visitor: Client, items: str, line: str) -> None:
    response = visitor.post("/app/exports/new", form(items=items))
    assert line in text(response)
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["JFK", "NEW YORK", "#12", "Smith, John", 'a;"b"', 'a"b'])
def test_a_new_form_contains_the_keys_of_the_job(key: str) -> None:
    [line] = pasted_pairs.read(pasted_pairs.text_of([(key, "2024-02-29")]))
    assert line.cells == [key, "2024-02-29"]


@pytest.mark.parametrize(
    ("lines", "rest"), [(21, " 1 more error."), (60, " 40 more errors."), (2_000, "At least 80 more errors.")]
)
def test_the_number_of_further_errors_is_true(dataset: Dataset, visitor: Client, lines: int, rest: str) -> None:
    assert rest in text(visitor.post("/app/exports/new", form(items="JFK never\n" * lines)))


def test_the_first_of_many_errors_are_shown_and_the_rest_counted(dataset: Dataset, visitor: Client) -> None:
    shown = text(visitor.post("/app/exports/new", form(items="JFK never\n" * 60)))
    assert "Line 20: " in shown
    assert "Line 21: " not in shown
    assert "40 more errors." in shown


@pytest.mark.slow
def test_other_errors_are_shown_at_their_field(dataset: Dataset, visitor: Client, settings: LazySettings) -> None:
    def errors(**changes: Any) -> dict[str, Any]:
        found = visitor.post("/app/exports/new", form(**changes)).context["form"].errors
        return {name: list(each) for name, each in found.items()}

    change_settings(settings, export_max_chunks_per_job=5)
    filters = {"mode": "filters", "keys": "A B", "date_from": "2024-01-01", "date_to": "2024-01-02"}
    assert errors(**filters, format="odd").keys() == {"format"}
    assert errors(dataset="").keys() == {"dataset"}
    assert errors(**{**filters, "keys": ""}) == {"keys": ["Enter at least one key."]}
    assert errors(**{**filters, "keys": "A /"})["keys"][0].startswith("Key 2: ")
    assert errors(**{**filters, "date_from": ""}) == {"date_from": ["Enter a date such as 2024-02-29."]}
    assert errors(**{**filters, "date_to": "2023-01-01"}) == {"date_to": ["The end date is before the start date."]}
    assert errors(**{**filters, "date_to": "2024-01-03"}) == {
        "keys": ["The request has 6 chunks. The limit is 5 chunks per export."]
    }
    Dataset.objects.update(formats=["csv"])
    assert errors(format="json") == {"format": ["This dataset supports: csv."]}


def test_a_double_click_creates_one_job(dataset: Dataset, alice: User, visitor: Client) -> None:
    sent = form()
    locations = in_threads(4, lambda _: as_user(alice).post("/app/exports/new", sent)["Location"])
    locations.append(visitor.post("/app/exports/new", sent)["Location"])
    assert set(locations) == {f"/app/exports/{Job.objects.get().pk}"}
    assert Usage.objects.get().jobs == 1


def test_a_changed_repeat_of_a_form_is_reported_and_can_be_resubmitted(dataset: Dataset, visitor: Client) -> None:
    sent = form()
    visitor.post("/app/exports/new", sent)
    response = visitor.post("/app/exports/new", {**sent, "items": "JFK 2024-01-01"})
    assert "already created a different export" in text(response)
    again = re.search(r'name="once" value="([^"]+)"', response.content.decode())
    assert again
    assert visitor.post("/app/exports/new", {**sent, "items": "JFK 2024-01-01", "once": again[1]}).status_code == 302
    assert Job.objects.count() == 2


def test_htmx_is_redirected_to_the_job_or_gets_only_the_form_with_errors(dataset: Dataset, visitor: Client) -> None:
    wrong = visitor.post("/app/exports/new", form(items="JFK"), headers=HTMX)
    assert wrong.content.decode().startswith('<form id="new-export"')
    right = visitor.post("/app/exports/new", form(), headers=HTMX)
    assert right["HX-Redirect"] == f"/app/exports/{Job.objects.get().pk}"


def test_a_preview_describes_the_job_and_changes_nothing(dataset: Dataset, alice: User, visitor: Client) -> None:
    make_job(dataset, alice, 2)
    execution.drain()
    Allowance.objects.create(user=alice, daily_chunks=7)
    before = (Job.objects.count(), Usage.objects.get().chunks)
    filters = form(mode="filters", keys="JFK JFK", date_from="2024-02-28", date_to="2024-03-01")
    for path, more in (("/app/exports/new/preview", {}), ("/app/exports/new", {"check": "1"})):
        shown = text(visitor.post(path, {**filters, **more}))
        assert "Chunks 3 Reusable 2 Quota cost 1" in shown
        assert "3 duplicate pairs are skipped" in shown
        assert "Uses 3 of the 5 chunks left today. 2 reused chunks are refunded" in shown
    too_much = {**filters, "date_to": "2024-03-10"}
    assert "It exceeds the daily quota" in text(visitor.post("/app/exports/new/preview", too_much))
    wrong = text(visitor.post("/app/exports/new/preview", form(items="JFK x")))
    assert "Line 1: “x” is not a date" in wrong
    assert (Job.objects.count(), Usage.objects.get().chunks) == before


def test_a_preview_estimates_the_duration(ready: Job, visitor: Client) -> None:
    Job.objects.update(finished_at=F("started_at") + timedelta(seconds=0.4))  # the same on slow machines
    assert "Usually ready about 1 s" in text(visitor.post("/app/exports/new/preview", form()))


def test_an_exhausted_quota_is_reported_with_its_reset_and_keeps_the_form(
    dataset: Dataset, alice: User, visitor: Client
) -> None:
    Allowance.objects.create(user=alice, daily_jobs=0)
    response = visitor.post("/app/exports/new", form())
    assert "You have reached your daily limit of 0 exports" in text(response)
    assert re.search(r"Try again in \d+ (h|min|s)", text(response))
    assert "LGA,2024-03-01" in response.content.decode()


def test_a_new_form_can_start_from_the_request_of_a_job(dataset: Dataset, visitor: Client) -> None:
    for sent in (
        form(
            items="LGA 2024-03-01\nJFK 2024-02-29",
            written_for="excel-semicolon",
            allow_degraded="",
            compression="gzip",
            keep_for="604800",
        ),
        form(
            mode="filters", keys="A\nB", date_from="2024-02-28", date_to="2024-03-01", written_for="own", delimiter="|"
        ),
    ):
        visitor.post("/app/exports/new", sent)
        job = Job.objects.latest("created_at")
        shown = visitor.get(f"/app/exports/new?from={job.pk}").context["form"]
        assert shown["items"].value() == (sent["items"].strip() if sent["mode"] == "items" else None)
        kept = {name: shown[name].value() for name in sent if name not in NOT_KEPT}
        assert kept == {name: sent[name] for name in kept}
        assert (shown["allow_degraded"].value(), shown["reuse"].value()) == (bool(sent["allow_degraded"]), True)
        assert (job.ttl, shown["keep_for"].value()) == ((604_800, 604_800) if "keep_for" in sent else (86_400, ""))
        assert shown["delivery"].value() == "zip"
        assert str(shown["once"].value()) != job.idempotency_key


# ---- A job ----------------------------------------------------------------------------------------------------------


def test_buttons_have_the_effects_of_the_api(dataset: Dataset, alice: User, visitor: Client) -> None:
    job = make_job(dataset, alice, 2)
    page = f"/app/exports/{job.pk}"
    cancelled = visitor.post(f"{page}/cancel")
    assert (cancelled["Location"], messages_of(cancelled)) == (
        page,
        ["Export cancelled with 2 unfinished chunks. Finished files stay available for reuse."],
    )
    assert "This export has already ended" in messages_of(visitor.post(f"{page}/cancel"))[-1]
    assert "Only failed exports can be retried" in messages_of(visitor.post(f"{page}/retry"))[-1]
    assert "has no receipt yet" in messages_of(visitor.post(f"{page}/download"))[-1]

    sent = {"once": str(uuid4())}
    locations = {visitor.post(f"{page}/replay", sent)["Location"] for _ in range(3)}
    assert locations == {f"/app/exports/{Job.objects.exclude(pk=job.pk).get().pk}"}


def test_failures_are_grouped_and_explained_with_the_cost_of_a_retry(
    dataset: Dataset, alice: User, visitor: Client
) -> None:
    job = make_job(dataset, alice, 3)
    end_chunk()
    fail_chunk()
    fail_chunk()
    shown = text(visitor.get(f"/app/exports/{job.pk}"))
    assert "The source database raised an error : 2 chunks, such as JFK 2024-02-29." in shown
    assert "SQLSTATE 42883" in shown
    assert "until the cause is fixed" in shown
    assert "Retry 2 failed chunks" in shown
    assert "A retry uses 2 of the" in shown

    Allowance.objects.create(user=alice, daily_chunks=2)
    short = visitor.get(f"/app/exports/{job.pk}")
    assert "A retry needs 2 chunks, and 1 is left in today's quota" in text(short)
    assert "/retry" not in short.content.decode()
    Allowance.objects.all().delete()
    assert messages_of(visitor.post(f"/app/exports/{job.pk}/retry")) == ["2 failed chunks queued for retry."]


def test_the_chunk_table_keeps_its_filter_and_its_page(dataset: Dataset, alice: User, visitor: Client) -> None:
    job = make_job(dataset, alice, 5)
    fail_chunk()
    only = visitor.get(f"/app/exports/{job.pk}/chunks?status=failed").content.decode()
    assert only.count("<tr>") == 2
    assert f'hx-get="/app/exports/{job.pk}/chunks?status=failed"' in only
    first = visitor.get(f"/app/exports/{job.pk}?limit=2&status=pending").content.decode()
    after = re.search(r'rel="next" id="chunks-after" href="[^"]*\?([^"]+)#chunks"', first)
    assert after
    query = after[1].replace("&amp;", "&")
    second = visitor.get(f"/app/exports/{job.pk}/chunks?{query}").content.decode()
    assert ["2024-03-02" in second, "2024-03-01" in second] == [True, False]
    assert f'hx-get="/app/exports/{job.pk}/chunks?{after[1]}"' in second
    assert visitor.get(f"/app/exports/{job.pk}?status=odd").status_code == 400


def test_buttons_are_replaced_only_after_a_change(dataset: Dataset, alice: User, visitor: Client) -> None:
    job = make_job(dataset, alice, 1)
    now = f"/app/exports/{job.pk}/now"
    shown = visitor.get(now).context["shown"]
    assert 'id="head"' not in visitor.get(now, {"shown": shown}).content.decode()
    assert "data-ended" not in visitor.get(now, {"shown": shown}).content.decode()
    actions.cancel(job)
    ended = visitor.get(now, {"shown": shown}).content.decode()
    assert 'id="head" class="head" hx-swap-oob="true"' in ended
    assert "data-ended" in ended


# ---- Its receipt ----------------------------------------------------------------------------------------------------


def test_each_download_creates_a_new_link(ready: Job, visitor: Client) -> None:
    page = f"/app/exports/{ready.pk}"
    for _ in range(2):
        created = visitor.post(f"{page}/download")
        assert created["Location"].startswith(f"/exports/{ready.pk}/download?token=")
        assert visitor.get(created["Location"]).status_code == 302
        assert visitor.get(created["Location"]).status_code == 403
        assert messages_of(created) == []
    assert "The last link was used" in text(visitor.get(page))
    assert "Downloaded" in text(visitor.get(page))
    assert "link already used" in text(visitor.get(page))


def test_the_policy_allows_form_redirects_only_to_the_object_storage(ready: Job, visitor: Client) -> None:
    created = visitor.post(f"/app/exports/{ready.pk}/download")
    origin = "/".join(visitor.get(created["Location"])["Location"].split("/")[:3])
    policy = visitor.get(f"/app/exports/{ready.pk}")["Content-Security-Policy"]
    assert f"form-action 'self' {origin};" in f"{policy};"


def test_a_link_for_a_program_is_shown_with_its_binding(ready: Job, visitor: Client) -> None:
    page = f"/app/exports/{ready.pk}"
    assert visitor.post(f"{page}/link")["Location"] == f"{page}#receipt"
    shown = visitor.get(page).content.decode()
    assert "only from the network <code>127.0.0.0/24</code>" in shown
    command = re.search(r'<code id="link">(.*?)</code>', shown, re.DOTALL)
    assert command
    assert "-A &#x27;Mozilla/5.0 (X11) Test/1.0&#x27;" in command[1]
    token = re.search(r"/exports/[^'&]*", command[1])
    assert token
    assert Client(headers={"User-Agent": "curl/8"}).get(token[0]).json()["code"] == "link_mismatch"
    assert visitor.get(token[0]).status_code == 302
    assert "token=" not in visitor.get(page).content.decode()


def test_file_names_are_quoted_in_shell_commands(ready: Job, visitor: Client) -> None:
    name = "it's \u2019$(id)`id`\"; id.csv"
    Receipt.objects.update(file_name=name)
    visitor.post(f"/app/exports/{ready.pk}/link")
    shown = html.unescape(visitor.get(f"/app/exports/{ready.pk}").content.decode())
    check = re.search(r'<code id="check-unix">(.*?)</code>', shown, re.DOTALL)
    fetch = re.search(r'<code id="link">(.*?)</code>', shown, re.DOTALL)
    assert check
    assert fetch
    assert shlex.split(check[1])[:2] == ["echo", f"{ready.receipt.checksum}  {name}"]
    words = shlex.split(fetch[1])
    assert words[words.index("-o") + 1] == name
    assert """Path 'it''s \u2019\u2019$(id)`id`"; id.csv').Hash""" in shown


def test_an_expired_receipt_explains_the_next_step(ready: Job, visitor: Client) -> None:
    page = f"/app/exports/{ready.pk}"
    shown = visitor.get(f"{page}/receipt").context["shown"]
    assert visitor.get(f"{page}/receipt", {"shown": shown}).status_code == 204
    Receipt.objects.update(expires_at=timezone.now())
    over = visitor.get(f"{page}/receipt", {"shown": shown})
    assert "The delivery expired" in text(over)
    assert "are reused at no quota cost" in text(over)
    assert "every 10s" not in over.content.decode()
    assert "/download" not in visitor.get(page).content.decode()
    assert "The delivery has expired" in messages_of(visitor.post(f"{page}/download"))[-1]
    assert visitor.get(f"{page}/files/JFK/2024-02-28").status_code == 410


def test_single_files_are_downloaded_from_the_table(ready: Job, visitor: Client) -> None:
    assert (
        f'href="/app/exports/{ready.pk}/files/JFK/2024-02-28"'
        in visitor.get(f"/app/exports/{ready.pk}").content.decode()
    )
    assert "X-Amz-Signature" in visitor.get(f"/app/exports/{ready.pk}/files/JFK/2024-02-28")["Location"]
    for odd in ("JFK/2024-02-30", "JFK/x", "ABC/2024-02-28"):
        assert visitor.get(f"/app/exports/{ready.pk}/files/{odd}").status_code == 404, odd


def test_the_history_of_a_job_is_shown(ready: Job, visitor: Client) -> None:
    shown = text(visitor.get(f"/app/exports/{ready.pk}"))
    locations = [shown.index(words) for words in ("Export ready", "Chunks: 2 done", "Created with 2 chunks")]
    assert locations == sorted(locations)
    Event.objects.all().delete()
    assert "Export ready" in text(visitor.get(f"/app/exports/{ready.pk}"))


# ---- Rate limits ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_requests_count_toward_the_api_rate_limits(
    dataset: Dataset, alice: User, visitor: Client, settings: LazySettings
) -> None:
    throttling.limiter_of.cache_clear()
    valkey().flushdb()
    change_settings(settings, export_rate="3/min", export_poll_rate="5/min")
    job = make_job(dataset, alice, 1)
    for _ in range(3):
        visitor.post("/app/exports/new/preview", form())
    for path, more in (("/app/exports/new/preview", {}), ("/app/exports/new", {"check": "1"})):
        early = visitor.post(path, form(**more))
        assert (early.status_code, "Too many requests" in text(early)) == (429, True)
    visitor.post(f"/app/exports/{job.pk}/cancel")
    visitor.post("/app/exports/several", {"do": "cancel", "job": [str(job.pk)]})
    assert visitor.post("/app/exports/new", form()).status_code == 302
    refused = visitor.post("/app/exports/new", form())
    assert (refused.status_code, "Too many requests." in text(refused)) == (429, True)
    assert "Too many requests" in messages_of(visitor.post(f"/app/exports/{job.pk}/replay"))[-1]
    assert Job.objects.count() == 2
    pages: list[Callable[[], Any]] = [lambda: visitor.get("/app/exports")] * 6
    assert [page().status_code for page in pages] == [200] * 5 + [429]
    valkey().flushdb()


def test_refused_requests_are_not_read(
    dataset: Dataset, visitor: Client, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refusal, htmx keeps the form on the page, and shows the first paragraph of the response's `main`."""
    throttling.limiter_of.cache_clear()
    valkey().flushdb()
    change_settings(settings, export_rate="1/min")
    visitor.post("/app/exports/new/preview", form())
    visitor.post("/app/exports/new", form())
    read = Mock(return_value=[])
    monkeypatch.setattr(pasted_pairs, "read", read)
    for path, more in (("/preview", {}), ("", {}), ("", {"check": "1"})):
        refused = visitor.post(f"/app/exports/new{path}", form(**more), headers=HTMX)
        assert refused.status_code == 429, path
        assert int(refused["Retry-After"]) > 0
        assert "<p>Too many requests." in refused.content.decode()
    read.assert_not_called()
    valkey().flushdb()


def test_an_endless_list_is_not_parsed(
    dataset: Dataset, visitor: Client, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(settings, export_max_chunks_per_job=5)
    cells = Mock(wraps=pasted_pairs.cells)
    monkeypatch.setattr(pasted_pairs, "cells", cells)
    for items, accepted in (("key,date\n" + "JFK,2024-02-29\n" * 50, True), ("key,date\n" + "J,1\n" * 9999, False)):
        cells.reset_mock()
        response = visitor.post("/app/exports/new", form(items=items))
        assert (response.status_code == 302) is accepted
        assert ("The limit is 5 chunks per export." in text(response)) is not accepted
        assert cells.call_count <= 52


def test_an_unknown_job_is_404(visitor: Client) -> None:
    response = visitor.get(f"/app/exports/{UUID(int=1)}")
    assert response.status_code == 404
    assert "Export not found" in text(response)
