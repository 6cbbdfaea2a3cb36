"""Grants of datasets and keys to groups, and the effects of a removed grant. C12."""

from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import ProtectedError
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from rest_framework.test import APIClient

from config.platform.http.staff import COMMAND_LINE
from exports.core import key_patterns
from exports.delivery import access, links, receipts
from exports.jobs import actions, submission
from exports.models import Dataset, Download, Grant, Job, Link, ScheduleRun
from exports.schedules import runs
from tests.conftest import browser_of, client_of
from tests.integration.factories import fail_chunk, finish, make_job
from tests.integration.schedules import START, make_schedule, read_export
from tests.integration.staff import confirm, messages_of, page_of, select, text_of
from tests.integration.test_admin import form_of
from tests.integration.test_leases import in_threads

pytestmark = pytest.mark.usefixtures("empty_bucket")

ITEM = {"key": "JFK", "effectiveDate": "2024-02-29"}
OTHER = {"key": "LGA", "effectiveDate": "2024-02-29"}


@pytest.fixture
def team(alice: User) -> Group:
    """A group that Alice belongs to. Bob belongs to no group."""
    group = Group.objects.create(name="team")
    alice.groups.add(group)
    return group


def grant(dataset: Dataset, group: Group, pattern: str = "") -> Grant:
    return Grant.objects.create(dataset=dataset, group=group, key_pattern=pattern)


def post(api: APIClient, *items: dict[str, str], path: str = "/exports", **changes: Any) -> Any:
    return api.post(path, {"dataset": "things", "items": list(items) or [ITEM], **changes})


def errors(response: Any) -> list[tuple[str, str, str]]:
    assert response.status_code == 400, response.content
    return [(error["pointer"], error["code"], error["detail"]) for error in response.json()["errors"]]


def names(api: APIClient) -> list[str]:
    """Return the names of the datasets that a user may export, without the built-in dataset."""
    found = [each["name"] for each in api.get("/exports/datasets").json()["results"]]
    assert found.pop() == "documents"
    return found


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("grant_dataset", *arguments, stdout=out)
    return out.getvalue().strip()


# ---- Requests -------------------------------------------------------------------------------------------------------


def test_without_a_grant_all_users_may_export(dataset: Dataset, api: APIClient, bob: User) -> None:
    """C12."""
    for client in (api, client_of(bob)):
        assert names(client) == ["things"]
        assert post(client).status_code == 202


def test_a_granted_dataset_does_not_exist_for_other_users(dataset: Dataset, team: Group, bob: User) -> None:
    """C12: all responses are the same as for a dataset that does not exist."""
    grant(dataset, team)
    stranger = client_of(bob)
    assert names(stranger) == []
    for name in ("things", "nothing"):
        missing = stranger.get(f"/exports/datasets/{name}")
        assert (missing.status_code, missing.json()["detail"]) == (404, "Dataset not found.")
    for path in ("/exports", "/exports/preview"):
        assert errors(post(stranger, path=path)) == errors(post(stranger, path=path, dataset="nothing"))
    assert errors(post(stranger)) == [("/dataset", "unknown_dataset", "Dataset not found.")]
    schedule = {"name": "x", "cron": "0 6 * * *", "request": {"dataset": "things", "keys": ["JFK"]},
                "window": {"unit": "day", "from": -1, "to": -1}}  # fmt: skip
    assert errors(stranger.post("/exports/schedules", schedule))[0][0] == "/request/dataset"
    assert not Job.objects.exists()


def test_members_of_a_group_may_export(dataset: Dataset, team: Group, api: APIClient) -> None:
    """C12."""
    grant(dataset, team)
    assert names(api) == ["things"]
    assert api.get("/exports/datasets/things").json()["grantedKeyPatterns"] is None
    assert post(api, OTHER).status_code == 202


