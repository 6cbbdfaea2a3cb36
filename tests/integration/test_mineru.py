"""The provider MinerU over HTTP (B14), with fake servers of its three protocols that respond like the real ones."""

import resource
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from fpdf import FPDF
from PIL import Image
from pydantic import SecretStr

from etl.core import errors
from etl.core.formats import DocumentFormat
from etl.core.stage_context import StageContext
from etl.providers.base import Document, OCRResult
from etl.providers.mineru import MinerUProvider, archive, client, jobs
from tests.conftest import change_settings
from tests.integration.mineru_servers import (
    CloudServer,
    Job,
    Scripted,
    V3Server,
    V4Server,
    envelope,
    error_4,
    listed,
    pack,
    reply_json,
    serving,
    structured,
)
from tests.integration.receiver import Reply, answer, trickle
from tests.waiting import expect_within, wait_until

SERVERS: dict[str, type[Scripted]] = {"v3": V3Server, "v4": V4Server, "cloud-v4": CloudServer}
# Patterns of the paths of each protocol.
POLL = {"v3": r"/tasks/[\w-]+$", "v4": r"/v1/tasks/\w+$", "cloud-v4": r"/extract/task/[\w-]+$"}
SUBMIT = {"v3": "/tasks$", "v4": "/v1/tasks$", "cloud-v4": "/extract/task$"}
RESULT = {"v3": "/result$", "v4": "/result$", "cloud-v4": "/results/"}
PRESIGNED = "https://storage.example/document?signature=1"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(jobs, "MAX_PAUSE", 0.05)


@pytest.fixture
def configure(settings: Any) -> Any:
    def set_to(server: Scripted, **more: Any) -> None:
        values: dict[str, Any] = {
            "etl_mineru_url": server.base,
            "etl_mineru_protocol": "auto",
            "etl_mineru_api_key": None,
        }
        if isinstance(server, CloudServer):
            values["etl_mineru_api_key"] = SecretStr(server.key)
        change_settings(settings, **(values | more))

    return set_to


@pytest.fixture
def start(configure: Any) -> Iterator[Any]:
    """A function that starts a server of a protocol, and configures Sluice to use it."""
    with ExitStack() as stack:

        def make(protocol: str, **more: Any) -> Scripted:
            server = stack.enter_context(serving(SERVERS[protocol]()))
            configure(server, **more)
            return server

        yield make


