"""Links: binding to clients, the order of refusal reasons, and the record of attempts. A22, A23, A24, A27, A28."""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import Client
from rest_framework.test import APIClient

from exports.delivery import links, receipts
from exports.models import Dataset, Download, Job, Link, Receipt
from tests.conftest import change_settings
from tests.integration.factories import finish, make_job
from tests.integration.locks import waits_for_a_lock
from tests.integration.test_leases import in_threads
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

HOME: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7", "HTTP_USER_AGENT": "curl/8"}
AWAY: dict[str, Any] = {**HOME, "REMOTE_ADDR": "198.51.100.7"}
BROWSER: dict[str, Any] = {**HOME, "HTTP_USER_AGENT": "Mozilla/5.0"}
UNKNOWN_JOB = "00000000-0000-0000-0000-000000000000"
LONG_AGO = "2000-01-01T00:00Z"
PREFETCH: dict[str, Any] = {"HTTP_SEC_PURPOSE": "prefetch"}


def submit(api: APIClient, **client: Any) -> Job:
    body = {"dataset": "things", "items": [{"key": "JFK", "effectiveDate": "2024-02-29"}]}
    return Job.objects.get(pk=api.post("/exports", body, **client).json()["jobId"])


def link_created_by(api: APIClient, **client: Any) -> str:
    """Submit a job as this client, finish it, and return the path of its link."""
    job = submit(api, **client)
    finish(job)
    return links.path_of(Link.objects.get(receipt=job.pk))


def get(path: str, **client: Any) -> tuple[int, str]:
    return outcome(APIClient().get(path, **client))


def outcome(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["code"] if response.status_code == 403 else ""


def test_the_link_of_a_deactivated_user_is_refused(dataset: Dataset, alice: User, api: APIClient) -> None:
    """A22: it is refused immediately, and is not redeemed."""
    path = link_created_by(api, **HOME)
    User.objects.update(is_active=False)
    for method in (APIClient().get, APIClient().head):
        assert method(path, **HOME).status_code == 403
    assert APIClient().get(path, **HOME).json()["code"] == "link_revoked"
    assert Link.objects.get().used_at is None

    User.objects.update(is_active=True)
    assert get(path, **HOME) == REDIRECT


MISMATCH = (403, "link_mismatch")
REDIRECT = (302, "")


# ---- Bound to a client ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stranger", [AWAY, BROWSER, {**BROWSER, "REMOTE_ADDR": "2001:db8::1"},
                                      {"REMOTE_ADDR": HOME["REMOTE_ADDR"]}])  # fmt: skip
def test_a_link_is_bound_to_the_client_that_created_the_job(
    dataset: Dataset, api: APIClient, stranger: dict[str, Any]
) -> None:
    """A23: an attempt by another client does not redeem it."""
    path = link_created_by(api, **HOME)

    assert get(path, **stranger) == MISMATCH
    assert APIClient().head(path, **stranger).status_code == 403
    assert get(path, **stranger, **PREFETCH) == MISMATCH
    assert get(path, **HOME) == REDIRECT


@pytest.mark.parametrize(
    ("mode", "creator", "user", "fits"),
    [
        ("prefix", "192.0.2.7", "192.0.2.255", True),
        ("prefix", "192.0.2.7", "192.0.3.7", False),
        ("prefix", "2001:db8:0:1::7", "2001:db8:0:1:ffff::", True),
        ("prefix", "2001:db8:0:1::7", "2001:db8:0:2::7", False),
        ("prefix", "192.0.2.7", "::ffff:192.0.2.8", True),
        ("exact", "192.0.2.7", "192.0.2.7", True),
        ("exact", "192.0.2.7", "192.0.2.8", False),
        ("exact", "2001:db8::7", "2001:db8::8", False),
        ("off", "192.0.2.7", "203.0.113.1", True),
    ],
)
def test_the_compared_network_follows_the_setting(
    dataset: Dataset, api: APIClient, settings: LazySettings, *, mode: str, creator: str, user: str, fits: bool
) -> None:
    """A23."""
    change_settings(settings, export_bind_ip=mode)
    path = link_created_by(api, REMOTE_ADDR=creator)
    assert get(path, REMOTE_ADDR=user) == (REDIRECT if fits else MISMATCH)


