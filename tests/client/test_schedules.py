"""Recurring exports with the command line. C3, A33."""

from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from exports.models import Dataset, Job, Schedule
from tests.client.conftest import Cli
from tests.integration.schedules import make_schedule

DAILY = ("--cron", "0 6 * * *", "--timezone", "Europe/Berlin")


def create(sluice: Cli, *more: str, name: str = "Daily", code: int = 0) -> str:
    ran = sluice(
        "export", "schedule", "create", "things", "--name", name, *DAILY, "--keys", "JFK,LGA", *more, code=code
    )
    return ran.word if not code else ran.err


def test_a_schedule_is_created_with_its_options(dataset: Dataset, sluice: Cli) -> None:
    """A33."""
    made = create(
        sluice, "--from-day", "-7", "--to-day", "-1", "--misfire", "catch_up", "--format", "parquet", "--delivery",
        "single", "--reuse", "never", "--delivery-ttl", "3600", "--since-last-success",
    )  # fmt: skip
    schedule = Schedule.objects.get(pk=made)
    assert schedule.request == {
        "dataset": "things", "keys": ["JFK", "LGA"], "format": "parquet", "delivery": "single", "reuse": "never",
        "deliveryTtlSeconds": 3600,
    }  # fmt: skip
    assert (schedule.cron, schedule.timezone, schedule.misfire) == ("0 6 * * *", "Europe/Berlin", "catch_up")
    assert (schedule.window_from, schedule.window_to, schedule.enabled) == (-7, -1, True)
    assert schedule.since_last_success


def test_a_schedule_is_shown_paused_and_resumed(dataset: Dataset, sluice: Cli) -> None:
    made = create(sluice)
    shown = sluice("export", "schedule", "show", made).text
    for line in (
        "Times     0 6 * * * in Europe/Berlin",
        "Exports   things: JFK, LGA",
        "Days      -1 to -1, relative to the day of the run",
    ):
        assert line in shown
    paused = sluice("export", "schedule", "pause", made).text
    assert "none: Paused by a user." in paused
    assert not Schedule.objects.get().enabled
    assert sluice("export", "schedule", "show", made, "--json").json["disabledReason"] == "Paused by a user."
    assert sluice("export", "schedule", "resume", made, "--json").json["enabled"] is True


def test_schedules_are_listed_newest_first(dataset: Dataset, alice: User, bob: User, sluice: Cli) -> None:
    for name in ("first", "second"):
        make_schedule(alice, dataset, name=name)
    make_schedule(bob, dataset, name="other")
    lines = sluice("export", "schedule", "list").text.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["second", "first"]
    assert [each["name"] for each in sluice("export", "schedule", "list", "--json", "--limit", "1").lines] == ["second"]


def test_a_manual_run_creates_one_export(dataset: Dataset, sluice: Cli) -> None:
    """A33: a second run is refused while the first one is active."""
    made = create(sluice)
    ran = sluice("export", "schedule", "run", made)
    job = Job.objects.get()
    assert (ran.word, str(job.schedule_id)) == (str(job.pk), made)
    assert "An earlier run of this schedule has not ended." in sluice("export", "schedule", "run", made, code=5).err
    assert "pending" in sluice("export", "schedule", "show", made).text


def test_a_repeated_creation_makes_one_schedule(dataset: Dataset, sluice: Cli) -> None:
    made = {create(sluice, "--idempotency-key", "once") for _ in range(2)}
    assert len(made) == Schedule.objects.count() == 1


def test_a_schedule_can_be_created_as_paused(dataset: Dataset, sluice: Cli) -> None:
    assert Schedule.objects.get(pk=create(sluice, "--paused")).next_run_at is None


@pytest.mark.slow
def test_a_deleted_schedule_keeps_its_exports(dataset: Dataset, sluice: Cli) -> None:
    made = create(sluice)
    sluice("export", "schedule", "run", made)
    sluice("export", "schedule", "delete", made)
    assert not Schedule.objects.exists()
    assert Job.objects.count() == 1
    assert "Schedule not found." in sluice("export", "schedule", "show", made, code=4).err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--cron", "0 25 * * *"), "/cron: Not a cron expression"),
        (("--timezone", "Mars/Base"), "/timezone: Unknown time zone."),
        (("--from-day", "1", "--to-day", "0"), "/window/to: Must not be less than from."),
        (("--format", "xml"), "/request/format"),
        (("--keys", "../etc"), "/request/keys/0: Must not contain '..', slashes"),
    ],
)
def test_invalid_options_are_reported(dataset: Dataset, sluice: Cli, more: tuple[str, ...], words: str) -> None:
    """A33: no schedule is created."""
    assert words in create(sluice, *more, code=5)
    assert not Schedule.objects.exists()


def test_schedules_of_other_users_are_not_found(dataset: Dataset, bob: User, sluice: Cli) -> None:
    theirs = make_schedule(bob, dataset).pk
    for action in ("show", "pause", "resume", "run", "delete"):
        assert "Schedule not found." in sluice("export", "schedule", action, theirs, code=4).err
    assert "Schedule not found." in sluice("export", "schedule", "show", uuid4(), code=4).err


# ---- Results of documents -------------------------------------------------------------------------------------------
def test_results_of_documents_are_requested_by_filters(slots: int, sluice: Cli) -> None:
    """A36."""
    Dataset.objects.provide_built_in()
    ran = sluice(
        "export", "submit", "documents", "--status", "completed", "--from", "2026-03-01", "--format", "parquet"
    )
    job = Job.objects.get(pk=ran.word)
    assert (job.filters, job.format, job.total) == ({"status": "completed", "dateFrom": "2026-03-01"}, "parquet", 1)
    assert Job.objects.get(pk=sluice("export", "submit", "documents").word).filters == {}
    assert "--rule: Rule not found." in sluice("export", "submit", "documents", "--rule", "999999", code=5).err
    assert "--keys cannot be used" in sluice("export", "submit", "documents", "--rule", "1", "--keys", "a", code=2).err
    assert "documents" in sluice("export", "datasets").text
    assert "created_at    timestamp with time zone" in sluice("export", "dataset", "documents").text


def test_results_of_documents_are_scheduled(slots: int, sluice: Cli) -> None:
    """A36, A33."""
    Dataset.objects.provide_built_in()
    command = ("export", "schedule", "create", "documents", "--name", "Results", *DAILY)
    made = sluice(*command, "--status", "completed", "--format", "parquet").word
    assert Schedule.objects.get(pk=made).request == {"dataset": "documents", "status": "completed", "format": "parquet"}
    assert "Exports   documents: status completed" in sluice("export", "schedule", "show", made).text
    job = Job.objects.get(pk=sluice("export", "schedule", "run", made).word)
    assert set(job.filters or {}) == {"status", "dateFrom", "dateTo"}
    refused = sluice(*command, "--rule", "999999", code=5).err
    assert "/request/ruleId: Rule not found." in refused
