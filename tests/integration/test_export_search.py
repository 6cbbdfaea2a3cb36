"""Names of exports, suggested keys, and the search for exports: in the API, on the page, and by staff. A41."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from exports.api.schedules import read_export
from exports.core.planning import Pair
from exports.jobs import actions, submission
from exports.models import Dataset, Grant, Job
from exports.pages import recent_keys
from exports.schedules import runs
from tests.conftest import browser_of
from tests.integration.factories import FIRST_DAY, make_job
from tests.integration.plans import nodes, plans_of, rows_of
from tests.integration.schedules import make_schedule
from tests.integration.staff import list_of, page_of
from tests.integration.test_submission import pointers

BODY = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": "2024-02-28"}]}
PAGE = "/app/exports"


def search(api: APIClient, **filters: Any) -> list[str]:
    response = api.get(f"/exports?{urlencode(filters)}")
    assert response.status_code == 200, response.json()
    return [job["name"] for job in response.json()["results"]]


@pytest.fixture
def visitor(alice: User) -> Client:
    return browser_of(alice)


# ---- Names ----------------------------------------------------------------------------------------------------------
def test_a_name_is_stored_shown_and_copied_by_a_replay(api: APIClient, dataset: Dataset, visitor: Client) -> None:
    """A41."""
    job_id = api.post("/exports", {**BODY, "name": " Flights of <February> "}).json()["jobId"]
    assert api.get(f"/exports/{job_id}").json()["name"] == "Flights of <February>"
    again = api.post(f"/exports/{job_id}/replay").json()["jobId"]
    assert api.get(f"/exports/{again}").json()["name"] == "Flights of <February>"
    unnamed = api.post("/exports", BODY).json()["jobId"]
    assert api.get(f"/exports/{unnamed}").json()["name"] is None
    for path in ("", f"/{job_id}", f"/new?from={job_id}"):
        assert "Flights of &lt;February&gt;" in visitor.get(PAGE + path).content.decode(), path


@pytest.mark.parametrize(
    ("name", "code"), [("", "blank"), (" ", "blank"), ("a" * 201, "max_length"), ("a\nb", "invalid"), (1, "invalid")]
)
def test_an_invalid_name_is_refused(api: APIClient, dataset: Dataset, name: Any, code: str) -> None:
    """A41."""
    response = api.post("/exports", {**BODY, "name": name})
    assert (response.status_code, pointers(response)) == (400, {("/name", code)})
    assert not Job.objects.exists()


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u3000"])
def test_a_name_with_other_spaces_is_found(api: APIClient, dataset: Dataset, space: str) -> None:
    """A41."""
    name = f"Flights{space}of{space}February"
    assert api.post("/exports", {**BODY, "name": name}).status_code == 202
    assert search(api, q=name) == [name]


def test_the_form_accepts_a_name(dataset: Dataset, visitor: Client) -> None:
    """A41."""
    form = {"dataset": "things", "mode": "items", "items": "JFK 2024-02-29", "format": "csv", "compression": "none"}
    refused = visitor.post(f"{PAGE}/new", {**form, "delivery": "auto", "name": "a\x0bb"}).content.decode()
    assert "Must not contain line breaks or control characters." in refused
    visitor.post(f"{PAGE}/new", {**form, "delivery": "auto", "name": "Of JFK"})
    assert Job.objects.get().name == "Of JFK"


def test_exports_of_a_schedule_have_its_name_unless_the_request_has_one(dataset: Dataset, alice: User) -> None:
    """A41."""
    caller = submission.Caller(user_id=alice.pk)
    daily = make_schedule(alice, dataset, name="Daily")
    job, _ = runs.run_now(daily, read_export, caller, now=timezone.now())
    named = make_schedule(alice, dataset, name="Weekly")
    named.request["name"] = "Own"
    own, _ = runs.run_now(named, read_export, caller, now=timezone.now())
    assert (job.name, own.name) == ("Daily", "Own")


# ---- Search ---------------------------------------------------------------------------------------------------------
def test_a_part_of_the_name_is_enough(api: APIClient, dataset: Dataset, alice: User, bob: User) -> None:
    """A41: a text of fewer than three characters is searched only at the beginning of names."""
    for name in ("Flights 2013", "late flights", "100%_sure", "ÜBERSICHT"):
        make_job(dataset, alice, 1, name=name)
    make_job(dataset, alice, 1)
    make_job(dataset, bob, 1, name="flights of bob")
    assert search(api, q="FLIGHTS") == ["late flights", "Flights 2013"]
    assert search(api, q=" ghts 20 ") == ["Flights 2013"]
    assert search(api, q="fl") == ["Flights 2013"]
    assert search(api, q="%_s") == ["100%_sure"]
    assert search(api, q="übersicht") == ["ÜBERSICHT"]
    assert len(search(api, q="")) == 5


def test_the_id_or_its_first_digits_find_an_export(api: APIClient, dataset: Dataset, alice: User, bob: User) -> None:
    """A41. A name that contains the same digits is also found."""
    job = make_job(dataset, alice, 1, name="mine")
    id_ = str(job.pk)
    for text in (id_, id_.upper(), id_[:8], id_[:13], id_.replace("-", "")[:20]):
        assert search(api, q=text) == ["mine"], text
    assert search(api, q=id_[:7]) == []
    assert search(api, q=id_[1:9]) == []
    make_job(dataset, alice, 1, name=f"of {id_[:8]}")
    assert search(api, q=id_[:8]) == [f"of {id_[:8]}", "mine"]
    assert search(api, q=str(make_job(dataset, bob, 1).pk)) == []


def test_status_dataset_and_days_are_combined(api: APIClient, dataset: Dataset, alice: User) -> None:
    """A41."""
    other = Dataset.objects.create(name="others", function="data.others", base_path="others")
    for name, at in (("a", "2024-02-28T23:59:59.999999"), ("b", "2024-02-29"), ("c", "2024-03-01")):
        job = make_job(other if name == "b" else dataset, alice, 1, name=name)
        Job.objects.filter(pk=job.pk).update(created_at=datetime.fromisoformat(at).replace(tzinfo=UTC))
    assert search(api, **{"from": "2024-02-29", "to": "2024-02-29"}) == ["b"]
    assert search(api, **{"from": "2024-02-29"}) == ["c", "b"]
    assert search(api, to="2024-02-28") == ["a"]
    assert search(api, dataset="others", to="2024-02-29") == ["b"]
    assert search(api, dataset="none") == []
    assert search(api, status="pending", q="a") == ["a"]
    assert search(api, status="failed", q="a") == []


@pytest.mark.parametrize(
    ("filters", "errors"),
    [
        ({"q": "a" * 256}, {("/q", "max_length")}),
        ({"q": "a\x07b", "status": "done"}, {("/q", "invalid"), ("/status", "invalid_choice")}),
        ({"scheduleId": "7"}, {("/scheduleId", "invalid")}),
        ({"from": "2024-02-30", "to": ""}, {("/from", "invalid"), ("/to", "invalid")}),
        ({"from": "2024-03-01", "to": "2024-02-29"}, {("/to", "invalid")}),
    ],
)
def test_invalid_filters_are_refused_by_name(api: APIClient, filters: Any, errors: set[Any]) -> None:
    """A41."""
    response = api.get(f"/exports?{urlencode(filters)}")
    assert (response.status_code, pointers(response)) == (400, errors)


def test_the_page_has_the_same_filters(dataset: Dataset, alice: User, visitor: Client) -> None:
    """A41."""
    make_job(dataset, alice, 1, name="Flights 7")
    make_job(dataset, alice, 1, name="Weather")
    page = visitor.get(f"{PAGE}?q=light&dataset=things&from=&to=").content.decode()
    assert "Flights 7" in page
    assert "Weather" not in page
    assert "?q=light&amp;dataset=things&amp;from=&amp;to=&amp;status=failed" in page
    assert "<option selected>things</option>" in page
    assert "No exports match this filter." in visitor.get(f"{PAGE}?q=nothing").content.decode()
    assert visitor.get(f"{PAGE}?from=tomorrow").status_code == 400


def test_staff_find_exports_and_chunks_by_displayed_values(
    pages: Client,
    dataset: Dataset,
    alice: User,
) -> None:
    """A41. C2."""
    job = make_job(dataset, alice, 1, name="Flights 7")
    make_job(dataset, alice, 1, name="Weather")
    for text in (str(job.pk)[:8], str(job.pk), "light"):
        page = pages.get(list_of("job", q=text)).content.decode()
        assert ("Flights 7" in page, "Weather" in page) == (True, False), text
    of_owner = pages.get(list_of("job", q="alice")).content.decode()
    assert ("Flights 7" in of_owner, "Weather" in of_owner) == (True, True)
    chunks = pages.get(list_of("chunk", q=str(job.pk)[:8]))
    assert [chunk.job_id for chunk in chunks.context["cl"].result_list] == [job.pk]


def test_the_page_of_an_active_export_refreshes_until_its_end(
    pages: Client,
    dataset: Dataset,
    alice: User,
) -> None:
    """C2. When the export has ended, the browser reloads the page, which then has other buttons."""
    job = make_job(dataset, alice, 1)
    poll = {"HX-Request": "true"}
    active = pages.get(page_of(job), headers=poll)
    assert ('hx-trigger="every 5s' in active.content.decode(), "HX-Refresh" in active) == (True, False)
    actions.cancel(job)
    assert pages.get(page_of(job), headers=poll)["HX-Refresh"] == "true"
    ended = pages.get(page_of(job))
    assert ("every 5s" in ended.content.decode(), "HX-Refresh" in ended) == (False, False)


MANY = 20_000
JOBS = """
INSERT INTO exports_jobs (job_id, user_id, dataset_id, name, schema_version, format, compression, delivery, dialect,
    reuse, allow_degraded, ttl, status, total, duplicates, done, failed, cancelled, retrying, reused, degraded, rows,
    bytes, error_code, error_detail, created_at, completion_attempts)