def test_the_binding_to_the_user_agent_can_be_disabled(
    dataset: Dataset, api: APIClient, settings: LazySettings
) -> None:
    """A23."""
    change_settings(settings, export_bind_ua=False)
    path = link_created_by(api, **HOME)
    assert get(path, **AWAY) == MISMATCH
    assert get(path, **BROWSER) == REDIRECT


def test_it_stores_a_network_and_a_digest_or_nothing(dataset: Dataset, api: APIClient, settings: LazySettings) -> None:
    digest = hashlib.sha256(b"curl/8").hexdigest()[:16]
    job = submit(api, **HOME)
    assert (job.network, job.agent) == ("192.0.2.0/24", digest)
    finish(job)
    link = Link.objects.get()
    assert (link.network, link.agent) == ("192.0.2.0/24", digest)

    change_settings(settings, export_bind_ip="off", export_bind_ua=False)
    job = submit(api, **HOME)
    assert (job.network, job.agent) == ("", "")


def test_the_whole_user_agent_is_compared(dataset: Dataset, api: APIClient) -> None:
    """Only the first 200 characters are recorded, but the binding compares all of them."""
    agents = ["x" * 250 + end for end in "ab"]
    path = link_created_by(api, HTTP_USER_AGENT=agents[0])
    assert get(path, HTTP_USER_AGENT=agents[1]) == MISMATCH
    assert get(path, HTTP_USER_AGENT=agents[0]) == REDIRECT
    assert {len(each.user_agent) for each in Download.objects.all()} == {200}


@pytest.mark.parametrize(
    ("disabled", "client"), [({"export_bind_ip": "off"}, AWAY), ({"export_bind_ua": False}, BROWSER)]
)
def test_a_disabled_binding_is_not_checked_for_existing_links(
    dataset: Dataset, api: APIClient, settings: LazySettings, disabled: dict[str, Any], client: dict[str, Any]
) -> None:
    """A23."""
    path = link_created_by(api, **HOME)
    assert get(path, **client) == MISMATCH
    change_settings(settings, **disabled)
    assert APIClient().head(path, **client).status_code == 200
    assert get(path, **client) == REDIRECT


@pytest.mark.parametrize(("before", "after"), [("prefix", "exact"), ("exact", "prefix")])
def test_a_running_job_keeps_its_binding_after_a_change_of_the_setting(
    dataset: Dataset, api: APIClient, settings: LazySettings, before: str, after: str
) -> None:
    change_settings(settings, export_bind_ip=before)
    job = submit(api, **HOME)
    change_settings(settings, export_bind_ip=after)
    finish(job)
    path = links.path_of(Link.objects.get())
    assert get(path, **AWAY) == MISMATCH
    assert get(path, **HOME) == REDIRECT


def test_forwarded_addresses_count_only_from_trusted_proxies(
    dataset: Dataset, api: APIClient, settings: LazySettings
) -> None:
    """A23."""
    change_settings(settings, trusted_proxy_cidrs=[ip_network("10.0.0.0/8")])
    proxy = {"REMOTE_ADDR": "10.0.0.1"}
    path = link_created_by(api, **proxy, HTTP_X_FORWARDED_FOR="192.0.2.7")

    assert get(path, **proxy, HTTP_X_FORWARDED_FOR="198.51.100.1") == MISMATCH
    assert get(path, **proxy, HTTP_X_FORWARDED_FOR="192.0.2.7, 198.51.100.1") == MISMATCH
    assert get(path, **AWAY, HTTP_X_FORWARDED_FOR="192.0.2.7") == MISMATCH
    assert get(path, **proxy, HTTP_X_FORWARDED_FOR="192.0.2.7, 10.0.0.2") == REDIRECT


