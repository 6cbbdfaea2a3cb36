"""Limits for request bodies, tested with the real ASGI handler."""

import asyncio
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


def post(*parts: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    status, _headers, body = send("/orders", *parts, **headers)
    return status, json.loads(body)


async def exchange(path: str, *parts: bytes, **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    headers = {"host": "testserver", "content_type": "application/json", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": raw}
    peer: Any = ApplicationCommunicator(BoundedBody(get_asgi_application()), scope)  # type: ignore[no-untyped-call]
    for number, part in enumerate(parts, start=1):
        await peer.send_input({"type": "http.request", "body": part, "more_body": number < len(parts)})
    start = await peer.receive_output(60)
    body = await peer.receive_output(60)
    await peer.wait(60)
    return start["status"], dict(start["headers"]), body["body"]


send = async_to_sync(exchange)


@pytest.fixture(autouse=True)
def _bound(settings: LazySettings) -> None:
    settings.BODY_LIMIT = 100


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


KB = 1024


@pytest.mark.parametrize("header", ["content_type", "accept", "accept_encoding"])
def test_a_header_that_takes_long_to_parse_is_refused(header: str) -> None:
    """Without this limit, 64 KiB of semicolons in a quoted parameter would block the process for seconds.

    Such a request needs no token.
    """
    status, body = post(ORDER, **{header: 'application/json; x="' + ";" * 2_000})
    assert (status, body["code"]) == (400, "invalid")


@pytest.mark.parametrize("parameters", ["charset*=foo''x", "q*=a; q*0=b"])
def test_a_malformed_content_type_is_refused(parameters: str) -> None:
    status, body = post(ORDER, content_type=f"application/json; {parameters}")
    assert (status, body["code"]) == (400, "invalid")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/exports", 5 * KB * KB),
        ("/exports/preview", 5 * KB * KB),
        ("/exports/webhooks", 100),
        ("/exports/5d3f2c4e-7a1b-4c7e-9e39-0f8f5c9f2a10/cancel", 100),
        ("/api/v1/etl/rules", 256 * KB),
        ("/api/v1/etl/rules/7", 256 * KB),
        ("/api/v1/etl/rules/7/test", 5 * KB * KB),
        ("/api/v1/etl/rules/7/other", 100),
        ("/api/v1/etl/uploads", 100),
        ("/app/rules/check", KB * KB),
        ("/app/rules/fields", KB * KB),
        ("/app/rules/suggest", 5 * KB * KB),
        ("/app/rules/7/samples", KB * KB),
        ("/api/v1/etl/rules/7/samples/task", KB * KB),
        ("/app/sign-in", 100),
        ("/admin/auth/user/", 256 * KB),
        ("/unknown", 100),
    ],
)
@pytest.mark.parametrize("is_declared", [True, False])
def test_each_path_has_a_limit_that_holds_before_the_body_is_read(path: str, limit: int, is_declared: bool) -> None:  # noqa: FBT001
    """B24: this includes bodies in several parts, without a Content-Length."""
    half = b"x" * (limit // 2)
    too_large = {"content_length": str(limit + 1)} if is_declared else {}

    assert send(path, half, b"x" * (limit - len(half)))[0] != 413
    status, headers, body = send(path, half, b"x" * (limit + 1 - len(half)), **too_large)

    assert status == 413
    assert f"{limit:,} bytes" in body.decode()
    is_page = path.startswith(("/app/", "/admin/"))
    assert headers[b"content-type"] == (b"text/html; charset=utf-8" if is_page else b"application/problem+json")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/exports", "/api/v1/etl/rules/7/test", "/app/rules/try"])
@pytest.mark.parametrize(("size", "seconds", "expected"), [(100, "30", b"met"), (101, "0.5", b"alone")])
def test_large_bodies_are_processed_one_at_a_time(path: str, size: int, seconds: str, expected: bytes) -> None:
    """B24."""
    assert responses_to_two(path, size=size, x_wait_seconds=seconds) == [expected] * 2


def test_a_request_with_a_large_body_can_end_its_turn_before_it_waits() -> None:
    """B24."""
    assert responses_to_two("/exports", size=101, x_wait_seconds="30", x_end_turn="yes") == [b"met"] * 2


def responses_to_two(path: str, *, size: int, **headers: str) -> list[bytes]:
    """Send two concurrent requests to `failing_views.wait_for_second`, and return the bodies of the responses."""

    async def send_two() -> list[tuple[int, dict[bytes, bytes], bytes]]:
        return await asyncio.gather(
            *(exchange(path, b"x" * size, content_length=str(size), **headers) for _ in range(2))
        )

    return [body for _status, _headers, body in asyncio.run(send_two())]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Django does not close the file
def test_a_full_disk_is_reported_as_a_problem(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12: Django writes bodies above FILE_UPLOAD_MAX_MEMORY_SIZE to TMPDIR before it calls the middleware."""
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_options: full)

        status, body = post(ORDER, x_request_id="trace-1")

    assert (status, body["code"], body["requestId"]) == (503, "storage_unavailable", "trace-1")