SELECT md5(%(user)s || 'a job' || n)::uuid, %(user)s, %(dataset)s,
    CASE WHEN n %% 3 > 0 THEN '' WHEN n %% 9000 = 3 THEN 'Contract ' || n ELSE 'Daily ' || md5(n::text) END,
    1, 'csv', 'none', 'zip', '{}', 'if-present', true, 600, 'cancelled', 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, '', '',
    now() - n * interval '1 min', 0
FROM generate_series(1, %(many)s) n
"""


@pytest.mark.slow
def test_each_search_reads_few_rows_of_many_exports(
    transactional_db: None, api: APIClient, dataset: Dataset, alice: User, bob: User
) -> None:
    """A41. If the only matches are the oldest rows, an index in the order of time would be read to its end."""
    with connection.cursor() as cursor:
        for user in (alice, bob):
            cursor.execute(JOBS, {"user": user.pk, "dataset": dataset.pk, "many": MANY})
        cursor.execute("VACUUM ANALYZE exports_jobs")

    def run(filters: dict[str, Any], _: object) -> list[str]:
        return search(api, **filters)

    some = str(Job.objects.filter(user=alice).earliest("created_at").pk)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"q": "contract"}, "exports_jobs_name"),
        ({"q": "zebra"}, "exports_jobs_name"),
        ({"q": "daily"}, "exports_jobs_of_user|exports_jobs_newest"),
        ({"q": some[:8]}, "exports_jobs_pkey"),
        ({"from": "2020-01-01", "to": "2020-12-31"}, "exports_jobs_of_user|exports_jobs_newest"),
    ]
    for filters, indexes in cases:
        scans = [
            node
            for statement, plan in plans_of(partial(run, filters))
            if "exports_jobs" in statement
            for node in nodes(plan)
            if str(node.get("Relation Name", node.get("Index Name", ""))).startswith("exports_jobs")
        ]
        assert scans, filters
        assert not [node for node in scans if node["Node Type"] == "Seq Scan"], (filters, scans)
        assert {node.get("Index Name") for node in scans} & set(indexes.split("|")), (filters, scans)
        assert max(map(rows_of, scans)) <= 250, (filters, scans)


# ---- Suggested keys -------------------------------------------------------------------------------------------------
def pairs_of(*keys: str, days: int = 100) -> list[Pair]:
    return [Pair(key, FIRST_DAY + timedelta(days=n)) for key in keys for n in range(days)]


def test_the_form_suggests_own_keys_that_are_still_granted(
    dataset: Dataset, alice: User, bob: User, visitor: Client
) -> None:
    """A41, C12: it suggests no keys of other users, and no keys that the user may no longer export."""
    make_job(dataset, alice, pairs=pairs_of("OLD"))
    make_job(dataset, alice, pairs=pairs_of("JFK", "LGA", "SECRET"))
    make_job(dataset, bob, pairs=pairs_of("BOB", days=1))
    page = visitor.get(f"{PAGE}/new").content.decode()
    assert [key for key in ("JFK", "LGA", "SECRET", "OLD", "BOB") if f'data-key="{key}"' in page] == [
        "JFK", "LGA", "SECRET", "OLD",
    ]  # fmt: skip
    team = Group.objects.create(name="team")
    alice.groups.add(team)
    Grant.objects.create(dataset=dataset, group=team, key_pattern="JFK|OLD|BOB")
    granted = Dataset.objects.granted_to(alice.pk).get(pk=dataset.pk)
    assert recent_keys.recent_keys(granted, alice.pk) == ["JFK", "OLD"]
    preview = visitor.post(f"{PAGE}/new/preview", {"dataset": "things"}).content.decode()
    assert preview.index('data-key="JFK"') < preview.index('data-key="OLD"')
    assert "SECRET" not in preview


def test_suggestions_read_some_chunks_of_large_exports(dataset: Dataset, alice: User) -> None:
    """A41."""
    make_job(dataset, alice, pairs=pairs_of(*(f"K{n}" for n in range(20))))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE exports_chunk")  # otherwise, the plan depends on statistics from another test
    granted = Dataset.objects.granted_to(alice.pk).get(pk=dataset.pk)
    (_, plan), *_ = (
        each for each in plans_of(lambda _: recent_keys.recent_keys(granted, alice.pk)) if "generate" in each[0]
    )
    chunks = [node for node in nodes(plan) if node.get("Relation Name") == "exports_chunk"]
    assert [node["Index Name"] for node in chunks] == ["exports_chunk_seq"]
    assert sum(map(rows_of, chunks)) <= recent_keys.CHUNKS
    assert len(recent_keys.recent_keys(granted, alice.pk)) == recent_keys.MAX_KEYS