def test_an_unknown_address_creates_no_binding_and_matches_none(
    dataset: Dataset, api: APIClient, settings: LazySettings
) -> None:
    change_settings(settings, trusted_proxy_cidrs=[ip_network("10.0.0.0/8")])
    garbled = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "unknown"}
    assert get(link_created_by(api, **garbled), REMOTE_ADDR="198.51.100.7") == REDIRECT
    assert get(link_created_by(api, REMOTE_ADDR="192.0.2.7"), **garbled) == MISMATCH


def test_a_job_without_a_client_has_unbound_links(dataset: Dataset, alice: User) -> None:
    """Jobs that were created by an earlier release, or without a request, have no client."""
    finish(make_job(dataset, alice, 1))
    assert get(links.path_of(Link.objects.get()), **AWAY) == REDIRECT


def test_a_new_link_is_bound_to_the_client_that_requested_it(dataset: Dataset, api: APIClient) -> None:
    """A23, A24."""
    path = link_created_by(api, **HOME)
    job_id = path.split("/")[2]
    fresh = api.post(f"/exports/{job_id}/link", **AWAY).json()["signedUrl"]

    assert get(path, **HOME) == (403, "link_revoked")
    assert get(fresh, **HOME) == MISMATCH
    assert get(fresh, **AWAY) == REDIRECT


def test_a_link_is_redeemed_once_and_only_by_its_client(dataset: Dataset, api: APIClient) -> None:
    """A22, A23."""
    path = link_created_by(api, **HOME)
    outcomes = in_threads(20, lambda n: get(path, **(HOME if n % 2 else AWAY)))
    assert sorted(outcomes) == [REDIRECT] + [MISMATCH] * 10 + [(403, "link_used")] * 9


# ---- Order of refusals ----------------------------------------------------------------------------------------------

STEPS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"expires_at": LONG_AGO, "revoked_at": LONG_AGO, "used_at": LONG_AGO}, AWAY, "link_expired"),
    ({"revoked_at": LONG_AGO, "used_at": LONG_AGO}, AWAY, "link_revoked"),
    ({"used_at": LONG_AGO}, AWAY, "link_mismatch"),
    ({"used_at": LONG_AGO}, HOME, "link_used"),
]


@pytest.mark.parametrize(("state", "client", "code"), STEPS)
def test_refusals_have_the_first_documented_reason(
    dataset: Dataset, api: APIClient, state: dict[str, Any], client: dict[str, Any], code: str
) -> None:
    """A22: this includes prefetches and HEAD requests. A response to HEAD has no body, but its reason is recorded."""
    path = link_created_by(api, **HOME)
    Link.objects.update(**state)

    assert get(path, **client) == (403, code)
    assert get(path, **client, **PREFETCH) == (403, code)
    assert APIClient().head(path, **client).status_code == 403
    assert [each.outcome for each in Download.objects.all()] == [code] * 3
    assert get(path + "x", **client) == (403, "link_invalid")


@pytest.mark.parametrize("late", [links.mint, receipts.revoke])
def test_a_request_that_waited_for_a_revocation_is_refused(
    dataset: Dataset, alice: User, late: Callable[[Receipt], object]
) -> None:
    """A24: the request starts before the receipt is revoked, and gets the receipt's lock afterward."""
    receipt = finish(make_job(dataset, alice, 1)).receipt

    def send_late() -> object:
        try:
            return late(Receipt.objects.get(pk=receipt.pk))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Receipt.objects.select_for_update().get(pk=receipt.pk)
            waiting = pool.submit(send_late)
            wait_until(lambda: waiting.done() or waits_for_a_lock())
            receipts.revoke(receipt)
        with pytest.raises(links.ReceiptExpired):
            waiting.result()
    assert Link.objects.get().revoked_at


def test_a_link_to_a_deleted_object_is_expired(dataset: Dataset, api: APIClient) -> None:
    path = link_created_by(api, **HOME)
    Receipt.objects.update(deleted_at=LONG_AGO)
    assert get(path, **HOME) == (403, "link_expired")
    assert APIClient().head(path, **HOME).status_code == 403


