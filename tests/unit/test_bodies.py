"""Bodies at the door, through the real ASGI handler."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.conf import LazySettings
from django.core.asgi import get_asgi_application

from config.platform.http.body_limits import BoundedBody

pytestmark = pytest.mark.urls("tests.unit.failing_views")

ORDER = json.dumps({"items": [{"key": "JFK", "effectiveDate": "2013-02-15"}]}).encode()


@async_to_sync
async def post(*parts: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    headers = {"host": "testserver", "content_type": "application/json", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": raw}
    peer: Any = ApplicationCommunicator(BoundedBody(get_asgi_application()), scope)  # type: ignore[no-untyped-call]
    for number, part in enumerate(parts, start=1):
        await peer.send_input({"type": "http.request", "body": part, "more_body": number < len(parts)})
    start = await peer.receive_output(5)
    body = await peer.receive_output(5)
    await peer.wait(5)
    return start["status"], json.loads(body["body"])


@pytest.fixture(autouse=True)
def _bound(settings: LazySettings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100


def test_it_reads_bodies_of_unknown_length() -> None:
    assert post(ORDER[:10], ORDER[10:])[0] == 200


def test_it_reads_bodies_of_known_length() -> None:
    assert post(ORDER, content_length=str(len(ORDER)))[0] == 200


@pytest.mark.parametrize("headers", [{"content_length": "101"}, {}])
def test_it_refuses_bodies_that_are_too_large(headers: dict[str, str]) -> None:
    status, body = post(b"x" * 60, b"x" * 60, x_request_id="trace-1", **headers)

    assert (status, body["code"], body["requestId"]) == (413, "body_too_large", "trace-1")


def test_multipart_bodies_have_the_same_limit() -> None:
    assert post(b"x" * 120, content_type="multipart/form-data; boundary=x")[0] == 413


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Django leaves closing it to Python
def test_a_full_disk_is_reported_as_a_problem(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: Django writes larger bodies to TMPDIR before anything else sees the request."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_options: full)

        status, body = post(ORDER, x_request_id="trace-1")

    assert (status, body["code"], body["requestId"]) == (503, "storage_unavailable", "trace-1")
