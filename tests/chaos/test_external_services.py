"""External OCR servers and language models with faults. Row 20 of docs/reliability.md.

In each test, one worker handles all faults. The document's text selects the fault.
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from etl.models import Task
from tests.chaos.documents import ALL, REAL, code_of, markdown_of, settle, submit
from tests.chaos.site import Site
from tests.chaos.watch import memory
from tests.integration import openai_server
from tests.integration.etl_factories import make_rule
from tests.integration.llm_factories import INVOICE
from tests.integration.mineru_servers import Call, Job, V4Server, pack, reply_json, reply_zip, serving
from tests.integration.openai_server import ModelServer, Request, data_reply, problem, text_reply
from tests.integration.openai_server import Reply as ModelReply
from tests.integration.receiver import Reply, answer
from tests.integration.test_llm import drip, hang
from tests.integration.test_mineru import GIGABYTES, bomb

STAGE_SECONDS, CALL_SECONDS, ATTEMPTS = 10, 1.5, 2
# The duration of all attempts with their pauses, plus a tolerance for a busy machine.
MAX_SECONDS = ATTEMPTS * (STAGE_SECONDS + 1) + 30
SHORT = {
    **REAL,
    "ETL_TASK_TIMEOUT": STAGE_SECONDS,
    "ETL_OCR_MAX_ATTEMPTS": ATTEMPTS,
    "ETL_POSTPROCESS_MAX_ATTEMPTS": ATTEMPTS,
    "ETL_RETRY_BACKOFF_MAX_SECONDS": 1,
}
MAX_MEMORY = 200  # MB


# ---- OCR ------------------------------------------------------------------------------------------------------------
ARCHIVES: dict[bytes, Callable[[], bytes]] = {
    b">garbage result<": lambda: b"PK but not really",
    b">climbs out<": lambda: pack({"markdown.md": "x", "../../etc/cron.d/evil": "x"}),
    b">bomb<": cache(lambda: bomb("markdown.md", claimed=GIGABYTES)),
    b">lying bomb<": cache(lambda: bomb("markdown.md", claimed=1_000)),
    b">nothing<": lambda: pack({"markdown.md": " \n"}),
}


class FaultyMinerU(V4Server):
    """A MinerU server that injects the fault that a document names: `<html>500</html>`."""

    stopped: threading.Event

    def work(self, call: Call) -> Reply:
        if (call.method, call.path) == ("POST", "/v1/tasks"):
            document = call.form["files"][1]
            for trouble, reply in self.submission_faults().items():
                if f">{trouble}<".encode() in document:
                    return reply
        return super().work(call)

    def submission_faults(self) -> dict[str, Reply]:
        return {
            "500": answer(500, b"oops"),
            "503": reply_json(503, {"error": "later"}, Retry_After="3600"),
            "429": reply_json(429, {"error": "slow down"}, Retry_After="1"),
            "401": answer(401),
            "never": self.never_respond,
            "garbage": answer(200, b"<html>It works!</html>"),
            "cut off": self.hang_up,
            "elsewhere": answer(302, Location="http://127.0.0.2:9/"),
        }

    def job_reply(self, job: Job, call: Call, *, is_result: bool) -> Reply:
        if b">stuck<" in job.document and not is_result:
            job.polls = 1_000_000
        if b">endless<" in job.document and is_result:
            return self.endless
        archive = next((make() for mark, make in ARCHIVES.items() if is_result and mark in job.document), None)
        if archive:
            return reply_zip(archive)
        return super().job_reply(job, call, is_result=is_result)

    def never_respond(self, _to: BaseHTTPRequestHandler) -> None:
        self.stopped.wait(120)

    def hang_up(self, to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\n{")
        to.close_connection = True

    def endless(self, to: BaseHTTPRequestHandler) -> None:
        """Send an endless result, slowly."""
        to.send_response(200)
        to.send_header("Content-Type", "application/zip")
        to.end_headers()
        while not self.stopped.wait(0.05):
            to.wfile.write(b"PK\x03\x04")


OCR_ERRORS = {
    "500": "provider_unavailable",
    "503": "provider_unavailable",
    "429": "provider_unavailable",
    "401": "provider_unavailable",
    "cut off": "provider_unavailable",
    "elsewhere": "provider_unavailable",
    "never": "ocr_timeout",
    "stuck": "ocr_timeout",
    "endless": "ocr_timeout",
    "garbage": "ocr_failed",
    "garbage result": "ocr_failed",
    "climbs out": "ocr_failed",
    "bomb": "ocr_failed",
    "lying bomb": "ocr_failed",
    "nothing": "empty_document",
}


@pytest.fixture
def mineru() -> Iterator[FaultyMinerU]:
    server = FaultyMinerU()
    server.stopped = threading.Event()
    with serving(server):
        yield server
        server.stopped.set()


@pytest.mark.timeout(180)
def test_every_ocr_server_fault_maps_to_its_documented_error(site: Site, mineru: FaultyMinerU) -> None:
    """20: MinerU responds with 500, 429, garbage, a zip with path traversal or 10 GB of content, or not at all."""
    settings = {**SHORT, "ETL_OCR_PROVIDER": "mineru", "ETL_MINERU_URL": mineru.base, "ETL_MINERU_PROTOCOL": "v4"}
    site.start_web(**settings)
    site.start_worker(ALL, children=6, **settings)
    site.start_beat(**settings)
    rule = make_rule(site.owner)
    warm = submit(site, "<html>good</html>", name="a.html", rule=rule)
    settle(warm)
    pids = sorted(site.children())

    began = time.monotonic()
    tasks = {name: submit(site, f"<html>{name}</html>", name="a.html", rule=rule) for name in OCR_ERRORS}
    settle(*tasks.values(), limit=2 * MAX_SECONDS)
    site.record_duration("20: fifteen faults of an OCR server", time.monotonic() - began)

    assert {name: code_of(task) for name, task in tasks.items()} == {
        name: (code, "ocr") for name, code in OCR_ERRORS.items()
    }
    assert {name: seconds for name, task in tasks.items() if (seconds := duration_of(task)) > MAX_SECONDS} == {}
    assert sorted(site.children()) == pids, "a worker process crashed"
    assert max(map(memory, pids)) < MAX_MEMORY
    after = submit(site, "<html>good</html>", name="a.html", rule=rule)
    settle(after)
    assert "Invoice 17" in markdown_of(after)


def duration_of(task: Task) -> float:
    row = Task.objects.get(pk=task.pk)
    return (row.updated_at - row.created_at).total_seconds()


# ---- The model ------------------------------------------------------------------------------------------------------
GOOD = {"number": "INV-2024-17", "total": 1234.5}
MODEL_FAULTS: dict[str, tuple[ModelReply, str]] = {
    "prose": (text_reply("I am sorry, here is a poem about invoices instead."), "schema_validation"),
    "misfit": (data_reply({"number": 17}), "schema_validation"),
    "half": (text_reply('{"data": {"number": "INV-20'), "schema_validation"),
    "truncated": (text_reply('{"data": {"number": "INV-20', finish="length"), "llm_truncated"),
    "filtered": (text_reply("", finish="content_filter"), "llm_refused"),
    "refused": (text_reply(None, refusal="I cannot help with that."), "llm_refused"),
    "no choice": (ModelReply({"id": "1", "object": "chat.completion", "choices": []}), "llm_invalid_response"),
    "empty": (text_reply(""), "llm_invalid_response"),
    "no JSON": (ModelReply(b"<html>It works!</html>"), "llm_invalid_response"),
    "429": (problem(429, headers={"Retry-After": "1"}), "llm_unavailable"),
    "500": (problem(500), "llm_unavailable"),
    "401": (problem(401), "llm_unavailable"),
    "never": (ModelReply(action=hang), "llm_unavailable"),
    "drips": (ModelReply(action=drip), "llm_unavailable"),
    "floods": (ModelReply(b" " * 20_000_000), "llm_invalid_response"),
    "too long": (problem(400, "This model's maximum context length is 4096 tokens."), "document_too_long"),
}


@pytest.mark.timeout(180)
def test_every_model_fault_maps_to_its_documented_error(site: Site, models: ModelServer) -> None:
    """20: the model responds with prose, truncated JSON, nothing, 429, or endless output, or does not respond."""

    def reply(request: Request) -> ModelReply:
        return next(
            (reply for name, (reply, _) in MODEL_FAULTS.items() if f"({name})" in request.message("user")),
            data_reply(GOOD),
        )

    models.set_default(reply)
    settings: dict[str, Any] = {
        **SHORT,
        "ETL_LLM_BASE_URL": models.url,
        "ETL_LLM_MODEL": openai_server.MODEL,
        "ETL_LLM_TIMEOUT_SECONDS": CALL_SECONDS,
    }
    site.start_web(**settings)
    site.start_worker(ALL, children=4, **settings)
    site.start_beat(**settings)
    rule = make_rule(site.owner, mode="llm", name="invoices", json_schema=INVOICE)
    settle(*(submit(site, "(good)", rule=rule) for _ in range(4)))
    pids = sorted(site.children())

    began = time.monotonic()
    tasks = {name: submit(site, f"Invoice INV-2024-17 ({name})", rule=rule) for name in MODEL_FAULTS}
    settle(*tasks.values(), limit=2 * MAX_SECONDS)
    site.record_duration("20: sixteen faults of a model", time.monotonic() - began)

    assert {name: code_of(task) for name, task in tasks.items()} == {
        name: (code, "postprocess") for name, (_, code) in MODEL_FAULTS.items()
    }
    assert {name: seconds for name, task in tasks.items() if (seconds := duration_of(task)) > MAX_SECONDS} == {}
    assert sorted(site.children()) == pids, "a worker process crashed"
    assert max(map(memory, pids)) < MAX_MEMORY
    after = submit(site, "Invoice INV-2024-17 (good)", rule=rule)
    settle(after)
    row = Task.objects.get(pk=after.pk)
    assert row.result
    assert row.result["data"] == GOOD