def test_every_refusal_code_is_documented(client: Client) -> None:
    operation = client.get("/api/schema").json()["paths"]["/exports/{jobId}/download"]["get"]
    refusal = operation["responses"]["403"]
    codes = refusal["content"]["application/problem+json"]["x-codes"]
    assert codes == ["link_invalid", "link_expired", "link_revoked", "link_mismatch", "link_used"]
    assert all(f"`{code}`: " in refusal["description"] for code in codes)
    assert operation["responses"]["429"]


# ---- HEAD requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [PREFETCH, {"HTTP_PURPOSE": "prefetch"}, {"HTTP_SEC_PURPOSE": "other", "HTTP_PURPOSE": "Prefetch"}]
)
def test_prefetches_and_head_requests_of_a_valid_link_record_nothing(
    dataset: Dataset, api: APIClient, header: dict[str, Any]
) -> None:
    """A22."""
    path = link_created_by(api, **HOME)
    for _ in range(2):
        assert get(path, **HOME, **header) == (204, "")
        head = APIClient().head(path, **HOME)
        assert (head.status_code, head["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert not Download.objects.exists()
    assert Link.objects.get().used_at is None
    assert get(path, **HOME) == REDIRECT


# ---- Audit and metrics ----------------------------------------------------------------------------------------------


def counts(client: Client) -> dict[str, float]:
    text = client.get("/metrics", REMOTE_ADDR="127.0.0.1").content.decode()
    found = re.findall(r"^(export_(?:downloads|signed_download_403)_total\S*) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def increases(client: Client, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in counts(client).items() if value != before.get(name, 0)}


def metric_of(code: str) -> str:
    return f'export_downloads_total{{outcome="{code}"}}'


def test_every_attempt_is_recorded_and_counted(dataset: Dataset, api: APIClient, client: Client) -> None:
    """A22, A27, A28: each attempt has a row, with the link if the token is valid."""
    path = link_created_by(api, **HOME)
    before = counts(client)
    get(path, **AWAY)
    get(path + "x", **HOME)
    get(path, **HOME)
    get(path, **HOME)
    APIClient().head(path, **HOME)

    link = Link.objects.get()
    attempts = list(Download.objects.order_by("id").values_list("outcome", "link", "address", "user_agent"))
    assert attempts == [
        ("link_mismatch", link.pk, "198.51.100.7", "curl/8"),
        ("link_invalid", None, "192.0.2.7", "curl/8"),
        ("redeemed", link.pk, "192.0.2.7", "curl/8"),
        ("link_used", link.pk, "192.0.2.7", "curl/8"),
        ("link_used", link.pk, "192.0.2.7", "curl/8"),
    ]
    assert increases(client, before) == {
        metric_of("link_mismatch"): 1, metric_of("link_invalid"): 1, metric_of("redeemed"): 1,
        metric_of("link_used"): 2, "export_signed_download_403_total": 4,
    }  # fmt: skip


def test_attempts_are_recorded_for_jobs_without_a_receipt(dataset: Dataset, api: APIClient) -> None:
    """A28."""
    other = link_created_by(api, **HOME)
    job = submit(api, **HOME)
    assert get(f"/exports/{job.pk}/download?token={other.partition('=')[2]}", **HOME) == (403, "link_invalid")
    attempt = Download.objects.get()
    assert (attempt.job_id, attempt.link, attempt.outcome) == (job.pk, None, "link_invalid")


def test_attempts_for_unknown_jobs_are_only_counted(dataset: Dataset, client: Client) -> None:
    """A row would have to reference the job."""
    before = counts(client)
    assert get(f"/exports/{UNKNOWN_JOB}/download?token={links.signer.sign(UUID(UNKNOWN_JOB).hex)}") == (
        403,
        "link_invalid",
    )
    assert not Download.objects.exists()
    assert increases(client, before) == {metric_of("link_invalid"): 1, "export_signed_download_403_total": 1}
