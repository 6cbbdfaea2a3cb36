"""B1, B12: documents that are uploaded with a presigned PUT before they are submitted, with real object storage."""

import urllib.error
import urllib.request
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.utils import timezone
from pydantic import AnyHttpUrl
from rest_framework.test import APIClient

from config.platform import storage
from etl.models import Task
from tests.conftest import change_settings, client_of
from tests.integration.test_etl_submission import PDF, RTF, SUBMIT, TEXT, documents

pytestmark = pytest.mark.usefixtures("default_rule")

UPLOADS = "/api/v1/etl/uploads"


def request_upload(
    api: APIClient, content: bytes = TEXT, name: str = "invoice.txt", content_type: str = "text/plain"
) -> Any:
    response = api.post(UPLOADS, {"filename": name, "content_type": content_type, "size": len(content)})
    assert response.status_code == 201, response.content
    return response.json()


def put(upload: Any, content: bytes, **changes: str) -> int:
    """PUT the bytes as a client would, and return the status."""
    request = urllib.request.Request(  # noqa: S310
        upload["upload_url"], data=content, method=upload["method"], headers=upload["headers"] | changes
    )
    try:
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def uploaded(api: APIClient, content: bytes = TEXT, **changes: str) -> str:
    upload = request_upload(api, content, **changes)
    assert put(upload, content) == 200
    return str(upload["file_key"])


def submit(api: APIClient, file_key: str, **fields: Any) -> Any:
    return api.post(SUBMIT, {"file_key": file_key, **fields})


def assert_refused(response: Any, status: int, code: str) -> Any:
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code)
    assert not Task.objects.exists()
    assert not documents()
    return body


# ---- The upload URL -------------------------------------------------------------------------------------------------


def test_a_presigned_upload_can_be_submitted(api: APIClient, alice: User) -> None:
    """B1."""
    upload = request_upload(api, PDF, "Übersicht 2025.pdf", "application/pdf")
    assert upload["file_key"].startswith(f"etl/uploads/{alice.pk}/")
    left = datetime.fromisoformat(upload["expires_at"]) - timezone.now()
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    assert put(upload, PDF) == 200

    response = submit(api, upload["file_key"])
    assert response.status_code == 202
    task = Task.objects.get()
    assert (task.filename, task.kind, task.size) == ("Übersicht 2025.pdf", "pdf", len(PDF))
    assert b"".join(storage.read(task.document_key)) == PDF


@pytest.mark.parametrize(
    ("content", "changes"),
    [
        (TEXT + b"x", {}),
        (TEXT[:-1], {}),
        (b"", {}),
        (TEXT, {"Content-Type": "text/html"}),
        (TEXT, {"x-amz-meta-filename": "b3RoZXI="}),
    ],
)
def test_the_url_accepts_only_the_declared_upload(api: APIClient, content: bytes, changes: dict[str, str]) -> None:
    """B12: the signature covers the length, type, and name."""
    upload = request_upload(api)
    assert put(upload, content, **changes) == 403
    assert storage.head(upload["file_key"]) is None
    assert put({**upload, "upload_url": upload["upload_url"].replace("/uploads/", "/documents/")}, TEXT) == 403


def test_the_url_has_the_public_address(api: APIClient, settings: LazySettings) -> None:
    change_settings(settings, s3_public_endpoint_url=AnyHttpUrl("https://files.example"))
    url = urlsplit(request_upload(api)["upload_url"])
    assert (url.scheme, url.netloc) == ("https", "files.example")
    assert "content-length" in parse_qs(url.query)["X-Amz-SignedHeaders"][0].split(";")


def test_a_long_name_in_any_alphabet_is_shortened(api: APIClient) -> None:
    """The name is sent in a header, which can have at most 2 KiB."""
    file_key = uploaded(api, name="../" + "報" * 600 + ".txt")
    assert submit(api, file_key).status_code == 202
    assert Task.objects.get().filename == "報" * 251 + ".txt"


def test_an_upload_without_a_name_gets_a_default(api: APIClient) -> None:
    assert submit(api, uploaded(api, name="")).status_code == 202
    assert Task.objects.get().filename == "document.txt"


