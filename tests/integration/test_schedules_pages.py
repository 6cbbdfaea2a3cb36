"""The pages and the admin of schedules. A33, C1."""

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from config.platform.db import clock
from exports.jobs import actions
from exports.models import Dataset, Job, Schedule
from tests.conftest import browser_of
from tests.integration.factories import make_job
from tests.integration.schedules import make_schedule

pytestmark = pytest.mark.usefixtures("empty_redis")

NEW = "/app/exports/schedules/new"


@pytest.fixture
def me(alice: User) -> Client:
    return browser_of(alice)


def filled(**changes: Any) -> dict[str, Any]:
    return {
        "name": "Yesterday", "dataset": "things", "keys": "JFK LGA", "cron": "30 2 * * *", "zone": "Europe/Berlin",
        "first": "-7", "last": "-1", "misfire": "catch_up", "format": "jsonl", "compression": "none",
        "delivery": "auto", "reuse": "on", "allow_degraded": "on", **changes,
    }  # fmt: skip


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.content
    return " ".join(response.content.decode().split())


def test_a_schedule_is_created_changed_and_shown(me: Client, dataset: Dataset) -> None:
    """A33."""
    assert "0 6 * * *" in text_of(me.get(NEW))
    created = me.post(NEW, filled())
    schedule = Schedule.objects.get()
    assert created["Location"] == reverse("schedule", args=[schedule.pk])
    assert schedule.request == {
        "dataset": "things", "keys": ["JFK", "LGA"], "format": "jsonl", "compression": "none", "delivery": "auto",
        "reuse": "if-present", "allowDegraded": True,
    }  # fmt: skip
    assert (schedule.window_from, schedule.window_to, schedule.misfire) == (-7, -1, "catch_up")

    page = text_of(me.get(created["Location"]))
    assert "30 2 * * *" in page
    assert "Europe/Berlin" in page
    assert schedule.next_run_at
    assert f"{schedule.next_run_at:%Y-%m-%d %H:%M} UTC" in page
    local = schedule.next_run_at.astimezone(ZoneInfo("Europe/Berlin"))  # 02:30, but 03:00 if the day has no 02:30
    assert f"{local:%Y-%m-%d %H:%M %Z}" in text_of(me.get(reverse("schedules")))

    edit = reverse("change-schedule", args=[schedule.pk])
    assert 'value="30 2 * * *"' in text_of(me.get(edit))
    me.post(edit, filled(cron="0 7 * * *", keys="JFK"))
    schedule.refresh_from_db()
    assert (schedule.cron, schedule.request["keys"]) == ("0 7 * * *", ["JFK"])


def test_the_form_keeps_values_that_it_cannot_show(me: Client, dataset: Dataset, alice: User) -> None:
    """A33: a lifetime that was set over the API, and keys that contain a separator."""
    Dataset.objects.filter(pk=dataset.pk).update(key_pattern="[A-Z ]{1,9}")
    request = {
        "dataset": "things", "keys": ["NEW YORK", "JFK"], "format": "jsonl", "compression": "gzip", "delivery": "zip",
        "reuse": "never", "allowDegraded": True, "deliveryTtlSeconds": 7200,
    }  # fmt: skip
    schedule = make_schedule(alice, dataset, request=request, window_from=-7)
    edit = reverse("change-schedule", args=[schedule.pk])
    form = text_of(me.get(edit))
    assert '<option value="7200" selected>2 h' in form
    same = filled(
        name="Other", keys="NEW YORK\r\nJFK", compression="gzip", delivery="zip", keep_for="7200",
    )  # fmt: skip
    del same["reuse"]
    assert me.post(edit, same).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.name, schedule.request) == ("Other", request)
    preview = text_of(me.post(f"{reverse('preview-schedule')}?schedule={schedule.pk}", same))
    assert preview.count("<li>") == 5, preview

    assert me.post(edit, {**same, "format": "parquet", "columns": "n, k"}).status_code == 302
    schedule.refresh_from_db()
    assert "compression" not in schedule.request
    assert schedule.request["columns"] == ["n", "k"]
    assert 'value="n,k"' in text_of(me.get(edit))


