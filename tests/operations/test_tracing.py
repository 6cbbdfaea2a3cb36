"""Traces of real processes, received by a collector over HTTP.

Data that must not be in spans contains the word "pearl".
"""

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.processes import Web
from config.platform import workers
from etl.models import Task
from exports.models import Chunk, Dataset, Job
from tests.collector import Collector, Span, collector
from tests.e2e.conftest import Workers
from tests.e2e.test_metrics import ended
from tests.serving import serving, token_of
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLERS = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "pearl=pearl"}
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5
FUNCTION = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ BEGIN
    IF key = 'PEARL-RAISE' THEN RAISE EXCEPTION 'a pearl' USING ERRCODE = 'P0001'; END IF;
    RETURN QUERY SELECT 'row of pearls', i, effective_date FROM generate_series(1, 3) i;
    IF key = 'PEARL-LONG' THEN
        RETURN QUERY SELECT md5(i::text) || md5((i + 1)::text), i, effective_date FROM generate_series(1, 400000) i;
    END IF;
END $$
"""


@pytest.fixture
def collected() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture
def traced(collected: Collector, monkeypatch: pytest.MonkeyPatch) -> Collector:
    for name, value in {
        "TRACING": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "EXPORT_MAX_ATTEMPTS": "2",
        "EXPORT_BACKOFF_BASE_SECONDS": "0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return collected


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACING_PARENT_CIDRS", "127.0.0.0/8")


class Client:
    def __init__(self, web: Web, user: User) -> None:
        self.port, self.token = web.port, token_of(user)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=20)
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, given | {n.replace("_", "-"): v for n, v in headers.items()})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status < 400, text
        return json.loads(text)

    def submit(self, *keys: str, headers: dict[str, str] | None = None, **wanted: Any) -> str:
        items = [{"key": key, "effectiveDate": "2071-02-28"} for key in keys]
        body = {"dataset": "things", "items": items, **wanted}
        return str(self.request("POST", "/exports", body, **(headers or {}))["jobId"])

    def submit_document(self, text: bytes, headers: dict[str, str]) -> int:
        form = (
            b'--limit\r\nContent-Disposition: form-data; name="file"; filename="pearl.txt"\r\n'
            b"Content-Type: text/plain\r\n\r\n" + text + b"\r\n--limit--\r\n"
        )
        given = headers | {"Content-Type": "multipart/form-data; boundary=limit"}
        return int(self.request("POST", "/api/v1/etl/submit", form, **given)["task_id"])


@pytest.fixture
def web(traced: Collector, workers: Workers) -> Iterator[Web]:
    with serving(workers.root, workers.environment()) as running:
        yield running


@pytest.fixture
def client(web: Web, alice: User, dataset: Dataset, source_db: psycopg.Connection) -> Client:
    source_db.execute(FUNCTION)
    return Client(web, alice)


def one(spans: list[Span]) -> Span:
    assert len(spans) == 1, spans
    return spans[0]


def children(traced: Collector, span: Span) -> list[str]:
    return sorted(each.name for each in list(traced.spans) if each.parent == span.id)


# ---- One trace ------------------------------------------------------------------------------------------------------
def test_an_export_is_one_trace_from_its_caller_to_object_storage(
    trusting: None, traced: Collector, client: Client, workers: Workers
) -> None:
    workers.start(concurrency=2)
    job = client.submit("A", headers=CALLERS)
    wait_until(lambda: all(map(traced.named, ("completion", "chunk", "run exports.run_chunks", "POST /exports"))))
    request = one(traced.named("POST /exports"))
    published = one(traced.named("publish exports.run_chunks"))
    run = one(traced.named("run exports.run_chunks"))
    chunk = one(traced.named("chunk"))
    put = one([span for span in traced.spans if span.name == "S3 PutObject" and span.parent == chunk.id])
    completion = one(traced.named("completion", job_id=job))

    assert {span.trace for span in (request, published, run, chunk, put, completion)} == {TRACE}
    assert (request.parent, request.kind, request.service) == (SPAN, SERVER, "sluice-web")
    assert (published.parent, published.kind) == (request.id, PRODUCER)
    assert (run.parent, run.kind, run.service) == (published.id, CONSUMER, "sluice-worker")
    # The parent is the request, whichever message woke the worker. The link refers to that run.
    assert (chunk.parent, chunk.links) == (request.id, [(TRACE, run.id)])
    assert (put.kind, put.attributes["http.response.status_code"]) == (CLIENT, 200)
    assert completion.parent == request.id

    row = Chunk.objects.get()
    assert chunk.attributes == {
        "sluice.job_id": job, "sluice.chunk_id": row.pk, "sluice.attempt": 1,
        "sluice.outcome": "live", "sluice.rows": 3, "sluice.bytes": row.bytes,
    }  # fmt: skip
    assert request.attributes["http.route"] == "/exports"
    assert request.attributes["sluice.request_id"] == Job.objects.get().request_id
    assert Job.objects.get().traceparent == f"00-{TRACE}-{request.id}-01"


def test_a_document_is_one_trace(trusting: None, traced: Collector, client: Client, workers: Workers) -> None:
    workers.start("etl-ocr,etl-postprocess,maintenance", concurrency=2)
    task = client.submit_document(b"Hello.", CALLERS)
    wait_until(lambda: all(map(traced.named, ("POST /api/v1/etl/submit", "run etl.ocr", "run etl.postprocess"))))
    request = one(traced.named("POST /api/v1/etl/submit"))
    stages = [one(traced.named(f"stage {stage}", etl_task_id=task)) for stage in ("ocr", "postprocess")]
    assert all((stage.trace, stage.parent) == (TRACE, request.id) for stage in stages)
    assert [stage.attributes["sluice.outcome"] for stage in stages] == ["done", "done"]
    assert {"S3 GetObject", "S3 PutObject", "convert"} <= set(children(traced, stages[0])) | {
        name for span in traced.named("convert") for name in children(traced, span)
    }
    assert {span.trace for span in traced.spans} == {TRACE}
    assert {"run etl.ocr", "run etl.postprocess", "publish etl.ocr"} <= {span.name for span in traced.spans}


def test_each_chunk_is_in_the_trace_of_its_own_job(
    trusting: None, traced: Collector, client: Client, workers: Workers
) -> None:
    """After one wake-up message, one worker runs chunks of many jobs."""
    jobs = [client.submit(*(f"K{number}{n}" for n in range(5))) for number in range(4)]
    workers.start("exports,bundles", concurrency=1)
    wait_until(lambda: len(traced.named("chunk")) == 20 and len(traced.named("completion")) == 4)
    requests = {span.id: span for span in traced.named("POST /exports")}
    traces = {str(job.pk): job.traceparent for job in Job.objects.all()}
    assert len({span.trace for span in requests.values()}) == 4
    for span in traced.named("chunk") + traced.named("completion"):
        traceparent = traces[span.attributes["sluice.job_id"]]
        assert traceparent.startswith(f"00-{span.trace}-{span.parent}-")
        assert requests[span.parent].trace == span.trace
    assert {span.attributes["sluice.job_id"] for span in traced.named("chunk")} == set(jobs)


def test_a_wake_up_message_between_workers_carries_no_trace(
    trusting: None, traced: Collector, client: Client, workers: Workers
) -> None:
    """For example, the message for a retry: the worker that it wakes may find work of any user."""
    job = client.submit("PEARL-RAISE", headers=CALLERS)
    workers.start("exports,bundles", concurrency=1)
    wait_until(lambda: Job.objects.get(pk=job).status == "failed")
    wait_until(lambda: len(traced.named("chunk")) == 2)
    assert {span.trace for span in traced.named("chunk")} == {TRACE}
    wait_until(lambda: traced.named("publish exports.run_chunks") and traced.named("run exports.run_chunks"))
    one(traced.named("publish exports.run_chunks"))
    one(traced.named("run exports.run_chunks"))


def test_a_part_sent_by_another_thread_belongs_to_its_chunk_span(
    traced: Collector, client: Client, workers: Workers
) -> None:
    workers.start("exports", concurrency=1)
    client.submit("PEARL-LONG")
    wait_until(lambda: traced.named("chunk"))
    assert children(traced, one(traced.named("chunk"))) == [
        "S3 CompleteMultipartUpload", "S3 CreateMultipartUpload", *["S3 UploadPart"] * 4, "publish exports.complete_job"
    ]  # fmt: skip


def test_an_untrusted_trace_is_linked_and_not_continued(traced: Collector, client: Client) -> None:
    """Otherwise clients would control sampling, and add spans to other traces."""
    client.submit("A", headers=CALLERS)
    client.submit("B", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    wait_until(lambda: len(traced.named("POST /exports")) == 2)
    for span in traced.named("POST /exports"):
        assert span.trace != TRACE
        assert (span.parent, span.links) == ("", [(TRACE, SPAN)])


def test_the_sampler_is_the_standard_one(
    monkeypatch: pytest.MonkeyPatch, traced: Collector, workers: Workers, alice: User, dataset: Dataset
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("TRACING_PARENT_CIDRS", "127.0.0.0/8")
    workers.start(concurrency=1)
    with serving(workers.root, workers.environment()) as web:
        Client(web, alice).submit("A", headers=CALLERS)
        wait_until(ended)
    assert Job.objects.get().traceparent.endswith("-00")
    assert traced.spans == []


# ---- Private data ---------------------------------------------------------------------------------------------------
def test_spans_hold_no_private_data(trusting: None, traced: Collector, client: Client, workers: Workers) -> None:
    workers.start("exports,bundles,maintenance,etl-ocr,etl-postprocess", concurrency=2)
    headers = CALLERS | {"User-Agent": "pearl-agent", "Cookie": "sessionid=pearlpearl", "X-Request-ID": "an-id"}
    job = client.submit("PEARL-A", "PEARL-B", headers=headers, delivery="zip")
    client.submit("PEARL-RAISE", headers=headers)
    client.submit_document(b"A pearl.", headers)
    wait_until(lambda: ended() and not Task.objects.filter(status="pending").exists())
    link = client.request("GET", f"/exports/{job}", **headers)["receipt"]["signedUrl"]
    connection = http.client.HTTPConnection(LOOPBACK, client.port, timeout=20)
    file = f"/exports/{job}/files/PEARL-A/2071-02-28"
    for path in (link.partition(f":{client.port}")[2], file, "/pearl?pearl=pearl"):
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
    connection.close()
    wait_until(lambda: traced.named("chunk", outcome="failed") and traced.named("stage postprocess"))
    wait_until(lambda: traced.named("GET"))

    failed = one(traced.named("chunk", outcome="failed"))
    assert (failed.failed, failed.attributes["error.type"]) == (True, "EXPORT_SOURCE_ERROR")
    paths = set(Chunk.objects.values_list("path", flat=True)) | set(Task.objects.values_list("document_key", flat=True))
    secrets = {client.token, link.rpartition("token=")[2], os.environ["S3_SECRET_ACCESS_KEY"], *paths}
    secrets |= {os.environ["S3_ACCESS_KEY_ID"], "2071"}
    for body in traced.bodies:
        payload = body.decode("latin-1")
        assert "pearl" not in payload.lower()
        assert not [secret for secret in secrets if secret in payload]


# ---- The log --------------------------------------------------------------------------------------------------------
def test_log_lines_include_their_trace(trusting: None, traced: Collector, client: Client, workers: Workers) -> None:
    workers.start(concurrency=1)
    client.submit("A", headers=CALLERS)

    def actions() -> set[str]:
        text = (workers.root / "logs" / "web.log").read_text() + workers.logs()
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return {line["action"] for line in lines if line.get("trace_id") == TRACE}

    # The end of a job is committed before its line is logged.
    wait_until(lambda: {"job_accepted", "request_finished", "chunk_done", "job_succeeded"} <= actions())


# ---- Collector outages ----------------------------------------------------------------------------------------------
@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never responds."""
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen(50)
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}"