@pytest.fixture(params=SERVERS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(protocol: str, start: Any) -> Scripted:
    started: Scripted = start(protocol)
    return started


@pytest.fixture
def document(tmp_path: Path) -> Document:
    return document_of(tmp_path)


def document_of(
    folder: Path, kind: DocumentFormat = DocumentFormat.HTML, content: bytes = b"<html>Invoice</html>" * 9000
) -> Document:
    path = folder / "copy"
    path.write_bytes(content)
    return Document(path=path, kind=kind, size=len(content), sha256="0" * 64, name=f"17.{kind}", url=lambda: PRESIGNED)


def convert(document: Document, context: StageContext | None = None) -> OCRResult:
    with closing(MinerUProvider()) as provider:
        return provider.convert(document, context=context or StageContext(seconds=20))


def failure(document: Document, context: StageContext | None = None) -> errors.EtlError:
    with pytest.raises(errors.EtlError) as caught:
        convert(document, context)
    return caught.value


def text_of(result: OCRResult, number: int) -> str:
    page = result.pages[number - 1]
    return result.markdown[page.start : page.end]


# ---- Converting -----------------------------------------------------------------------------------------------------
def test_converts_a_document_into_markdown_with_pages(protocol: str, server: Scripted, document: Document) -> None:
    """B13, B14: with exact offsets, page markers, and the metadata that every provider returns."""
    result = convert(document)
    assert [text_of(result, number) for number in (1, 2)] == ["Invoice 17\n\nÜnïted Apples", "Total: 12.50"]
    assert result.markdown.startswith("<!-- page: 1 -->\n\nInvoice 17")
    assert "\n<!-- page: 2 -->\n\nTotal: 12.50" in result.markdown
    assert [(page.number, page.method) for page in result.pages] == [(1, "text"), (2, "text")]
    assert result.provider == "mineru"
    assert result.provider_task_id in server.jobs
    assert result.metadata["protocol"] == protocol
    assert result.metadata["pages"] == 2
    assert result.metadata["duration_ms"] >= 0
    assert result.metadata["version"]


@pytest.mark.parametrize("protocol", ["v3", "v4"])
def test_sends_the_bytes_to_a_self_hosted_server_under_our_own_name(server: Scripted, document: Document) -> None:
    """B14: the client's file name is never sent."""
    convert(document)
    (job,) = server.jobs.values()
    assert (job.name, job.document) == ("17.html", document.path.read_bytes())


def test_sends_a_presigned_url_to_the_hosted_service(start: Any, document: Document) -> None:
    server = start("cloud-v4")
    convert(document)
    (call,) = server.requests_to("POST", "/extract/task$")
    assert call.json["url"] == PRESIGNED
    assert call.json["model_version"] == "MinerU-HTML"


def test_shows_the_progress_that_the_server_counts(start: Any, document: Document) -> None:
    start("cloud-v4")
    seen: list[tuple[int, int]] = []
    convert(document, StageContext(seconds=20, on_progress=lambda done, total: seen.append((done, total))))
    assert seen == [(1, 2)]


@pytest.mark.parametrize(("offered", "sent"), [(("flash",), "flash"), (("advanced", "flash", "basic"), "advanced")])
def test_requests_the_best_offered_tier(start: Any, document: Document, offered: tuple[str, ...], sent: str) -> None:
    server = start("v4")
    server.tiers = offered
    result = convert(document)
    assert server.requests_to("POST", "/v1/tasks$")[0].query["tier"] == [sent]
    assert result.metadata["version"] == "4.0.12"


@pytest.mark.parametrize(
    ("protocol", "tier", "expected"),
    [("v4", "basic", "basic"), ("v3", "basic", "pipeline"), ("v3", "vlm-engine", "vlm-engine"), ("v3", "", None)],
)
def test_requests_the_configured_tier(
    protocol: str, start: Any, document: Document, tier: str, expected: str | None
) -> None:
    server = start(protocol, etl_mineru_tier=tier)
    convert(document)
    (call,) = server.requests_to("POST", SUBMIT[protocol])
    sent = call.query["tier"][0] if protocol == "v4" else call.form.get("backend", (None, b""))[1].decode()
    assert (sent or None) == expected


def test_detects_the_protocol_once(server: Scripted, document: Document) -> None:
    """B13: the protocol is cached."""
    provider = MinerUProvider()
    for _ in range(2):
        provider.convert(document, context=StageContext(seconds=20))
    assert len(server.requests_to("GET", "/v1/health$")) == (0 if isinstance(server, CloudServer) else 1)
    assert len(server.jobs) == 2


def test_detects_the_protocol_again_after_a_failure(start: Any, configure: Any, document: Document) -> None:
    """B13: an upgrade of the server does not require a restart of Sluice."""
    older, newer = start("v3"), start("v4")
    provider = MinerUProvider()
    configure(older)
    provider.convert(document, context=StageContext(seconds=20))
    configure(newer)
    with pytest.raises(errors.ProviderUnavailable):
        provider.convert(document, context=StageContext(seconds=20))
    assert provider.convert(document, context=StageContext(seconds=20)).metadata["protocol"] == "v4"


def test_uses_the_configured_protocol_without_detection(protocol: str, start: Any, document: Document) -> None:
    server = start(protocol, etl_mineru_protocol=protocol)
    convert(document)
    assert not server.requests_to("GET", "health$")


@pytest.mark.parametrize("url", ["http://127.0.0.1:x/", "//[::1", "https://127.0.0.1:99999999/"])
def test_refuses_redirects_to_invalid_urls(start: Any, document: Document, url: str) -> None:
    server = start("cloud-v4", etl_mineru_result_hosts=["127.0.0.1"])
    server.on("GET", "/results/", answer(302, Location=url))
    assert type(failure(document)) is client.UnsafeResult


def test_refuses_results_at_invalid_ports(start: Any, document: Document) -> None:
    server = start("cloud-v4", etl_mineru_result_hosts=["127.0.0.1"])
    server.zip_url = "https://127.0.0.1:99999999/result.zip"
    assert type(failure(document)) is client.UnsafeResult


@pytest.mark.parametrize("version", ["4.1.0", "5", "9" * 5000])
def test_refuses_a_newer_protocol(start: Any, document: Document, version: str) -> None:
    server = start("v4")
    server.on("GET", "/v1/health$", reply_json(200, {"status": "ok", "version": version}))
    error = failure(document)
    assert (error.code, error.transient) == ("provider_unavailable", False)
    assert "too new" in error.detail


def test_reports_a_server_that_is_not_mineru(start: Any, document: Document) -> None:
    server = start("v4")
    server.on("GET", "health$", reply_json(404, {"detail": "Not Found"}), once=False)
    assert failure(document).code == "provider_unavailable"


def test_accepts_the_kinds_of_the_protocol(settings: Any) -> None:
    """B1, B22: without network access, so that submissions can check the format."""
    change_settings(settings, etl_mineru_url="http://127.0.0.1:9")
    assert {DocumentFormat.PDF, DocumentFormat.DOC, DocumentFormat.HTML, DocumentFormat.EPUB} < MinerUProvider().formats
    assert DocumentFormat.TEXT not in MinerUProvider().formats
    change_settings(settings, etl_mineru_protocol="v3")
    assert DocumentFormat.DOCX in MinerUProvider().formats
    assert DocumentFormat.DOC not in MinerUProvider().formats


# ---- Resuming jobs --------------------------------------------------------------------------------------------------
def test_resumes_a_job_instead_of_submitting_another(server: Scripted, protocol: str, document: Document) -> None:
    """B2: so that the job is not billed twice."""
    remembered: list[str] = []
    server.polls = 10**6
    with pytest.raises(errors.Fenced):
        convert(document, lost_soon(lambda: bool(remembered), on_provider_task=remembered.append))
    server.jobs[remembered[0]].polls = 0
    result = convert(document, StageContext(seconds=20, provider_task_id=remembered[0]))
    assert result.provider_task_id == remembered[0]
    assert len(server.requests_to("POST", SUBMIT[protocol])) == 1


def lost_soon(when: Any, **more: Any) -> StageContext:
    """Return a context whose lease is lost once a condition holds."""
    context = StageContext(seconds=20, **more)

    def wait() -> None:
        try:
            wait_until(when)
        finally:
            context.lease_lost.set()

    threading.Thread(target=wait, daemon=True).start()
    return context


def test_does_not_cancel_a_job_after_losing_the_lease(start: Any, document: Document) -> None:
    server = start("v4")
    server.polls = 10**6
    with pytest.raises(errors.Fenced):
        convert(document, lost_soon(lambda: server.jobs))
    assert not server.requests_to("DELETE", "/v1/tasks/")


def test_submits_again_when_the_server_has_lost_the_job(server: Scripted, protocol: str, document: Document) -> None:
    """A restarted server has no jobs. That must not fail the document."""
    remembered: list[str] = []
    result = convert(
        document, StageContext(seconds=20, provider_task_id="job_of_long_ago", on_provider_task=remembered.append)
    )
    assert remembered == [result.provider_task_id]
    assert len(server.requests_to("POST", SUBMIT[protocol])) == 1


def test_submits_again_when_the_server_loses_the_job_while_polling(
    server: Scripted, protocol: str, document: Document
) -> None:
    remembered: list[str] = []
    server.polls = 10**6

    def remember(job: str) -> None:
        remembered.append(job)
        if len(remembered) == 1:
            server.forget()
            server.polls = 1

    assert convert(document, StageContext(seconds=20, on_provider_task=remember)).provider_task_id == remembered[1]


def test_fails_if_the_server_loses_every_job(server: Scripted, protocol: str, document: Document) -> None:
    error = failure(document, StageContext(seconds=20, on_provider_task=lambda _job: server.forget()))
    assert (error.code, error.transient) == ("ocr_failed", True)
    assert len(server.requests_to("POST", SUBMIT[protocol])) == jobs.MAX_SUBMISSIONS


def test_resubmits_a_job_that_failed_in_an_earlier_run(server: Scripted, document: Document) -> None:
    server.fails = {"type": "engine_error", "code": "parse_failed", "message": "out of memory", "param": None}
    remembered: list[str] = []
    error = failure(document, StageContext(seconds=20, on_provider_task=remembered.append))
    assert (error.code, error.transient) == ("ocr_failed", True)
    server.fails = {}
    result = convert(document, StageContext(seconds=20, provider_task_id=remembered[0]))
    assert result.provider_task_id != remembered[0]


@pytest.mark.parametrize("status", [403, 404, 410])
def test_resubmits_a_job_whose_result_is_missing(start: Any, document: Document, status: int) -> None:
    """Result links of the hosted service expire. The next attempt submits the document again."""
    server = start("cloud-v4")
    server.on("GET", "/results/", answer(status), once=False)
    remembered: list[str] = []
    error = failure(document, StageContext(seconds=20, on_provider_task=remembered.append))
    assert (error.code, error.transient, len(server.jobs)) == ("ocr_failed", True, 1)
    server.replaced.clear()
    server.on("GET", "/results/", answer(status))
    assert convert(document, StageContext(seconds=20, provider_task_id=remembered[0])).provider_task_id != remembered[0]
    assert len(server.jobs) == 2


# ---- Deadlines ------------------------------------------------------------------------------------------------------
def test_cancels_the_job_at_the_deadline(start: Any, document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """B9: the time limit of the stage also applies to the job, so that the server is free for other jobs."""
    monkeypatch.setattr(jobs, "CANCEL_SECONDS", 30)
    server = start("v4")
    server.polls = 10**6

    def expire_soon(_job: str) -> None:
        context.seconds = time.monotonic() - context.started_at + 0.3

    context = StageContext(seconds=60, on_provider_task=expire_soon)
    with pytest.raises(errors.OutOfTime):
        convert(document, context)
    (job,) = server.jobs.values()
    assert job.state == "canceled"


@pytest.mark.parametrize("protocol", ["v3", "cloud-v4"])
def test_ends_at_the_deadline_without_cancellation(server: Scripted, document: Document) -> None:
    server.polls = 10**6
    with pytest.raises(errors.OutOfTime):
        convert(document, StageContext(seconds=0.3))


@pytest.mark.parametrize("paths", [SUBMIT, POLL, RESULT], ids=["submit", "poll", "result"])
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
@pytest.mark.slow
def test_a_trickling_server_is_cut_off_at_the_deadline(
    server: Scripted, protocol: str, document: Document, paths: dict[str, str], head: bytes
) -> None:
    """B14: a server that sends one byte every few milliseconds never exceeds the timeout of a single read."""
    over = threading.Event()
    server.on("POST" if paths is SUBMIT else "GET", paths[protocol], trickle(over, head=head), once=False)

    def convert_until_deadline() -> None:
        with pytest.raises(errors.OutOfTime):
            convert(document, StageContext(seconds=0.3))

    expect_within(0.3 + jobs.CANCEL_SECONDS + 1, convert_until_deadline)
    over.set()


@pytest.mark.parametrize("paths", [SUBMIT, POLL], ids=["submit", "poll"])
def test_treats_a_silent_server_as_unreachable(
    server: Scripted, protocol: str, document: Document, paths: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: the timeout of a call is shorter than the time limit of the stage.

    Failed polls are tolerated for a while.
    """
    monkeypatch.setattr(client, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(jobs, "POLL_FAILURE_SECONDS", 0.3)
    over = threading.Event()
    server.on("POST" if paths is SUBMIT else "GET", paths[protocol], silent(over), once=False)
    error = failure(document)
    over.set()
    assert (error.code, error.transient) == ("provider_unavailable", True)


def silent(over: threading.Event) -> Reply:
    def reply(to: BaseHTTPRequestHandler) -> None:
        over.wait(10)
        to.close_connection = True

    return reply


def test_treats_a_refused_connection_as_unreachable(configure: Any, protocol: str, document: Document) -> None:
    with serving(SERVERS[protocol]()) as server:
        configure(server)
    error = failure(document)
    assert (error.code, error.transient) == ("provider_unavailable", True)


# ---- Refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reply", "code", "transient"),
    [
        (reply_json(401, error_4("authentication_error", "invalid_api_key", "no")), "provider_unavailable", False),
        (reply_json(403, error_4("permission_error", "quota_exceeded", "no")), "provider_unavailable", False),
        (reply_json(500, {"detail": "oops"}), "provider_unavailable", True),
        (reply_json(503, error_4("engine_error", "engine_dead", "no")), "provider_unavailable", True),
        (answer(502, b"<html>Bad Gateway</html>"), "provider_unavailable", True),
        (answer(302, Location="http://169.254.169.254/"), "provider_unavailable", True),
        (answer(200, b"<html>Welcome</html>"), "ocr_failed", True),
        (answer(200, b"[1]"), "ocr_failed", True),
        (reply_json(200, {"unheard": "of"}), "ocr_failed", True),
        (answer(200, b"{", Content_Encoding="gzip"), "ocr_failed", True),
    ],
)
def test_maps_refusals_to_errors(
    server: Scripted, protocol: str, document: Document, *, reply: Reply, code: str, transient: bool
) -> None:
    """B14: the error states whether another attempt can succeed."""
    server.on("POST", SUBMIT[protocol], reply)
    error = failure(document)
    assert (error.code, error.transient) == (code, transient)


def test_respects_retry_after_of_a_busy_server(server: Scripted, protocol: str, document: Document) -> None:
    """B14: rate limits."""
    server.on("POST", SUBMIT[protocol], answer(429, Retry_After="7"))
    error = failure(document)
    assert isinstance(error, errors.ProviderUnavailable)
    assert (error.transient, error.retry_after) == (True, 7)


def hang_up(to: BaseHTTPRequestHandler) -> None:
    to.close_connection = True


@pytest.mark.parametrize("reply", [answer(429, Retry_After="0"), answer(503), answer(500, b"x"), hang_up])
def test_tolerates_failed_polls(server: Scripted, protocol: str, document: Document, reply: Reply) -> None:
    """A failed poll does not end the attempt."""
    for _ in range(3):
        server.on("GET", POLL[protocol], reply)
    assert len(convert(document).pages) == 2


def test_releases_its_worker_during_a_long_retry_after(server: Scripted, protocol: str, document: Document) -> None:
    server.on("GET", POLL[protocol], answer(429, Retry_After="120"))
    remembered: list[str] = []
    error = failure(document, StageContext(seconds=20, on_provider_task=remembered.append))
    assert error.retry_after == 120
    assert convert(document, StageContext(seconds=20, provider_task_id=remembered[0])).provider_task_id == remembered[0]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Unsupported file type: unknown", errors.UnsupportedFormat),
        ("Failed to load document (PDFium: Incorrect password error).", errors.FileEncrypted),
        ("Failed to load document (PDFium: Data format error).", errors.FileCorrupt),
        ("[E1020] Connection failed: … Failed to resolve 'modelscope.cn'", errors.OcrFailed),
    ],
)
def test_maps_failed_jobs_to_errors(
    server: Scripted, document: Document, message: str, kind: type[errors.EtlError]
) -> None:
    """B14: all messages are from real servers.

    Version 4.0 reports all of these failures as `parse_failed`, and other servers send only the message.
    """
    server.fails = {"type": "engine_error", "code": "parse_failed", "message": message, "param": None}
    error = failure(document)
    assert type(error) is kind
    assert message not in error.detail


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("file_encrypted", errors.FileEncrypted),
        ("file_corrupted", errors.FileCorrupt),
        ("file_type_unsupported", errors.UnsupportedFormat),
        ("file_too_large", errors.FileTooLarge),
        ("file_permission_denied", errors.OcrRefused),
        ("page_range_invalid", errors.OcrRefused),
        ("parse_timeout", errors.OcrFailed),
    ],
)
def test_maps_codes_of_version_4_to_errors(
    start: Any, document: Document, code: str, kind: type[errors.EtlError]
) -> None:
    server = start("v4")
    server.fails = {"type": "invalid_request_error", "code": code, "message": "?", "param": None}
    assert type(failure(document)) is kind


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, error_4("invalid_request_error", "invalid_request", "Flash parsing is disabled"), errors.OcrRefused),
        (400, error_4("invalid_request_error", "invalid_request", "Tier 'basic' not available in this server"),
         errors.ProviderUnavailable),
        (413, error_4("invalid_request_error", "file_too_large", "File exceeds 200 MiB"), errors.FileTooLarge),
        (404, {"detail": "Not Found"}, errors.ProviderUnavailable),
    ],
)  # fmt: skip
def test_maps_refused_submissions_of_version_4_to_errors(
    start: Any, document: Document, status: int, error: Any, kind: type[errors.EtlError]
) -> None:
    start("v4").on("POST", "/v1/tasks$", reply_json(status, error))
    assert isinstance(failure(document), kind)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-500, errors.OcrRefused), (-10001, errors.ProviderUnavailable), (-10002, errors.OcrRefused),
        (-60002, errors.UnsupportedFormat), (-60003, errors.FileCorrupt), (-60004, errors.EmptyDocument),
        (-60005, errors.FileTooLarge), (-60006, errors.TooManyPages), (-60007, errors.ProviderUnavailable),
        (-60008, errors.OcrFailed), (-60009, errors.ProviderUnavailable), (-60010, errors.OcrFailed),
        (-60013, errors.ProviderForbidden), (-60017, errors.OcrRefused), (-60018, errors.ProviderForbidden),
        (-60022, errors.OcrFailed), (-99999, errors.OcrFailed),
    ],
)  # fmt: skip
def test_maps_codes_of_the_hosted_service_to_errors(
    start: Any, document: Document, code: int, kind: type[errors.EtlError]
) -> None:
    """B14: the code can be in an immediate response or in the status of a failed job."""
    server = start("cloud-v4")
    server.on("POST", SUBMIT["cloud-v4"], reply_json(200, envelope(None, code=code, msg="?")))
    assert type(failure(document)) is kind
    server.fails = {"message": f"failed ({code})"}
    assert type(failure(document)) is kind


@pytest.mark.parametrize("status", [200, 401])
def test_accepts_the_other_response_shape_of_the_hosted_gateway(start: Any, document: Document, status: int) -> None:
    server = start("cloud-v4")
    body = {"success": False, "msgCode": "A0211", "msg": "token expired"}
    server.on("POST", SUBMIT["cloud-v4"], reply_json(status, body))
    error = failure(document)
    assert (type(error), error.transient) == (errors.ProviderForbidden, False)


@pytest.mark.parametrize("paths", [POLL, RESULT], ids=["poll", "result"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b'{"status": "thinking"}', b"PK\x03\x04 and no more"])
def test_treats_malformed_responses_as_invalid(
    server: Scripted, protocol: str, document: Document, paths: dict[str, str], body: bytes
) -> None:
    """B14, B18: the next attempt continues with the same job."""
    server.on("GET", paths[protocol], answer(200, body))
    remembered: list[str] = []
    error = failure(document, StageContext(seconds=20, on_provider_task=remembered.append))
    assert (error.code, error.transient) == ("ocr_failed", True)
    assert convert(document, StageContext(seconds=20, provider_task_id=remembered[0])).provider_task_id == remembered[0]


# ---- Credentials and redirects --------------------------------------------------------------------------------------
def test_sends_its_key_only_to_the_configured_server(start: Any, document: Document) -> None:
    server = start("cloud-v4")
    convert(document)
    assert all("authorization" in call.headers for call in server.calls if call.path.startswith("/api/v4/"))
    (result,) = server.requests_to("GET", "/results/")
    assert "authorization" not in result.headers
    assert "cookie" not in result.headers


@pytest.mark.parametrize("protocol", ["v3", "v4"])
def test_sends_a_configured_key_to_self_hosted_servers(protocol: str, start: Any, document: Document) -> None:
    server = start(protocol, etl_mineru_api_key=SecretStr("s3cret"))
    convert(document)
    assert {call.headers.get("authorization") for call in server.calls} == {"Bearer s3cret"}


def test_refuses_results_on_other_hosts(start: Any, document: Document) -> None:
    """B14: both the URL of a result and a redirect can name another host."""
    with serving(V3Server()) as stranger:
        server = start("cloud-v4", etl_mineru_result_hosts=["127.0.0.1"])
        server.zip_url = f"{stranger.base}/steal.zip"
        error = failure(document)
        assert (error.code, error.transient) == ("ocr_failed", False)
        assert "ETL_MINERU_RESULT_HOSTS" in error.detail
        server.zip_url = ""
        server.on("GET", "/results/", answer(302, Location=f"{stranger.base}/steal.zip"))
        assert "ETL_MINERU_RESULT_HOSTS" in failure(document).detail
        assert stranger.calls == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://user@{host}/results/x", "//[", "http://{host}:x/", "ftp://{host}/", "gopher:", " "],
)
def test_refuses_ambiguous_urls(start: Any, document: Document, url: str) -> None:
    server = start("cloud-v4")
    server.zip_url = url.replace("{host}", server.base.removeprefix("http://").removesuffix("/api/v4"))
    assert (failure(document).code, failure(document).transient) == ("ocr_failed", False)


def test_follows_redirects_on_the_same_host(start: Any, document: Document) -> None:
    server = start("cloud-v4")
    server.on("GET", "/results/", answer(302, Location="/results/elsewhere.zip"))
    assert len(convert(document).pages) == 2


def test_limits_the_number_of_redirects(start: Any, document: Document) -> None:
    server = start("cloud-v4")
    server.on("GET", "/results/", answer(302, Location="/results/again.zip"), once=False)
    assert failure(document).transient is False
    assert len(server.requests_to("GET", "/results/")) == client.MAX_REDIRECTS + 1


# ---- Archives -------------------------------------------------------------------------------------------------------
GOOD: dict[str, str | bytes] = {"full.md": "text", "a_content_list.json": b"[]"}


@pytest.mark.parametrize("name", ["../evil.md", "/etc/evil", "a/../../evil", "..\\evil", "C:/evil", "a\\b", "x/.."])
def test_refuses_archives_with_path_traversal(server: Scripted, document: Document, name: str) -> None:
    """B14: the error is permanent, and nothing is written to the disk."""
    server.result = pack({**GOOD, name: "x"})
    error = failure(document)
    assert (type(error), error.code, error.transient) == (client.UnsafeResult, "ocr_failed", False)
    assert [file.name for file in document.path.parent.iterdir()] == ["copy"]


def test_refuses_archives_with_links(server: Scripted, document: Document, tmp_path: Path) -> None:
    path = tmp_path / "made.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("full.md", "x")
        link = zipfile.ZipInfo("images/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    server.result = path.read_bytes()
    assert type(failure(document)) is client.UnsafeResult


def test_refuses_archives_with_too_many_members(server: Scripted, document: Document) -> None:
    server.result = pack({"full.md": "x", **{f"images/{number}.jpg": "" for number in range(2_000)}})
    assert type(failure(document)) is client.UnsafeResult


GIGABYTES = 10 * 1024**3


def bomb(member: str, *, claimed: int) -> bytes:
    """Return an archive of about 10 MB, with a member that unpacks to 10 GB and declares `claimed` bytes."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = squeeze.compress(bytes(2**24)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    data = block * (GIGABYTES // 2**24) + squeeze.flush()
    name = member.encode()
    sizes = struct.pack("<3L", 0, len(data), 0xFFFFFFFF)
    extra = struct.pack("<2HQ", 1, 8, claimed)
    common = struct.pack("<5H", 45, 0, zipfile.ZIP_DEFLATED, 0, 0) + sizes + struct.pack("<2H", len(name), len(extra))
    local = b"PK\x03\x04" + common + name + extra + data
    entry = b"PK\x01\x02" + struct.pack("<H", 45) + common + struct.pack("<3H2L", 0, 0, 0, 0, 0) + name + extra
    return local + entry + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), len(local), 0)


@pytest.mark.parametrize("claimed", [GIGABYTES, 20_000_000, 1_000], ids=["true", "less", "small"])
def test_refuses_decompression_bombs(start: Any, document: Document, claimed: int) -> None:
    """B14: memory use is bounded regardless of the declared size."""
    server = start("cloud-v4")
    server.result = bomb("full.md", claimed=claimed)
    before = peak_memory()
    error = failure(document)
    assert peak_memory() - before < 200 * 1024**2
    assert (error.code, isinstance(error, client.UnsafeResult | client.InvalidOcrResponse)) == ("ocr_failed", True)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_refuses_archives_with_an_endless_directory(start: Any, document: Document) -> None:
    server = start("cloud-v4")
    entries = b"PK\x01\x02" + bytes(42)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entries) * 200_000, 4, 0)
    server.result = b"PK\x03\x04" + entries * 200_000 + end
    assert type(failure(document)) is client.UnsafeResult