def test_the_preview_shows_five_runs_with_their_dates(me: Client, dataset: Dataset) -> None:
    """A33: errors are shown at their fields."""
    shown = text_of(me.post(reverse("preview-schedule"), filled(first="0", last="0")))
    assert shown.count("<li>") == 5
    in_two_days = (clock.now() + timedelta(days=2)).date().isoformat()
    assert f"exports {in_two_days}" in shown
    refused = text_of(me.post(reverse("preview-schedule"), filled(cron="61 * * * *", keys="JFK ../x")))
    assert "Times: Not a cron expression: bad minute." in refused
    assert "Keys: Key 2:" in refused
    assert 'id="id_cron_error"' in text_of(me.post(NEW, filled(cron="61 * * * *")))
    assert not Schedule.objects.exists()


def test_an_export_is_repeated(me: Client, dataset: Dataset, alice: User) -> None:
    """A33: the form has the export's keys, and as many days before each run."""
    job = make_job(dataset, alice, chunks=3)
    assert f"{NEW}?from={job.pk}" in text_of(me.get(reverse("export", args=[job.pk])))
    form = text_of(me.get(f"{NEW}?from={job.pk}"))
    assert 'name="first" value="-3"' in form
    assert "> JFK</textarea>" in form


def test_buttons_pause_resume_run_and_delete(me: Client, dataset: Dataset, alice: User) -> None:
    """A33."""
    schedule = make_schedule(alice, dataset)
    me.post(reverse("pause-schedule", args=[schedule.pk]))
    page = text_of(me.get(reverse("schedule", args=[schedule.pk])))
    assert "Paused by a user." in page
    me.post(reverse("resume-schedule", args=[schedule.pk]))
    schedule.refresh_from_db()
    assert schedule.enabled
    once = {"once": "0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"}
    for _ in range(2):
        ran = me.post(reverse("run-schedule", args=[schedule.pk]), once)
        assert ran["Location"] == reverse("export", args=[Job.objects.get().pk])
    job = text_of(me.get(ran["Location"]))
    assert "started manually" in job
    assert "Only one can be active at a time" in text_of(me.get(reverse("schedule", args=[schedule.pk])))
    listed = text_of(me.get(f"{reverse('exports')}?schedule={schedule.pk}"))
    assert "scheduled</a>" in listed
    me.post(reverse("delete-schedule", args=[schedule.pk]))
    assert not Schedule.objects.exists()


def test_pages_of_other_users_are_404(me: Client, dataset: Dataset, bob: User) -> None:
    """A33."""
    schedule = make_schedule(bob, dataset)
    for name in ("schedule", "change-schedule"):
        assert me.get(reverse(name, args=[schedule.pk])).status_code == 404
    for name in ("pause-schedule", "resume-schedule", "run-schedule", "delete-schedule"):
        assert me.post(reverse(name, args=[schedule.pk])).status_code == 404
    assert schedule.name not in text_of(me.get(reverse("schedules")))


def test_staff_see_all_schedules_and_run_them_for_their_owners(pages: Client, dataset: Dataset, alice: User) -> None:
    """A33."""
    schedule = make_schedule(alice, dataset)
    assert schedule.name in text_of(pages.get("/admin/exports/schedule/"))
    for action, enabled in (("pause", False), ("resume", True), ("run", True)):
        schedule.refresh_from_db()
        revision = "" if action == "run" else str(schedule.enabled)
        form = {"selection": f'[["{schedule.pk}", "{revision}"]]', "nonce": "n"}
        assert pages.post(f"/admin/exports/schedule/do/{action}/", form).status_code == 302
        schedule.refresh_from_db()
        assert schedule.enabled is enabled
    job = Job.objects.get()
    assert (job.user_id, job.schedule_id) == (alice.pk, schedule.pk)
    assert str(job.pk)[:8] in text_of(pages.get(f"/admin/exports/schedule/{schedule.pk}/change/"))
    assert str(job.pk)[:8] in text_of(pages.get(f"/admin/exports/job/?schedule={schedule.pk}"))
    actions.cancel(job)