@pytest.fixture(params=["silent", "unreachable"])
def faulty_collector(
    request: pytest.FixtureRequest, silent: str, traced: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = silent if request.param == "silent" else "http://127.0.0.1:9/pearl"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def test_an_unresponsive_collector_breaks_nothing_and_floods_no_log(
    faulty_collector: None, workers: Workers, client: Client
) -> None:
    worker = workers.start(concurrency=2)
    for _ in range(5):
        client.submit(*(f"K{n}" for n in range(10)), reuse="never")
    wait_until(ended)
    wait_until(lambda: "traces_not_sent" in workers.logs())
    stop(worker)
    text = (workers.root / "logs" / "web.log").read_text() + workers.logs()
    assert Chunk.objects.filter(status="done").count() == 50
    # From web and two child processes, each at most once a minute.
    assert len(re.findall("traces_not_sent", text)) <= 6
    assert "pearl" not in text
    assert "opentelemetry" not in text


def stop(worker: Process) -> None:
    """Stop the worker when it is idle: if SIGTERM arrives while a task is ending, Celery sleeps for 20 s."""
    wait_until(lambda: (found := workers.listen(5)) and not any(worker.busy for worker in found))
    worker.send_stop_signal()
    worker.wait(45)


def test_a_worker_flushes_its_spans_before_it_exits(
    traced: Collector, client: Client, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    worker = workers.start(concurrency=2)
    client.submit(*(f"K{n}" for n in range(10)))
    wait_until(ended)
    assert traced.named("chunk") == []
    stop(worker)
    assert len(traced.named("chunk")) == 10
