"""Tests of the protection against path traversal, header injection, and open redirects."""

from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from etl.models import Task
from exports.delivery import links
from exports.models import Dataset, Job, Link, Receipt
from rules.loading import parsing
from tests.conftest import browser_of
from tests.integration.factories import make_job
from tests.integration.staff import page_of

PASSWORD = "only for tests, 1"
TRAVERSALS = ["..", "../x", "a/../b", "/etc/passwd", "a\\b", "..\\x", "a..b", "a\x00b", "a\nb", "\x7f", "x" * 201]
EVIL = 'a"\r\nSet-Cookie: pearl=1\r\n\r\n<script>;/../\\é\u202e'
ELSEWHERE = [
    "https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "///evil.example",
    "https:evil.example", "javascript:alert(1)", "//[evil.example", "http://testserver@evil.example/",
    "\t//evil.example", "https://testserver.evil.example",
]  # fmt: skip


# ---- Folders --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", TRAVERSALS)
def test_object_keys_stay_in_their_folder_for_any_key_pattern(dataset: Dataset, api: APIClient, key: str) -> None:
    Dataset.objects.update(key_pattern="(?s).+")
    body: dict[str, Any] = {"dataset": "things", "items": [{"key": key, "effectiveDate": "2024-02-29"}]}
    assert api.post("/exports", body).status_code == 400
    filters = {"keys": [key], "dateFrom": "2024-02-29", "dateTo": "2024-02-29"}
    assert api.post("/exports", {"dataset": "things", "filters": filters}).status_code == 400
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["..%2f..%2fx", "%2e%2e", "JFK%00", "..", "%5c..%5c"])
def test_file_routes_find_only_files_of_their_job(
    objects_of_alice: dict[str, Any], alice: User, api: APIClient, key: str
) -> None:
    for prefix, browser in (("/exports", api), ("/app/exports", browser_of(alice))):
        assert browser.get(f"{prefix}/{objects_of_alice['job_id']}/files/{key}/2024-02-28").status_code == 404


@pytest.mark.django_db  # Django closes old database connections at the end of a request
@pytest.mark.parametrize(
    "path", ["../manage.py", "..%2fmanage.py", "%2e%2e/%2e%2e/etc/passwd", "config/../../manage.py"]
)
def test_static_files_stay_in_their_folder(client: Client, path: str) -> None:
    for prefix in ("/static/", "/static/config/"):
        assert client.get(prefix + path).status_code == 404
    with closing(client.get("/static/config/page.js")) as target:
        assert target.status_code == 200


def test_rule_files_stay_in_their_folder_and_reveal_no_other_file(tmp_path: Path) -> None:
    """Operators may use symbolic links to other folders. The content of a target that is not a rule is not quoted."""
    folder, secret = tmp_path / "rules", tmp_path / "secret.yaml"
    folder.mkdir()
    (folder / "inner").mkdir()
    (folder / "inner" / "x.yaml").write_text("name: inner")
    secret.write_text("password: pearl-pearl")
    (folder / "linked.yaml").symlink_to(secret)
    (folder / "..yaml").write_text("name: hidden")
    read = parsing.read(folder)
    assert read is not None
    assert read.slugs == {"linked"}
    assert read.rules == {}
    assert "pearl-pearl" not in " ".join(map(str, read.errors))


# ---- Headers --------------------------------------------------------------------------------------------------------
def test_download_names_cannot_inject_headers(dataset: Dataset, delivered: Receipt) -> None:
    Receipt.objects.update(file_name=EVIL)
    response = APIClient().head(links.path_of(Link.objects.get()))
    assert response.status_code == 200
    assert "pearl" not in response.cookies
    header = response["Content-Disposition"]
    assert header.isascii()
    assert header.isprintable()
    assert header.startswith('attachment; filename="')
    assert header.count('"') == 2
    assert "/" not in header


def test_document_names_cannot_inject_headers_of_results(objects_of_alice: dict[str, Any], alice: User) -> None:
    Task.objects.update(filename=EVIL)
    for part in ("markdown", "json", "original"):
        response = browser_of(alice).get(f"/app/documents/{objects_of_alice['task_id']}/{part}")
        header = response["Location"] if part == "original" else response["Content-Disposition"]
        assert header.isascii()
        assert header.isprintable(), part
        assert "pearl" not in response.cookies
        if response.streaming:
            assert list(response)


# ---- Other sites ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ELSEWHERE)
def test_sign_in_redirects_only_within_the_site(transactional_db: None, target: str) -> None:
    User.objects.create_user("carol", password=PASSWORD, is_staff=True)
    path, words = "/app/sign-in", {"username": "carol", "password": PASSWORD}
    responses = (Client().post(path, words | {"next": target}), Client().post(f"{path}?next={quote(target)}", words))
    for response in responses:
        assert response.status_code == 302
        assert response["Location"] == "/app/exports"
    known = browser_of(User.objects.get()).get(f"{path}?next={quote(target)}")
    assert known.headers.get("Location", "/app/exports") == "/app/exports"
    assert Client().get(f"/admin/login/?next={quote(target)}")["Location"].startswith("/app/sign-in?")


@pytest.mark.parametrize("target", ELSEWHERE)
def test_sign_out_and_admin_actions_redirect_only_within_the_site(
    pages: Client, dataset: Dataset, alice: User, target: str
) -> None:
    job = make_job(dataset, alice)
    form = {"selection": f'[["{job.pk}", ""]]', "nonce": "x", "back": target}
    done = pages.post("/admin/exports/job/do/cancel/", form)
    assert done["Location"] == "/admin/exports/job/"
    assert pages.get(page_of(job)).status_code == 200
    left = pages.post("/app/sign-out", {"next": target})
    assert (left.status_code, left["Location"]) == (302, "/")


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/..", "/app//evil.example", "/\\evil.example"])
def test_no_path_redirects_to_another_site(client: Client, transactional_db: None, path: str) -> None:
    """Django's APPEND_SLASH could redirect to `//evil.example`."""
    response = client.get("/", PATH_INFO=path)
    assert not response.headers.get("Location", "").startswith(("//", "/\\", "http"))


def test_links_ignore_the_host_header(objects_of_alice: dict[str, Any], api: APIClient, settings: LazySettings) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    for headers in ({"Host": "evil.example"}, {"X-Forwarded-Host": "evil.example"}, {"Forwarded": "host=evil.example"}):
        response = api.post(f"/exports/{objects_of_alice['job_id']}/link", headers=headers)
        assert "evil" not in response.content.decode()
        assert response.status_code == (400 if "Host" in headers else 200)
