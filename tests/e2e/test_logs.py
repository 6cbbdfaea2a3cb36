"""Absence of private data from the logs of all processes in a full run. A28.

Private data contains the word "pearl" in some form, or is collected in `Secrets` as it occurs.
"""

import http.client
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from django.contrib.auth.models import User
from knox.models import AuthToken

from config.celery import app
from config.dev.stack.ports import LOOPBACK
from config.dev.stack.process import Process
from config.dev.stack.processes import Web
from exports.models import Chunk, Dataset, Delivery, File, Job, Receipt, Tick
from tests.e2e.conftest import Workers
from tests.e2e.test_metrics import ended
from tests.integration.receiver import Receiver, answer, receiver
from tests.serving import serving
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("empty_bucket")

# Rows, and errors that quote rows: raised by the function, by a cast, and by missing permissions.
FUNCTION = """
CREATE OR REPLACE FUNCTION data.rows_for(key text, effective_date date) RETURNS TABLE (k text, n int, d date)
LANGUAGE plpgsql AS $$ #variable_conflict use_column
BEGIN
    IF key = 'PEARL-RAISE' THEN
        RAISE EXCEPTION 'message with a pearl' USING DETAIL = 'Row: (pearl)', HINT = 'Try pearl.', ERRCODE = 'P0001';
    ELSIF key = 'PEARL-CAST' THEN
        RETURN QUERY SELECT key, ('pearl' || key)::int, effective_date;
    ELSIF key = 'PEARL-DENIED' THEN
        RAISE EXCEPTION 'permission denied for table pearls' USING ERRCODE = '42501';
    END IF;
    RETURN QUERY SELECT 'row of pearls ' || n, n, effective_date FROM generate_series(1, 3) n;
    IF key = 'PEARL-SLOW' THEN PERFORM pg_sleep(60); END IF;
END $$
"""
FAILING = ("PEARL-RAISE", "PEARL-CAST", "PEARL-DENIED")
DATES = re.compile(r"207[0-9]-?/?[01]\d-?/?[0-3]\d")  # the dates of the requests, in any format
IDS = {"request_id", "job_id", "chunk_id"}


@dataclass
class Secrets:
    """Values of this run that must not occur in any line."""

    values: set[str] = field(default_factory=set)

    def add(self, *values: str) -> None:
        assert all(len(value) > 5 for value in values)
        self.values.update(values)

    def add_url(self, url: str) -> None:
        parts = urlsplit(url)
        values = [value for several in parse_qs(parts.query).values() for value in several]
        self.add(url, parts.query, *(value for value in values if len(value) > 20))