def test_a_key_outside_of_the_grant_is_refused_like_one_outside_of_the_pattern(
    dataset: Dataset, team: Group, api: APIClient
) -> None:
    """C12: the error has the same pointer and message."""
    outside = errors(post(api, ITEM, {**OTHER, "key": "not a key"}))
    grant(dataset, team, "J.*|E.*")
    assert errors(post(api, ITEM, OTHER)) == outside == [
        ("/items/1/key", "invalid", "Does not match the key pattern of the dataset.")
    ]  # fmt: skip
    filters = {"keys": ["EWR", "LGA", "JFK"], "dateFrom": "2024-02-29", "dateTo": "2024-02-29"}
    refused = api.post("/exports", {"dataset": "things", "filters": filters})
    assert [pointer for pointer, _, _ in errors(refused)] == ["/filters/keys/1"]
    assert post(api, ITEM).status_code == 202
    assert api.get("/exports/datasets/things").json()["grantedKeyPatterns"] == ["J.*|E.*"]


def test_a_key_has_to_match_the_pattern_of_the_dataset_too(dataset: Dataset, team: Group, api: APIClient) -> None:
    """C12."""
    grant(dataset, team, ".*")
    assert errors(post(api, {**ITEM, "key": "not a key"}))


def test_the_grants_of_all_groups_of_a_user_count(dataset: Dataset, team: Group, alice: User, api: APIClient) -> None:
    """C12."""
    grant(dataset, team, "JFK")
    others = Group.objects.create(name="others")
    grant(dataset, others, "LGA")
    assert errors(post(api, OTHER))
    alice.groups.add(others)
    assert post(api, ITEM, OTHER).status_code == 202
    Grant.objects.filter(group=others).update(key_pattern="")
    assert post(api, {**ITEM, "key": "EWR"}).status_code == 202


def test_superusers_may_export_all_and_staff_need_a_grant(dataset: Dataset, team: Group, bob: User) -> None:
    """C12."""
    grant(dataset, team)
    bob.is_staff = True
    bob.save()
    assert names(client_of(bob)) == []
    bob.is_superuser = True
    bob.save()
    assert names(client_of(bob)) == ["things"]
    assert post(client_of(bob)).status_code == 202


def test_the_list_of_datasets_is_one_query(dataset: Dataset, team: Group, alice: User, api: APIClient) -> None:
    """C12: the number of queries does not depend on the number of datasets and grants."""
    for n in range(5):
        each = Dataset.objects.create(name=f"more{n}", function="data.rows_for", base_path=f"more{n}")
        grant(each, team, f"A{n}")
        grant(each, Group.objects.create(name=f"group{n}"))
    with CaptureQueriesContext(connection) as queries:
        assert len(names(api)) == 6
    assert len(queries) == 2  # including the one for the token


def test_forms_and_filters_offer_granted_datasets(dataset: Dataset, team: Group, alice: User, bob: User) -> None:
    """C12."""
    Dataset.objects.create(name="weather", function="data.rows_for", base_path="weather")
    Dataset.objects.create(name="open", function="data.rows_for", base_path="open")
    grant(dataset, team, "J.*")
    grant(Dataset.objects.get(name="weather"), Group.objects.create(name="others"))
    for user, expected in ((alice, {"things", "open"}), (bob, {"open"})):
        browser = browser_of(user)
        for path in (reverse("new-export"), reverse("new-schedule"), reverse("exports") + "?dataset=open"):
            text = text_of(browser.get(path))
            assert {name for name in ("things", "weather", "open") if f">{name}</option>" in text} == expected, path
    form = {"dataset": "things", "mode": "items", "items": "LGA 2024-02-29"}
    browser = browser_of(alice)
    shown = text_of(browser.post(reverse("preview-export"), form))
    assert "Keys look like <code>JABCD</code>. Your groups have access to some keys only." in shown


@pytest.mark.parametrize("route", ["new-export", "new-schedule"])
def test_a_user_without_any_dataset_gets_an_explanation(dataset: Dataset, team: Group, bob: User, route: str) -> None:
    for each in Dataset.objects.all():
        grant(each, team)
    browser = browser_of(bob)
    response = browser.get(reverse(route))
    assert response.status_code == 200
    assert "available to you" in text_of(response)