def test_refuses_archives_whose_zip64_record_is_elsewhere(tmp_path: Path) -> None:
    """Newer versions of zipfile would read the huge directory that this record declares."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, 10**9, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 0)
    path = tmp_path / "decoy.zip"
    path.write_bytes(record + bytes(100) + locator + end)
    with path.open("rb") as file, pytest.raises(archive.DamagedArchive):
        archive.check_directory(file)
    path.write_bytes(bytes(100) + record + struct.pack("<4sLQL", b"PK\x06\x07", 0, 100, 1) + end)
    with path.open("rb") as file, pytest.raises(archive.UnsafeArchive):
        archive.check_directory(file)


def test_refuses_documents_with_too_many_parts(start: Any, tmp_path: Path) -> None:
    start("v4")
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as parts:
        for number in range(10_001):
            parts.writestr(f"{number}.xml", b"")
    error = failure(document_of(tmp_path, DocumentFormat.DOCX, content.getvalue()))
    assert (error.code, error.detail) == ("file_too_large", "The file has at least 10,001 parts; the limit is 10,000.")


def test_limits_the_size_of_downloads(
    server: Scripted, protocol: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_RESULT_BYTES", 1_000_000)
    server.on("GET", RESULT[protocol], endless, once=False)
    assert type(failure(document)) is client.UnsafeResult


def endless(to: BaseHTTPRequestHandler) -> None:
    to.send_response(200)
    to.send_header("Connection", "close")
    to.end_headers()
    while True:
        to.wfile.write(bytes(65536))


@pytest.mark.parametrize("kind", [DocumentFormat.DOCX, DocumentFormat.EPUB, DocumentFormat.ODS])
def test_refuses_documents_that_unpack_to_more_than_allowed(start: Any, tmp_path: Path, kind: DocumentFormat) -> None:
    """B12: regardless of the declared size."""
    server = start("v4", etl_max_file_bytes=10**7)
    document = document_of(tmp_path, kind, bomb("word/document.xml", claimed=GIGABYTES))
    assert failure(document).code == "file_too_large"
    assert server.calls == []


def pdf(*, pages: int = 1, password: str = "") -> bytes:
    made = FPDF()
    if password:
        made.set_encryption(owner_password="owner", user_password=password)
    for _ in range(pages):
        made.add_page()
    return bytes(made.output())


def png(side: int) -> bytes:
    made = BytesIO()
    Image.new("1", (side, side)).save(made, "PNG")
    return made.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "content", "code"),
    [
        (DocumentFormat.PDF, pdf(pages=6), "too_many_pages"),
        (DocumentFormat.PDF, pdf(password="secret"), "file_encrypted"),
        (DocumentFormat.PDF, b"%PDF-1.4\nand no more", "file_corrupt"),
        (DocumentFormat.PNG, png(1001), "too_many_pixels"),
        (DocumentFormat.PNG, b"\x89PNG\r\n\x1a\n and no more", "file_corrupt"),
    ],
    ids=["pages", "password", "pdf", "pixels", "png"],
)
def test_refuses_documents_beyond_the_limits(
    start: Any, tmp_path: Path, kind: DocumentFormat, content: bytes, code: str
) -> None:
    """B12: a separate process checks them before anything is sent."""
    server = start("v4", etl_max_pages=5, etl_max_pixels=1_000_000)
    error = failure(document_of(tmp_path, kind, content))
    assert (error.code, error.transient) == (code, False)
    assert server.calls == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "content"), [(DocumentFormat.PDF, pdf(pages=5)), (DocumentFormat.PNG, png(1000))])
def test_accepts_documents_at_the_limits(start: Any, tmp_path: Path, kind: DocumentFormat, content: bytes) -> None:
    server = start("v4", etl_max_pages=5, etl_max_pixels=1_000_000)
    convert(document_of(tmp_path, kind, content))
    assert len(server.jobs) == 1


@pytest.mark.slow
def test_warns_of_missing_pages_of_a_pdf(start: Any, tmp_path: Path) -> None:
    """B18: the pages are counted locally and compared with the result."""
    start("v3")
    context = StageContext(seconds=20)
    result = convert(document_of(tmp_path, DocumentFormat.PDF, pdf(pages=4)), context)
    assert len(result.pages) == 4
    assert [(warning.code, warning.page) for warning in context.warnings] == [("page_failed", 3), ("page_failed", 4)]


def test_refuses_office_documents_that_are_not_archives(start: Any, tmp_path: Path) -> None:
    server = start("v4")
    assert failure(document_of(tmp_path, DocumentFormat.DOCX, b"PK\x03\x04 and no more")).code == "file_corrupt"
    assert server.calls == []


def test_sends_valid_archives_unchanged(start: Any, tmp_path: Path) -> None:
    server = start("v4")
    document = document_of(
        tmp_path, DocumentFormat.DOCX, pack({"word/document.xml": "<w:t>a</w:t>" * 10_000, "a\\b": "x"})
    )
    assert len(convert(document).pages) == 2
    assert [job.document for job in server.jobs.values()] == [document.path.read_bytes()]


# ---- Pages ----------------------------------------------------------------------------------------------------------
def test_warns_of_omitted_pages(start: Any, document: Document) -> None:
    """B18: but not of blank pages."""
    server = start("v4")
    whole = structured([["one"], [], ["three"], ["four"]])
    del whole["pages"][2]
    server.result = pack({"markdown.md": "one\n\nfour", "structured_content.json": orjson.dumps(whole)})
    context = StageContext(seconds=20)
    result = convert(document, context)
    assert [page.number for page in result.pages] == [1, 2, 3, 4]
    assert [page.method for page in result.pages] == ["text", "none", "none", "text"]
    assert [(warning.code, warning.page) for warning in context.warnings] == [("page_failed", 3)]


def test_warns_of_a_partial_result(start: Any, document: Document) -> None:
    """B18."""
    start("v4").on("GET", POLL["v4"], partial)
    context = StageContext(seconds=20)
    convert(document, context)
    assert [warning.code for warning in context.warnings] == ["page_failed"]


def partial(to: BaseHTTPRequestHandler) -> None:
    server = V4Server()
    reply_json(200, server.status(Job(id=to.path.rpartition("/")[2]), "partial"))(to)


@pytest.mark.parametrize("data", [{}, {"a_content_list.json": b"{"}, {"a_content_list.json": b'[{"text": "x"}]'},
                                  {"a_content_list.json": b'[{"text": "x", "page_idx": 99999999999}]'}])  # fmt: skip
def test_has_one_page_without_page_information(server: Scripted, document: Document, data: dict[str, bytes]) -> None:
    server.result = pack({"full.md": "All of the text.", **data})
    context = StageContext(seconds=20)
    result = convert(document, context)
    assert [text_of(result, page.number) for page in result.pages] == ["All of the text."]
    assert [warning.code for warning in context.warnings] == ["no_page_data"]


def test_keeps_text_with_inconsistent_page_numbers(start: Any, document: Document) -> None:
    """B18: if the text of the pages is incomplete, the whole text is used, with a warning."""
    server = start("cloud-v4")
    whole = "A sentence. " * 50 + "Another one, which no piece has."
    items = listed([["A sentence. " * 50]])
    server.result = pack({"full.md": whole, "x_content_list.json": orjson.dumps(items)})
    context = StageContext(seconds=20)
    assert whole in convert(document, context).markdown
    assert [warning.code for warning in context.warnings] == ["no_page_data"]


@pytest.mark.parametrize("text", ["", " \n ", "![](images/a.jpg)", "![](data:image/png;base64,AAAA)"])
def test_fails_for_a_result_without_text(server: Scripted, document: Document, text: str) -> None:
    """B18: a document with only pictures fails."""
    server.pages = [[text], []]
    error = failure(document)
    assert (error.code, error.transient) == ("empty_document", False)


def test_keeps_headings_tables_captions_and_formulas(start: Any, document: Document) -> None:
    server = start("v3")
    table = '<table><tr><td rowspan="2">A</td></tr></table>'
    items = [
        {"type": "header", "text": "ACME Ltd", "page_idx": 0},
        {"type": "text", "text": "Title", "text_level": 2, "page_idx": 0},
        {"type": "table", "table_caption": ["Prices"], "table_body": table, "table_footnote": ["net"], "page_idx": 0},
        {"type": "equation", "text": "$$\nE = mc^2\n$$", "text_format": "latex", "page_idx": 0},
        {"type": "list", "list_items": ["- a", "- b"], "page_idx": 0},
        {"type": "image", "img_path": "images/a.jpg", "image_caption": ["Fig. 1"], "page_idx": 0},
        {"type": "code", "code_body": "```\nx = 1\n```", "code_caption": [], "page_idx": 0},
        {"type": "page_number", "text": "1", "page_idx": 0},
        {"type": "text", "text": "[link](a.html) <!-- page: 9 --> ![](images/b.jpg)", "page_idx": 0},
    ]
    server.result = pack({"a.md": "Title", "a_content_list.json": orjson.dumps(items)})
    result = convert(document)
    pieces = ["ACME Ltd", "## Title", "Prices", table, "net", "$$\nE = mc^2\n$$", "- a\n- b", "Fig. 1"]
    assert text_of(result, 1) == "\n\n".join([*pieces, "```\nx = 1\n```", "[link](a.html) <!--page: 9 -->"])


def test_keeps_every_block_of_version_4(start: Any, document: Document) -> None:
    server = start("v4")
    content = structured([[]])
    note = [{"bbox": [0, 0, 1, 1], "content": "net"}]
    content["pages"][0]["blocks"] = [
        {"type": "doc_title", "level": 1, "content": "T"},
        {"type": "paragraph_title", "level": 3, "content": "P"},
        {"type": "table", "content": "| A |\n| --- |", "captions": [{"content": "C"}], "footnotes": note},
        {"type": "equation", "content": "E = mc^2"},
    ]
    content["extensions"]["mineru"]["parse_mode"] = "ocr"
    server.result = pack({"markdown.md": "# T", "structured_content.json": orjson.dumps(content)})
    result = convert(document)
    assert text_of(result, 1) == "# T\n\n### P\n\nC\n\n| A |\n| --- |\n\nnet\n\n$$\nE = mc^2\n$$"
    assert result.pages[0].method == "ocr"


@pytest.mark.parametrize("protocol", ["v3", "v4"])
def test_reads_json_results(protocol: str, start: Any, document: Document) -> None:
    server = start(protocol)
    pages = [["one"], ["two"]]
    texts = {"md_content": "one\n\ntwo", "content_list": orjson.dumps(listed(pages)).decode()}
    if protocol == "v3":
        server.on("GET", "/result$", reply_json(200, {"backend": "vlm", "version": "3.4.5", "results": {"17": texts}}))
    else:
        server.pages, server.has_zip = pages, False
    result = convert(document)
    assert [text_of(result, number) for number in (1, 2)] == ["one", "two"]


@pytest.mark.parametrize("body", [{"results": {}}, {"results": {"a": {"md_content": 1}}}, {"files": [{}]}])
def test_treats_json_without_a_result_as_invalid(start: Any, document: Document, body: Any) -> None:
    start("v3").on("GET", "/result$", reply_json(200, body))
    assert type(failure(document)) is client.InvalidOcrResponse


def test_refuses_results_with_too_many_pages(server: Scripted, configure: Any, document: Document) -> None:
    """B12: the limit is checked in the result, because only the server can count the pages of an Office file."""
    configure(server, etl_max_pages=1)
    assert failure(document).code == "too_many_pages"