@dataclass
class Client:
    web: Web
    token: str
    secrets: Secrets

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Message]:
        """Return status, body, and headers of a response. A body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(LOOPBACK, self.web.port, timeout=20)
        sent_headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "User-Agent": "pearl-agent/1.0",
            "Cookie": "sessionid=pearlpearlpearl",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, sent_headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        is_json = "json" in response.headers.get("Content-Type", "")
        return response.status, json.loads(text) if is_json and text else text, response.headers

    def submit(self, **request: Any) -> str:
        status, accepted, headers = self.request("POST", "/exports", {"dataset": "things", **request})
        assert status == 202, accepted
        assert headers["X-Request-ID"]
        return f"/exports/{accepted['jobId']}"


@pytest.fixture
def web(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """The web process. Also sets variables for all processes, which log at the level DEBUG, so every line is logged."""
    variables = {
        "LOG_LEVEL": "DEBUG",
        "EXPORT_MAX_ATTEMPTS": "2",
        "EXPORT_BACKOFF_BASE_SECONDS": "0.1",
        "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with serving(tmp_path, workers.environment()) as running:
        yield running


@pytest.fixture
def secrets(dataset: Dataset, source_db: psycopg.Connection) -> Secrets:
    source_db.execute(FUNCTION)
    found = Secrets()
    found.add("row of pearls", *(os.environ[name] for name in SECRET_VARIABLES if name in os.environ))
    for name in ("DATABASE_URL", "SOURCE_DATABASE_URL", "REDIS_URL"):
        found.add(str(urlsplit(os.environ[name]).password))
    return found


SECRET_VARIABLES = (
    *("SECRET_KEY", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"),
    *("S3_DOWNLOAD_ACCESS_KEY_ID", "S3_DOWNLOAD_SECRET_ACCESS_KEY"),
)


@pytest.fixture
def client(web: Web, alice: User, secrets: Secrets) -> Client:
    token = str(AuthToken.objects.create(alice)[1])
    secrets.add(token)
    return Client(web, token, secrets)


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    """A receiver that refuses the first delivery with a response that contains private data."""
    with receiver() as running:
        running.replies.append(answer(500, b"no pearls please", X_Pearl="pearl"))
        yield running


# ---- A full run ----------------------------------------------------------------------------------------------------


def register_webhooks(client: Client, hooks: Receiver) -> None:
    url = f"{hooks.url}/pearl-path-token?pearl=pearl"
    status, created, _ = client.request(
        "POST", "/exports/webhooks", {"url": url, "events": ["export.succeeded", "export.failed"]}
    )
    assert status == 201, created
    client.secrets.add(created["secret"], created["secret"].removeprefix("whsec_"), url)
    client.request("POST", f"/exports/webhooks/{created['id']}/test")
    client.request("POST", "/exports/webhooks", {"url": "http://pearl:pearl@10.0.0.1/pearl", "events": ["pearl"]})


def download(client: Client, job: str) -> None:
    """Use a link twice, with invalid tokens, and from another program. Renew it, and get a single file."""
    _, shown, _ = client.request("GET", job)
    url = shown["receipt"]["signedUrl"]
    client.secrets.add_url(url)
    path = url.partition(f":{client.web.port}")[2]
    assert client.request("HEAD", path)[0] == 200
    assert client.request("GET", path, Sec_Purpose="prefetch")[0] == 204
    status, _, headers = client.request("GET", path)
    assert status == 302
    client.secrets.add_url(headers["Location"])
    assert client.request("GET", path)[0] == 403
    assert client.request("GET", path[:-3] + "AAA")[0] == 403
    assert client.request("GET", f"{job}/download?token=pearl-token")[0] == 403
    assert client.request("GET", path, User_Agent="another pearl")[0] == 403
    status, fresh, _ = client.request("POST", f"{job}/link")
    assert status == 200
    client.secrets.add_url(fresh["signedUrl"])
    status, _, headers = client.request("GET", f"{job}/files/PEARL-KEY/2071-03-04")
    assert status == 302
    client.secrets.add_url(headers["Location"])


def send_invalid_requests(client: Client) -> None:
    """Send invalid requests. Only the responses may quote them."""
    bad = {"dataset": "pearl", "items": [{"key": "../pearl", "effectiveDate": "2071-13-32"}], "pearl": "pearl"}
    for body in (bad, {**bad, "format": "pearl"}, ["pearl"], b'{"pearl": ', b"\xffpearl"):
        assert client.request("POST", "/exports", body)[0] == 400
    client.request("POST", "/exports", b"pearl=pearl", Content_Type="application/x-pearl")
    for path in ("/exports?cursor=pearl", "/exports?status=pearl", "/exports?limit=pearl", "/pearl/pearl?pearl=pearl"):
        assert client.request("GET", path)[0] in (400, 404)
    client.secrets.add("cGVhcmw6cGVhcmxz")  # pearl:pearls
    for token in ("Bearer slc_pearlpearlpearlpearlpearlpearl", "Basic cGVhcmw6cGVhcmxz", "Pearl pearl"):
        assert client.request("GET", "/exports", Authorization=token)[0] == 401
    client.request("GET", "/livez", X_Request_ID="a pearl, not an id")
    client.request("GET", "/livez", Host="pearl.example.com")
    form = "application/x-www-form-urlencoded"
    client.request("POST", "/admin/login/", b"username=pearl&password=pearls", Content_Type=form)
    item = {"key": "PEARL-KEY", "effectiveDate": "2071-03-04"}
    for items in ([item], [item, item], [item, {**item, "key": "PEARL-OTHER"}]):
        client.request("POST", "/exports", {"dataset": "things", "items": items}, Idempotency_Key="pearl-idempotency")


def kill_and_reap_worker(client: Client, workers: Workers) -> None:
    """Kill a worker during a call, have its chunk reaped, and cancel the job while another worker holds it."""
    victim = workers.start("exports", concurrency=1)
    job = client.submit(items=[{"key": "PEARL-SLOW", "effectiveDate": "2071-12-24"}])
    wait_until(lambda: Chunk.objects.filter(key="PEARL-SLOW", status="running").exists())
    victim.kill()
    wait_until(lambda: "lease_expired" in workers.logs())
    workers.start(concurrency=2)
    wait_until(lambda: Chunk.objects.filter(key="PEARL-SLOW", status="running").exists())
    assert client.request("POST", f"{job}/cancel")[0] == 200
    wait_until(lambda: "lease_lost" in workers.logs())


def run(client: Client, workers: Workers, hooks: Receiver) -> None:
    workers.start("maintenance")
    workers.start_beat()
    register_webhooks(client, hooks)
    kill_and_reap_worker(client, workers)
    item = {"key": "PEARL-KEY", "effectiveDate": "2071-03-04"}
    job = client.submit(items=[item, {**item, "key": "PEARL-TOO"}])
    client.submit(filters={"keys": ["PEARL-A", "PEARL-B"], "dateFrom": "2072-05-06", "dateTo": "2072-05-08"})
    client.submit(items=[{**item, "key": key} for key in FAILING])
    wait_until(ended)
    client.submit(items=[item, {**item, "key": "PEARL-NEW"}], delivery="manifest")
    wait_until(ended)
    assert [*Job.objects.values_list("status", flat=True).order_by("status")] == [
        "cancelled", "failed", "success", "success", "success"
    ]  # fmt: skip
    download(client, job)
    send_invalid_requests(client)
    for path in (job, f"{job}/chunks", f"{job}/events", "/exports", "/exports/limits", "/exports/datasets"):
        assert client.request("GET", path)[0] == 200
    wait_until(lambda: ended() and not Delivery.objects.filter(status="pending").exists())
    for task in ("sweep", "purge"):
        app.send_task(f"exports.{task}")
        wait_until(Tick.objects.filter(name=task).exists)


def add_paths(secrets: Secrets) -> None:
    for path in Chunk.objects.values_list("path", flat=True):
        secrets.add(path, path.rpartition("/")[2])
    secrets.add(*Receipt.objects.values_list("object_key", flat=True), "_receipts/")
    secrets.add(*File.objects.values_list("sha256", flat=True))


# ---- The log lines -------------------------------------------------------------------------------------------------


def stop_all(processes: list[Process]) -> None:
    for process in processes:
        process.send_stop_signal()
    for process in processes:
        process.stop()


@pytest.mark.slow
def test_logs_hold_no_private_data(client: Client, workers: Workers, hooks: Receiver) -> None:
    """A28: every line of every process, from start to exit, is JSON with an action and without private data."""
    run(client, workers, hooks)
    add_paths(client.secrets)
    client.web.stop()
    stop_all(workers.started)

    logs = {path.name: path.read_text() for path in (workers.root / "logs").iterdir()}
    assert logs.keys() == {"web.log", "beat.log", "worker0.log", "worker2.log", "worker3.log"}
    for name, text in logs.items():
        assert_nothing_private(name, text, client.secrets)
    lines = [json.loads(line) for text in logs.values() for line in text.splitlines()]
    assert all(line["action"] and line["level"] and line["timestamp"] and line["logger"] for line in lines)
    assert_traceable(lines)
    assert {"debug", "info"} <= {line["level"] for line in lines}


def assert_nothing_private(name: str, text: str, secrets: Secrets) -> None:
    for line in text.splitlines():
        assert "pearl" not in line.lower(), f"{name}: {line}"
        assert not DATES.search(without_ids(line)), f"{name}: {line}"
        for secret in secrets.values:
            assert secret not in line, f"{name}: {secret}: {line}"


def without_ids(line: str) -> str:
    """Remove random IDs."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{16}\b", "", line)


def assert_traceable(lines: list[dict[str, Any]]) -> None:
    """Assert that the lines of a job or chunk can be found by its IDs."""
    by_action: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_action.setdefault(line["action"], []).append(line)
    for action in ("chunk_done", "chunk_retrying", "chunk_failed", "lease_lost"):
        assert all(line.keys() >= IDS for line in by_action[action]), action
    for action in ("job_accepted", "job_succeeded", "job_failed", "job_cancelled"):
        assert all(line.keys() >= IDS - {"chunk_id"} for line in by_action[action]), action
    assert all(line.keys() >= IDS - {"request_id"} for line in by_action["lease_expired"])
    chunks = dict(Chunk.objects.values_list("id", "job_id"))
    requests = {str(job_id): request_id for job_id, request_id in Job.objects.values_list("job_id", "request_id")}
    for line in by_action["chunk_done"] + by_action["chunk_failed"]:
        assert line["job_id"] == str(chunks[line["chunk_id"]])
        assert line["request_id"] == requests[line["job_id"]]
    assert {line["code"] for line in by_action["chunk_failed"]} == {"EXPORT_SOURCE_ERROR"}
    assert {"webhook_delivered", "webhook_failed", "request_finished"} <= by_action.keys()