# ---- Files of other users -------------------------------------------------------------------------------------------


def test_files_of_other_users_are_reused_only_for_granted_keys(
    dataset: Dataset, team: Group, api: APIClient, bob: User
) -> None:
    """C12: a file at the path of a key that is not granted is neither delivered nor shown."""
    finish(make_job(dataset, bob, 1, key="JFK"))
    finish(make_job(dataset, bob, 1, key="LGA"))
    grant(dataset, team, "JFK")
    day = {"effectiveDate": "2024-02-28"}
    assert errors(post(api, {**day, "key": "LGA"}, path="/exports/preview"))
    assert post(api, {**day, "key": "JFK"}, path="/exports/preview").json()["reusable"] == 1
    assert errors(post(api, {**day, "key": "LGA"}))
    job = Job.objects.get(pk=UUID(post(api, {**day, "key": "JFK"}).json()["jobId"]))
    assert finish(job).reused == 1


# ---- When a grant is removed ----------------------------------------------------------------------------------------


def test_an_accepted_job_ends_but_its_owner_cannot_download_it(
    dataset: Dataset, team: Group, alice: User, api: APIClient
) -> None:
    """C12: the owner gets the status, but neither links nor files until the grant is added again."""
    own_grant = grant(dataset, team)
    grant(dataset, Group.objects.create(name="others"))
    job = make_job(dataset, alice, 1, delivery="manifest")
    own_grant.delete()
    finish(job)
    open_link = Link.objects.get(receipt=job.pk)

    path = f"/exports/{job.pk}"
    assert api.get(path).json()["status"] == "success"
    for response in (api.post(f"{path}/link"), api.get(f"{path}/files/JFK/2024-02-28")):
        assert (response.status_code, response.json()["code"]) == (403, "access_removed")
    for method in ("get", "head"):
        refused = getattr(APIClient(), method)(links.path_of(open_link))
        assert refused.status_code == 403
    assert list(Download.objects.values_list("outcome", flat=True)) == ["link_revoked"] * 2
    open_link.refresh_from_db()
    assert open_link.used_at is None
    assert Link.objects.count() == 1

    own_grant.save(force_insert=True)
    assert APIClient().get(links.path_of(open_link)).status_code == 302
    assert api.post(f"{path}/link").status_code == 200
    assert api.get(f"{path}/files/JFK/2024-02-28").status_code == 302


def test_a_job_with_one_key_that_is_no_longer_granted_gets_no_link(
    dataset: Dataset, team: Group, alice: User, api: APIClient
) -> None:
    """C12: a link downloads all keys. Single files can still be downloaded for granted keys."""
    own_grant = grant(dataset, team)
    job = submission.submit(
        lambda: read_export({"dataset": "things", "items": [ITEM, OTHER], "delivery": "manifest"}, alice.pk),
        submission.Caller(user_id=alice.pk),
    )[0]
    finish(job)
    Grant.objects.filter(pk=own_grant.pk).update(key_pattern="JFK")
    assert api.post(f"/exports/{job.pk}/link").json()["code"] == "access_removed"
    assert APIClient().get(links.path_of(Link.objects.get(receipt=job.pk))).status_code == 403
    assert api.get(f"/exports/{job.pk}/files/JFK/2024-02-29").status_code == 302
    assert api.get(f"/exports/{job.pk}/files/LGA/2024-02-29").json()["code"] == "access_removed"


def test_a_user_who_leaves_the_group_loses_access(dataset: Dataset, team: Group, alice: User) -> None:
    """C12: access is checked when a link is created, and not only when the job is submitted."""
    grant(dataset, team)
    job = finish(make_job(dataset, alice, 1))
    access.require(job)
    alice.groups.clear()
    with pytest.raises(access.AccessRemoved):
        receipts.fresh_link(job, links.LinkClient(address=None, user_agent=""))


