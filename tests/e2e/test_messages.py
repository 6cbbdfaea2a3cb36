"""Messages and states of the broker that make a Celery worker exit by default."""

import base64
import bz2
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from rest_framework.test import APIClient

from config.ops.doctor import workers as doctor
from config.platform import workers as heartbeats
from exports.models import Dataset
from tests.broker import queued, valkey
from tests.e2e.conftest import Workers
from tests.waiting import wait_until

CALL = json.dumps([[], {}, {}]).encode()


def send(queue: str, **content: Any) -> None:
    """Put a message into a queue, as a client with the broker's password could."""
    valkey().lpush(queue, json.dumps(message(queue, **content)))


def message(
    queue: str, *, body: bytes = CALL, content_type: str = "application/json", **headers: Any
) -> dict[str, Any]:
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "binary",
        "content-type": content_type,
        "headers": {"lang": "py", "task": "exports.reap", "id": "1", "root_id": "1", "parent_id": None, **headers},
        "properties": {
            "correlation_id": "1", "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
            "delivery_info": {"exchange": queue, "routing_key": queue}, "delivery_tag": f"tag {body!r} {content_type}",
        },
    }  # fmt: skip


@pytest.fixture
def metrics_folder(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the workers of the test count."""
    folder = workers.root / "metrics"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    return folder


def counters_in(folder: Path) -> CollectorRegistry:
    counters = CollectorRegistry()
    MultiProcessCollector(counters, str(folder))  # type: ignore[no-untyped-call]
    return counters


def dropped_messages(workers: Workers) -> list[dict[str, Any]]:
    return [json.loads(line) for line in workers.logs().splitlines() if '"message_dropped"' in line]


def export(api: APIClient) -> bool:
    """Run an export through the worker's queues."""
    body = {"dataset": "things", "filters": {"keys": ["A"], "dateFrom": "2024-01-01", "dateTo": "2024-01-01"}}
    path = api.post("/exports", body)["Location"]
    wait_until(lambda: api.get(path).json()["status"] == "success", limit=40)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content_type", "body", "headers"),
    [
        ("application/data", b"anything", {}),
        ("application/x-python-serialize", b"anything", {}),
        ("application/text", b"anything", {}),
        ("application/json", b"5", {}),
        ("application/json", CALL, {"task": ["a", "list"]}),
        ("application/json", CALL, {"timelimit": 5}),
    ],
)
def test_an_invalid_message_is_dropped(
    dataset: Dataset,
    api: APIClient,
    workers: Workers,
    metrics_folder: Path,
    *,
    content_type: str,
    body: bytes,
    headers: dict[str, Any],
) -> None:
    """Otherwise, each worker that received it would exit, and it would be redelivered to the next. An exception is
    logged and counted.
    """
    worker = workers.start(concurrency=1)
    for queue in ("exports", "maintenance"):
        send(queue, body=body, content_type=content_type, **headers)
    assert export(api)
    wait_until(lambda: queued("exports") == queued("maintenance") == valkey().hlen("unacked") == 0)
    assert worker.alive
    assert "anything" not in workers.logs()

    reason = "content" if content_type == "application/json" else "content_type"
    lines = dropped_messages(workers)
    assert [line["reason"] for line in lines] == [reason] * 2
    raised = [line for line in lines if line.get("error") and "worker_consumer.py" in str(line.get("exception"))]
    assert len(raised) == (2 if reason == "content" else 0)
    counters = counters_in(metrics_folder)
    assert counters.get_sample_value("sluice_messages_dropped_total", {"reason": reason}) == 2
    assert (counters.get_sample_value("sluice_caught_errors_total", {"place": "message"}) or 0) == len(raised)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["garbage", "number", "codec", "no tag", "bomb", "unacknowledged"])
