"""Tests that log lines have no private data, and error responses no credentials.

`tests/e2e/test_logs.py` checks the logs of all processes after exports. This module covers documents, rules, pages, and
accounts, and the bodies of error responses. All private data contains the word "pearl".
"""

from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from knox.models import AuthToken
from rest_framework.test import APIClient

from config.platform import storage
from etl.models import Task
from exports.models import Webhook
from tests.conftest import browser_of
from tests.integration.conftest import configure_stages  # noqa: F401 - a fixture
from tests.integration.stage_runs import ConfigureStages, run
from tests.security.conftest import RULE_VALUES
from tests.unit.test_logs import _restore_logging, configure  # noqa: F401 - a fixture

PASSWORD = "pearl-pearl, 1"
PEARLS: dict[str, Any] = RULE_VALUES | {
    "name": "pearl rule",
    "system_prompt": "Find the pearl.",
    "description": "pearl",
    "postprocess_strategy": None,
    "require_complete": False,
}


@pytest.fixture
def log(_restore_logging: None) -> StringIO:  # noqa: F811
    return configure(level="DEBUG", style="json")


def secrets_of(url: str) -> set[str]:
    return {value for several in parse_qs(urlsplit(url).query).values() for value in several if len(value) > 20}


def sign_in(browser: Client) -> set[str]:
    browser.post("/app/sign-in", {"username": "pearl-name", "password": PASSWORD})
    browser.post("/app/sign-in", {"username": "carol", "password": "pearl-wrong"})
    assert browser.post("/app/sign-in", {"username": "carol", "password": PASSWORD}).status_code == 302
    page = browser.post("/app/account", {"name": "mine", "days": "7", "once": uuid4()}).content.decode()
    token = page.partition("slc_")[2].partition("<")[0].split()[0].strip('"')
    assert len(token) > 40
    new = "pearl-another, 2"
    browser.post("/app/account/password", {"old_password": "pearl", "new_password1": new, "new_password2": new})
    browser.post("/app/account/password", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    return {token[:40], browser.cookies["sessionid"].value, browser.cookies["csrftoken"].value}


def make_webhooks(browser: Client) -> set[str]:
    for url in ("http://127.0.0.1:9/pearl?pearl=pearl", "http://pearl:pearl@127.0.0.1:9/", "http://10.0.0.1/pearl"):
        browser.post("/app/webhooks", {"url": url, "events": ["export.succeeded"]})
    hook = Webhook.objects.get()
    browser.post(f"/app/webhooks/{hook.pk}/secret")
    browser.post(f"/app/webhooks/{hook.pk}/test")
    return {hook.secret.removeprefix("whsec_"), Webhook.objects.get().secret.removeprefix("whsec_")}


def submit_documents(api: APIClient) -> set[str]:
    rule = api.post("/api/v1/etl/rules", PEARLS).json()
    api.patch(f"/api/v1/etl/rules/{rule['rule_id']}", {"json_schema": {"type": "pearl"}})
    place = api.post("/api/v1/etl/uploads", {"filename": "pearl.txt", "content_type": "text/plain", "size": 10}).json()
    for content, name in ((b"A pearl.", "pearl.txt"), (b"MZ pearl", "pearl.exe"), (b"", "empty-pearl.txt")):
        body = {"file": SimpleUploadedFile(name, content), "rule_id": rule["rule_id"]}
        api.post("/api/v1/etl/submit", body, format="multipart", headers={"Idempotency-Key": f"pearl-{name}"})
    for bad in ({"file_key": "pearl"}, {"pearl": "pearl"}, {"rule_id": "pearl"}, {"file_key": place["file_key"]}):
        api.post("/api/v1/etl/submit", bad)
    return secrets_of(place["upload_url"]) | {place["file_key"]}


def test_logs_contain_no_private_data(
    log: StringIO,
    configure_stages: ConfigureStages,  # noqa: F811
    alice: User,
    api: APIClient,
) -> None:
    User.objects.create_user("carol", password=PASSWORD)
    browser = Client()
    secrets = sign_in(browser) | make_webhooks(browser) | submit_documents(api)
    task = Task.objects.earliest("task_id")
    run(task)
    secrets |= {task.document_key}
    for path in ("", "/markdown", "/events"):
        api.get(f"/api/v1/etl/tasks/{task.pk}{path}").close()
    mine = browser_of(alice)
    response = mine.get(f"/app/documents/{task.pk}/original")
    secrets |= secrets_of(response["Location"])
    for path in ("/app/documents?pearl=pearl", f"/app/documents/{task.pk}/branch?node=/pearl", "/app/pearl"):
        mine.get(path)
    logged = log.getvalue()
    assert logged.count("\n") > 20
    assert "request_finished" in logged
    for line in logged.splitlines():
        assert "pearl" not in line.lower(), line
        for secret in secrets:
            assert secret not in line, f"{secret}: {line}"


# ---- Refusals -------------------------------------------------------------------------------------------------------
def test_error_responses_do_not_repeat_credentials(
    objects_of_alice: dict[str, Any], api: APIClient, alice: User
) -> None:
    """Users copy error responses to tickets, logs, and screenshots."""
    row, token = AuthToken.objects.create(alice)
    row.delete()
    link = api.post(f"/exports/{objects_of_alice['job_id']}/link").json()["signedUrl"]
    opening = secrets_of(link).pop()
    responses: list[tuple[str, Any]] = [
        (token, APIClient().get("/exports", headers={"Authorization": f"Bearer {token}"})),
        (opening, APIClient().get(link, headers={"User-Agent": "another"})),
        (PASSWORD, Client().post("/app/sign-in", {"username": "alice", "password": PASSWORD})),
        (PASSWORD, browser_of(alice).post("/app/account/password", {"old_password": PASSWORD, "new_password1": "x"})),
    ]
    for secret, response in responses:
        assert response.status_code in (200, 401, 403), response.wsgi_request.path  # 200: a form with its errors
        assert secret not in response.content.decode(), response.wsgi_request.path
        assert secret not in str(response.headers), response.wsgi_request.path


def test_a_missing_file_is_reported_without_its_path(
    objects_of_alice: dict[str, Any], api: APIClient, settings: LazySettings
) -> None:
    chunk = api.get(f"/exports/{objects_of_alice['job_id']}/chunks").json()["results"][0]
    env = settings.SLUICE
    for folder in ("things/", "_receipts/"):
        storage.delete_many([item.key for item in storage.list_objects(folder)])
    response = api.get(f"/exports/{objects_of_alice['job_id']}/files/{chunk['key']}/{chunk['effectiveDate']}")
    assert response.status_code in (404, 410)
    for secret in (env.s3_access_key_id.get_secret_value(), str(env.s3_endpoint_url), "things/"):
        assert secret not in response.content.decode()
