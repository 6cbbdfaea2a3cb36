"""Error reports of real processes, received by a fake Sentry over HTTP.

Data that must not be reported contains the word "pearl".
"""

import gzip
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from celery import current_app
from django.contrib.auth.models import User

from config.dev.stack.ports import LOOPBACK
from config.dev.stack.processes import Web
from tests.e2e.conftest import Workers
from tests.serving import serving, token_of
from tests.waiting import wait_until

KEY = "0123456789abcdef0123456789abcdef"


@dataclass
class Ingest:
    dsn: str
    bodies: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def events_of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["transaction"] == name]


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/api/7/envelope/"
            assert KEY in self.headers["X-Sentry-Auth"]
            running.bodies.append(body.decode())
            _envelope, *rest = body.splitlines()
            for head, item in zip(rest[::2], rest[1::2], strict=True):
                assert json.loads(head)["type"] == "event"
                running.events.append(json.loads(item))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    running = Ingest(f"http://{KEY}@{LOOPBACK}:{server.server_port}/7")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield running
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def web(ingest: Ingest, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("SENTRY_DSN", ingest.dsn)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.broken_settings")
    with serving(workers.root, workers.environment()) as running:
        yield running


def request_status(web: Web, method: str, path: str, token: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, web.port, timeout=20)
    headers = {"User-Agent": "pearl", "Cookie": "sessionid=pearlpearl", "Authorization": f"Bearer {token}"}
    connection.request(method, path, body, {**headers, "Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_an_error_is_reported_once_without_private_data(
    web: Web, ingest: Ingest, workers: Workers, alice: User
) -> None:
    token = token_of(alice)
    workers.start("maintenance", concurrency=1)
    assert request_status(web, "GET", "/broken/pearl?pearl=pearl", token) == 500
    current_app.send_task("tests.complain")
    current_app.send_task("tests.crash", kwargs={"word": "pearl"})
    # Expected errors: refusals of all kinds, and attempts that are retried.
    assert request_status(web, "POST", "/exports", token, b'{"dataset": "pearl"}') == 400
    assert request_status(web, "POST", "/exports", token, b"{pearl") == 400
    assert request_status(web, "GET", "/exports/pearl", token) == 404
    assert request_status(web, "GET", "/exports", "slc_pearl") == 401
    wait_until(lambda: ingest.events_of("tests.crash") and ingest.events_of("request_failed"))
    web.stop()
    for worker in workers.started:
        worker.send_stop_signal()
        worker.wait(45)

    assert sorted(event["transaction"] for event in ingest.events) == ["request_failed", "tests.crash"]
    for event in ingest.events:
        [error] = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ZeroDivisionError", "")
        frame = error["stacktrace"]["frames"][-1]
        assert (frame["function"], frame["in_app"]) == ("crash", True)
        assert "vars" not in frame
        assert not {"request", "user", "breadcrumbs", "extra", "modules"} & {name for name in event if event[name]}
    of_view, of_task = (ingest.events_of(name)[0] for name in ("request_failed", "tests.crash"))
    assert of_view["tags"]["request_id"]
    assert (of_task["tags"]["task"], of_task["tags"]["action"]) == ("tests.crash", "unexpected_error")
    for body in ingest.bodies:
        report = body.replace("pearl of {word}", "")  # a line of the source
        assert "pearl" not in report.lower()
        assert token not in report
    log = (workers.root / "logs" / "web.log").read_text() + workers.logs()
    assert KEY not in log
    assert "sentry" not in log


def test_a_sentry_outage_breaks_nothing_and_floods_no_log(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, alice: User
) -> None:
    monkeypatch.setenv("SENTRY_DSN", f"http://{KEY}@127.0.0.1:9/7")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.broken_settings")
    with serving(workers.root, workers.environment()) as web:
        for _ in range(20):
            assert request_status(web, "GET", "/broken/pearl", token_of(alice)) == 500
    log = (workers.root / "logs" / "web.log").read_text()
    assert log.count("request_failed") == 20
    assert "sentry" not in log
    assert KEY not in log