def test_a_retry_and_a_replay_need_access(dataset: Dataset, team: Group, alice: User, api: APIClient) -> None:
    """C12: a retry needs the access of the job's owner, and a replay that of the user who replays the job."""
    job = make_job(dataset, alice, 1, allow_degraded=False)
    fail_chunk()
    grant(dataset, Group.objects.create(name="others"))
    retried, replayed = (api.post(f"/exports/{job.pk}/{verb}") for verb in ("retry", "replay"))
    assert (retried.status_code, retried.json()["code"]) == (403, "access_removed")
    assert (replayed.status_code, replayed.json()["code"]) == (409, "not_replayable")
    job.refresh_from_db()
    assert (job.status, Job.objects.count()) == ("failed", 1)

    grant(dataset, team, "LGA")
    with pytest.raises(actions.NotReplayable):
        actions.replay(job, submission.Caller(user_id=alice.pk))
    Grant.objects.filter(group=team).update(key_pattern="J..")
    actions.replay(job, submission.Caller(user_id=alice.pk))
    assert actions.retry(job) == 1


def test_staff_cannot_retry_for_an_owner_without_access(
    dataset: Dataset, team: Group, alice: User, pages: Client
) -> None:
    """C12: the page shows the reason."""
    job = make_job(dataset, alice, 1)
    fail_chunk()
    grant(dataset, Group.objects.create(name="others"))
    response = confirm(pages, select(pages, "retry", job))
    assert any("no longer has access" in text for text in messages_of(response))
    job.refresh_from_db()
    assert job.status == "failed"


def test_a_schedule_without_access_is_disabled_at_its_next_run(dataset: Dataset, team: Group, alice: User) -> None:
    """C12."""
    schedule = make_schedule(alice, dataset)
    grant(dataset, Group.objects.create(name="others"))
    assert schedule.next_run_at
    runs.run_due(read_export, now=schedule.next_run_at)
    schedule.refresh_from_db()
    assert (schedule.enabled, schedule.disabled_reason) == (False, "/request/dataset: Dataset not found.")
    assert ScheduleRun.objects.get().outcome == "invalid"
    assert not Job.objects.exists()
    with pytest.raises(runs.ScheduleInvalid):
        runs.run_now(schedule, read_export, submission.Caller(user_id=alice.pk), now=START)


# ---- Command --------------------------------------------------------------------------------------------------------


def test_the_command_grants_changes_and_removes(dataset: Dataset, team: Group) -> None:
    """C12: each change is in the audit log."""
    Group.objects.create(name="others")
    assert command("things", "team", "--key-pattern", "J.*") == (
        "Granted things to team: keys that match J.*. From now on, only groups with a grant can export it."
    )
    assert command("things", "team") == "Granted things to team: all keys."
    assert Grant.objects.get().key_pattern == ""
    command("things", "others")
    assert command("things", "team", "--remove") == "Removed the grant of things to team."
    assert command("things", "new", "--create") == "Granted things to new: all keys."
    command("things", "new", "--remove")
    with pytest.raises(CommandError, match=r"last grant.*--open-to-all"):
        command("things", "others", "--remove")
    assert Grant.objects.count() == 1
    assert command("things", "others", "--remove", "--open-to-all").endswith("All users can export it.")
    assert not Grant.objects.exists()
    entries = LogEntry.objects.order_by("pk")
    assert [str(entry.user) for entry in entries] == [COMMAND_LINE] * 7
    assert entries[0].change_message.startswith("Granted things to team: keys that match J.*.")
    assert not User.objects.get(username=COMMAND_LINE).is_active


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nothing", "team"), "Dataset nothing not found"),
        (
            ("things", "missing"),
            "Group missing not found. Existing groups: Sluice administrators, Sluice auditors, Sluice operators, team.",
        ),
        (("things", "team", "--key-pattern", "[a-"), "Not a regular expression"),
        (("things", "team", "--key-pattern", "(a+)+"), "must not contain another repetition"),
        (("things", "team", "--remove"), "things is not granted to team"),
        (("things", "missing", "--remove", "--create"), "Group missing not found."),
    ],
)
def test_the_command_explains_refusals(dataset: Dataset, team: Group, arguments: tuple[str, ...], reason: str) -> None:
    """C12."""
    with pytest.raises(CommandError) as refusal:
        command(*arguments)
    assert reason in str(refusal.value)
    assert not Grant.objects.exists()
    assert not LogEntry.objects.exists()


