"""Who may read the numbers, and whose they are."""

import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client

from config import metrics

COUNT = """
import sys
from prometheus_client import Counter
Counter("sluice_test_events", "Events.").inc(int(sys.argv[1]))
"""


def test_it_answers_loopback_without_a_user(client: Client) -> None:
    response = client.get("/metrics", REMOTE_ADDR="127.0.0.1", headers={"Accept": "application/openmetrics-text"})

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert b"django_http_requests_total_by_method_total" in response.content


def test_it_refuses_other_addresses_with_a_problem(client: Client) -> None:
    response = client.get("/metrics", REMOTE_ADDR="192.0.2.1", headers={"X-Forwarded-For": "127.0.0.1"})

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


def test_it_believes_trusted_proxies(client: Client, settings: LazySettings) -> None:
    trusted = {"trusted_proxy_cidrs": [ip_network("127.0.0.1/32")]}
    settings.SLUICE = settings.SLUICE.model_copy(update=trusted)

    assert client.get("/metrics", headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 403


@pytest.mark.django_db
@pytest.mark.parametrize(("is_staff", "status"), [(True, 200), (False, 403)])
def test_it_answers_staff_anywhere(client: Client, *, is_staff: bool, status: int) -> None:
    client.force_login(User.objects.create_user("ada", is_staff=is_staff))

    assert client.get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == status


def test_it_sums_over_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for amount in ("2", "3"):
        subprocess.run([sys.executable, "-c", COUNT, amount], check=True)

    assert b"sluice_test_events_total 5.0" in metrics.exposition()
