"""Lifetimes of deliveries and of their links. A29."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db.models.functions import Now
from rest_framework.test import APIClient

from exports.jobs import webhook_events
from exports.maintenance import periodic, storage_cleanup
from exports.models import Dataset, Job, Link, Receipt
from tests.conftest import change_settings
from tests.integration.factories import make_job
from tests.integration.test_completion import fetched, finish
from tests.integration.test_execution import CONTENT

pytestmark = pytest.mark.usefixtures("empty_bucket")

DAY = timedelta(days=1)
BODY = {"items": [{"key": "JFK", "effectiveDate": "2024-02-28"}]}


def submit(api: APIClient, dataset: Dataset, **more: Any) -> Job:
    response = api.post("/exports", {**BODY, "dataset": dataset.name, **more}, format="json")
    assert response.status_code == 202, response.json()
    return Job.objects.get(pk=response.json()["jobId"])


def receipt_of(api: APIClient, job: Job) -> dict[str, Any]:
    receipt: dict[str, Any] = api.get(f"/exports/{job.pk}").json()["receipt"]
    return receipt


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_delivery_outlives_its_first_link(dataset: Dataset, api: APIClient) -> None:
    """A29."""
    receipt = finish(submit(api, dataset))

    shown = receipt_of(api, receipt.job)
    assert time_of(shown["deliveryExpiresAt"]) - receipt.issued_at == DAY
    assert (
        timedelta(0) <= time_of(shown["expiresAt"]) - receipt.issued_at - timedelta(minutes=10) < timedelta(seconds=5)
    )
    assert shown["state"] == "active"


def test_a_link_can_be_replaced_until_the_delivery_expires(dataset: Dataset, api: APIClient) -> None:
    """A29: each link works once, for ten minutes."""
    job = finish(submit(api, dataset)).job
    Link.objects.update(expires_at=Now() - timedelta(seconds=1))
    old = receipt_of(api, job)
    assert (old["state"], old["signedUrl"]) == ("link_expired", None)
    assert time_of(old["expiresAt"]) < time_of(old["deliveryExpiresAt"])

    for _ in range(3):
        link = api.post(f"/exports/{job.pk}/link").json()
        shown = receipt_of(api, job)
        assert (shown["state"], shown["signedUrl"], shown["expiresAt"]) == (
            "active", link["signedUrl"], link["expiresAt"],
        )  # fmt: skip
        answer = APIClient().get(link["signedUrl"])
        assert fetched(answer["Location"]) == CONTENT
        assert APIClient().get(link["signedUrl"]).json()["code"] == "link_used"
        assert receipt_of(api, job)["state"] == "redeemed"


def test_a_link_never_outlives_the_delivery(dataset: Dataset, api: APIClient) -> None:
    """A29."""
    job = finish(submit(api, dataset)).job
    Receipt.objects.update(expires_at=Now() + timedelta(seconds=90))
    link = api.post(f"/exports/{job.pk}/link").json()
    assert link["expiresAt"] == receipt_of(api, job)["deliveryExpiresAt"]

    Receipt.objects.update(expires_at=Now() - timedelta(minutes=1))
    refused = api.post(f"/exports/{job.pk}/link")
    assert (refused.status_code, refused.json()["code"]) == (410, "receipt_expired")
    assert "Export again" in refused.json()["detail"]
    shown = receipt_of(api, job)
    assert (shown["state"], shown["signedUrl"]) == ("expired", None)


@pytest.mark.parametrize("seconds", [600, 604_800])
def test_a_request_can_set_the_lifetime(dataset: Dataset, api: APIClient, seconds: int) -> None:
    """A29: a replay has the same lifetime."""
    receipt = finish(submit(api, dataset, deliveryTtlSeconds=seconds))
    assert receipt.expires_at - receipt.issued_at == timedelta(seconds=seconds)

    again = api.post(f"/exports/{receipt.pk}/replay").json()["jobId"]
    assert Job.objects.get(pk=again).ttl == seconds


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(599, "at least 600"), (0, ""), (-1, ""), (604_801, "604,800"), ("600", ""), (600.0, ""), (True, ""), (None, "")],
)
@pytest.mark.parametrize("path", ["/exports", "/exports/preview"])
def test_a_lifetime_out_of_bounds_is_refused(
    dataset: Dataset, api: APIClient, path: str, seconds: Any, reason: str
) -> None:
    """A29."""
    body = {**BODY, "dataset": dataset.name, "deliveryTtlSeconds": seconds}
    response = api.post(path, body, format="json")
    (error,) = response.json()["errors"]
    assert (response.status_code, error["pointer"]) == (400, "/deliveryTtlSeconds")
    assert reason in error["detail"].replace("greater than or equal to", "at least")
    assert not Job.objects.exists()


def test_the_operator_can_limit_lifetimes(dataset: Dataset, api: APIClient, settings: LazySettings) -> None:
    """A29: the limit also applies to the replay of an older export."""
    job = finish(submit(api, dataset, deliveryTtlSeconds=86_400)).job
    bounds = {"export_delivery_ttl_seconds": 1200, "export_delivery_ttl_max_seconds": 3600}
    change_settings(settings, **bounds)
    assert submit(api, dataset).ttl == 1200
    body = {**BODY, "dataset": dataset.name, "deliveryTtlSeconds": 3601}
    assert "3,600" in api.post("/exports", body, format="json").json()["errors"][0]["detail"]
    assert Job.objects.get(pk=api.post(f"/exports/{job.pk}/replay").json()["jobId"]).ttl == 3600


def test_a_job_is_kept_as_long_as_its_delivery(dataset: Dataset, api: APIClient) -> None:
    """A29."""
    job = finish(submit(api, dataset, deliveryTtlSeconds=604_800)).job
    webhook_events.fan_out()
    Job.objects.update(finished_at=Now() - timedelta(days=7, seconds=1))
    Receipt.objects.update(expires_at=Now() + timedelta(hours=1))
    storage_cleanup.delete_expired()
    periodic.purge()
    shown = api.get(f"/exports/{job.pk}").json()
    assert shown["purgeAt"] == shown["receipt"]["deliveryExpiresAt"]

    Receipt.objects.update(expires_at=Now() - timedelta(minutes=1))
    storage_cleanup.delete_expired()
    periodic.purge()
    assert not Job.objects.filter(pk=job.pk).exists()


def test_links_created_before_the_upgrade_keep_their_lifetime(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A29: in earlier releases, links expired together with the delivery."""
    job = make_job(dataset, alice, 1)
    Job.objects.update(ttl=600)
    receipt = finish(job)
    Link.objects.update(expires_at=receipt.expires_at)
    shown = receipt_of(api, job)
    assert shown["expiresAt"] == shown["deliveryExpiresAt"]
    assert receipt.expires_at - receipt.issued_at == timedelta(minutes=10)