@pytest.mark.parametrize(
    ("changes", "status", "code", "pointers"),
    [
        ({"size": 0}, 400, "empty_document", ["/size"]),
        ({"size": -1}, 400, "invalid", ["/size"]),
        ({"size": "5"}, 400, "invalid", ["/size"]),
        ({"size": 2**70}, 400, "invalid", ["/size"]),
        ({"size": 50 * 1024**2 + 1}, 413, "file_too_large", None),
        ({"content_type": "application/zip"}, 415, "unsupported_format", None),
        ({"content_type": "application/msword"}, 415, "unsupported_format", None),
        ({"content_type": "text/plain\r\nX-Evil: 1"}, 400, "invalid", ["/content_type"]),
        ({"content_type": "plain"}, 400, "invalid", ["/content_type"]),
        ({"content_type": ""}, 400, "invalid", ["/content_type"]),
        ({"filename": 5, "more": 1}, 400, "invalid", ["/filename", "/more"]),
        ({"filename": None}, 400, "invalid", ["/filename"]),
        ({"filename": "x" * 1001}, 400, "invalid", ["/filename"]),
    ],
)
def test_invalid_declarations_are_refused(
    api: APIClient, changes: dict[str, Any], status: int, code: str, pointers: list[str] | None
) -> None:
    """B12."""
    body = {"filename": "a.txt", "content_type": "text/plain", "size": 5} | changes
    response = api.post(UPLOADS, body)
    problem = response.json()

    assert (response.status_code, problem["code"]) == (status, code)
    assert pointers is None or [error["pointer"] for error in problem["errors"]] == pointers


@pytest.mark.parametrize(
    "content_type", ["application/octet-stream", "text/plain; charset=utf-8", "image/jpg", "Application/PDF"]
)
def test_common_spellings_of_types_are_accepted(api: APIClient, content_type: str) -> None:
    assert uploaded(api, content_type=content_type)


def test_an_upload_url_requires_authentication() -> None:
    assert APIClient().post(UPLOADS, {}).status_code == 401


# ---- Submission -----------------------------------------------------------------------------------------------------


def test_a_later_upload_does_not_change_the_task(api: APIClient) -> None:
    """B12: the upload URL is still valid after the submission."""
    upload = request_upload(api, b"the first bytes")
    assert put(upload, b"the first bytes") == 200
    assert submit(api, upload["file_key"]).status_code == 202
    assert put(upload, b"the other bytes") == 200

    assert b"".join(storage.read(Task.objects.get().document_key)) == b"the first bytes"


def test_an_upload_of_another_user_looks_like_a_missing_one(api: APIClient, alice: User, bob: User) -> None:
    """B12."""
    theirs = uploaded(client_of(bob))
    storage.put(f"etl/uploads/{alice.pk}/notes", TEXT, content_type="text/plain")
    storage.put("exports/secret", TEXT, content_type="text/plain")
    texts = set()
    for file_key in (
        theirs,
        f"etl/uploads/{alice.pk}/{uuid4()}",
        f"etl/uploads/{alice.pk}/notes",
        f"etl/uploads/{alice.pk}/../{theirs.removeprefix('etl/uploads/')}",
        f"/{theirs}",
        "exports/secret",
        "x",
    ):
        body = assert_refused(submit(api, file_key), 400, "invalid")
        texts.add(str(body["errors"]))
    assert len(texts) == 1
    assert body["errors"][0]["pointer"] == "/file_key"
    assert submit(client_of(bob), theirs).status_code == 202


def test_staff_submit_only_their_own(api: APIClient, staff: User) -> None:
    assert_refused(submit(client_of(staff), uploaded(api)), 400, "invalid")


def test_an_unused_upload_url_is_refused(api: APIClient) -> None:
    assert_refused(submit(api, request_upload(api)["file_key"]), 400, "invalid")


def test_the_content_is_checked_despite_the_declared_type(api: APIClient, settings: LazySettings) -> None:
    """B12."""
    body = assert_refused(submit(api, uploaded(api, RTF, content_type="application/pdf")), 415, "unsupported_format")
    assert "MinerU" in body["detail"]
    large = uploaded(api, b"x" * 2000)
    change_settings(settings, etl_max_file_bytes=1000)
    assert_refused(submit(api, large), 413, "file_too_large")


def test_an_empty_object_is_refused(api: APIClient, alice: User) -> None:
    """B12: such an object could only be written without the presigned URL."""
    key = f"etl/uploads/{alice.pk}/{uuid4()}"
    storage.put(key, b"", content_type="text/plain")
    body = assert_refused(submit(api, key), 400, "empty_document")
    assert body["errors"][0]["pointer"] == "/file_key"


def test_a_repeated_request_gets_the_first_response_after_the_upload_was_deleted(api: APIClient) -> None:
    """B1."""
    file_key = uploaded(api)
    headers = {"Idempotency-Key": "k1"}
    first = api.post(SUBMIT, {"file_key": file_key}, headers=headers)
    storage.delete(file_key)
    again = api.post(SUBMIT, {"file_key": file_key, "rule_id": None}, headers=headers)

    assert (first.status_code, again.content) == (202, first.content)
    other = api.post(SUBMIT, {"file_key": uploaded(api)}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_an_upload_can_be_submitted_more_than_once(api: APIClient) -> None:
    file_key = uploaded(api)
    assert [submit(api, file_key).status_code for _ in range(2)] == [202, 202]
    assert len(set(Task.objects.values_list("document_key", flat=True))) == 2