def test_a_message_that_cannot_be_decoded_is_dropped(
    dataset: Dataset, api: APIClient, workers: Workers, metrics_folder: Path, kind: str
) -> None:
    """Otherwise, it would end the worker, and 758 compressed bytes would take 1.8 GB."""
    put_undecodable(kind)
    worker = workers.start(concurrency=1)
    assert export(api)
    put_undecodable(kind)
    assert export(api)
    wait_until(lambda: queued("exports") == valkey().hlen("unacked") == 0)
    assert worker.alive
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{worker.pid}/status").read_text())
    assert peak
    assert int(peak[1]) < 512 * 1024, f"{int(peak[1]) // 1024} MiB"

    lines = dropped_messages(workers)
    assert lines
    assert {line["reason"] for line in lines} == {"undecodable"}
    assert all(line["error"] for line in lines)
    assert SECRET not in workers.logs()
    counters = counters_in(metrics_folder)
    for metric, labels in (
        ("sluice_messages_dropped_total", {"reason": "undecodable"}),
        ("sluice_caught_errors_total", {"place": "message"}),
    ):
        assert counters.get_sample_value(metric, labels) == len(lines)


SECRET = "hunter2"


def put_undecodable(kind: str) -> None:
    if kind == "unacknowledged":
        valkey().hset("unacked", "a tag", f"{SECRET} {{")
        valkey().zadd("unacked_index", {"a tag": 1})
        return
    if kind == "bomb":
        send("exports", body=bz2.compress(b"\0" * 300_000_000), compression="application/x-bz2")
        return
    sent = message("exports", body=SECRET.encode())
    if kind == "codec":
        sent["properties"]["body_encoding"] = SECRET
    elif kind == "no tag":
        sent["properties"]["delivery_tag"] = [SECRET]
    texts = {"garbage": f"{SECRET} {{", "number": "5"}
    valkey().lpush("exports", texts.get(kind) or json.dumps(sent))


@pytest.mark.slow
def test_remote_control_is_off(dataset: Dataset, api: APIClient, workers: Workers) -> None:
    """Otherwise, a command through the broker could stop consumption, while `/readyz` shows no problem."""
    from config.celery import app

    workers.start(concurrency=1)
    assert export(api)
    app.control.cancel_consumer("exports", reply=False)
    app.control.shutdown()
    assert app.control.ping(timeout=1) == []
    assert export(api)


@pytest.mark.slow
def test_heartbeats_name_the_queues(workers: Workers, admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.start("exports,bundles", concurrency=3)
    wait_until(lambda: doctor.inspect_workers().children == 3)
    served = {queue for queue, names in doctor.inspect_workers().queues.items() if names}
    assert served == {"bundles", "exports"}
    pages: list[str] = []

    def shows_a_worker() -> bool:
        """Open the page. It listens for 2.4 s, and while the machine stalls, no heartbeat is sent."""
        monkeypatch.setattr(heartbeats, "snapshot", heartbeats.Snapshot())
        pages.append(" ".join(admin_client.get("/admin/workers").content.decode().split()))
        return bool(heartbeats.snapshot.workers)

    wait_until(shows_a_worker)
    page = pages[-1]
    (worker,) = heartbeats.snapshot.workers or []
    row = f'<th scope="row">{worker.name}</th><td>bundles, exports</td><td>0 of 3</td>'
    assert row in page
    assert "No worker consumes the queue webhooks: no webhook is delivered." in page
    assert "the queue exports" not in page


@pytest.mark.slow
def test_a_full_broker_pauses_a_worker(dataset: Dataset, api: APIClient, workers: Workers) -> None:
    """`noeviction`: writes are rejected while reads work. Otherwise, the worker would exit at each message."""
    worker = workers.start(concurrency=1)
    assert export(api)
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(5):
        send("exports", body=json.dumps([[], {}, {"n": number}]).encode())
    valkey().config_set("maxmemory", "1mb")
    try:
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: workers.logs().count("broker_full") >= 2, always=lambda: worker.alive)
    finally:
        valkey().config_set("maxmemory", "0")
    assert export(api)
    assert worker.pid == pid