def test_two_removals_at_once_leave_one_grant(dataset: Dataset, team: Group) -> None:
    """C12: without the lock, neither would detect that it removes the last grant."""
    grant(dataset, team)
    grant(dataset, Group.objects.create(name="others"))

    def remove(name: str) -> str:
        try:
            return command("things", name, "--remove")
        except CommandError as refusal:
            return str(refusal)

    outcomes = in_threads(2, lambda number: remove(("team", "others")[number]))
    assert sorted("last grant" in each for each in outcomes) == [False, True]
    assert Grant.objects.count() == 1


# ---- Admin ----------------------------------------------------------------------------------------------------------


def grants_form(*rows: dict[str, Any], initial: int = 0) -> dict[str, Any]:
    form = {"grants-TOTAL_FORMS": len(rows), "grants-INITIAL_FORMS": initial}
    return form | {f"grants-{n}-{name}": value for n, row in enumerate(rows) for name, value in row.items()}


def test_the_admin_grants_and_records_it(pages: Client, dataset: Dataset, team: Group) -> None:
    """C12."""
    of_dataset = form_of(name="things", base_path="things")
    added = grants_form({"group": team.pk, "key_pattern": "J.*"})
    assert pages.post(page_of(dataset), of_dataset | added).status_code == 302
    own_grant = Grant.objects.get()
    assert (own_grant.group, own_grant.key_pattern) == (team, "J.*")
    assert "Added grant" in LogEntry.objects.latest("pk").get_change_message()
    listed = text_of(pages.get(reverse("admin:exports_dataset_changelist")))
    assert "team" in listed

    bad = grants_form({"id": own_grant.pk, "dataset": dataset.pk, "group": team.pk, "key_pattern": "(a+)+"}, initial=1)
    assert "must not contain another repetition" in text_of(pages.post(page_of(dataset), of_dataset | bad))

    deleted = grants_form(
        {"id": own_grant.pk, "dataset": dataset.pk, "group": team.pk, "key_pattern": "J.*", "DELETE": "on"}, initial=1
    )
    assert "This is the last grant." in text_of(pages.post(page_of(dataset), of_dataset | deleted))
    assert Grant.objects.exists()
    assert pages.post(page_of(dataset), of_dataset | deleted | {"open_to_all": "on"}).status_code == 302
    assert not Grant.objects.exists()


def test_a_group_with_grants_cannot_be_deleted(pages: Client, dataset: Dataset, team: Group) -> None:
    """C12: its deletion would open the dataset to all users."""
    grant(dataset, team)
    pages.post(reverse("admin:auth_group_delete", args=[team.pk]), {"post": "yes"})
    with pytest.raises(ProtectedError):
        team.delete()
    assert Grant.objects.exists()


# ---- Patterns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(a+)+", "(a|a)*", "([A-Z]+_?)+", r"(a)(\1?)*", "(?i:a+)+", "((a{2,3})b)+"])
def test_patterns_that_may_take_exponential_time_are_refused(pattern: str) -> None:
    """C12."""
    assert "must not contain" in key_patterns.error_of(pattern)


@pytest.mark.parametrize(
    "pattern", ["^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", "^(BERLIN|PARIS)$", "(?i)a+", "([A-Z]{3}-)*", "[A-Z]{3}(-[0-9]+)?"]
)
def test_common_patterns_are_accepted(pattern: str) -> None:
    """C12."""
    assert key_patterns.error_of(pattern) == ""
