"""The health check of workers with RabbitMQ as the broker, and that of RabbitMQ in docker/compose.yaml."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.dev.stack import ports, processes
from config.dev.stack.process import Process
from tests.operations.compose import DOCKER, SERVICES
from tests.operations.rabbitmq import RabbitMQ, running, scripts
from tests.waiting import wait_until


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[RabbitMQ]:
    with running(tmp_path) as server:
        yield server


@pytest.fixture
def worker(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[Process]:
    """A worker that reads the broker's URL from a file, as in compose.yaml."""
    file = tmp_path / "broker"
    file.write_text(f"{rabbitmq.url}\n")
    environment = {**os.environ, "CELERY_BROKER_URL": "", "CELERY_BROKER_URL_FILE": str(file)}
    process = processes.worker("checked", queues="nothing", concurrency=1, root=tmp_path, environment=environment)
    process.start()
    yield process
    process.kill()


def check_health(worker: Process) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DOCKER / "worker_health.py")]
    return subprocess.run(command, env=worker.environment, check=False, capture_output=True, text=True, timeout=60)


def test_the_check_passes_only_while_the_worker_runs_and_leaves_no_queue(rabbitmq: RabbitMQ, worker: Process) -> None:
    wait_until(lambda: check_health(worker).returncode == 0, limit=120)
    worker.kill()
    failed = check_health(worker)

    assert failed.returncode == 1
    assert "no heartbeat of this worker within 8 seconds" in failed.stderr
    assert "health." not in rabbitmq.ctl("list_queues", "name")


def test_the_check_uses_the_second_broker_when_the_first_is_down(rabbitmq: RabbitMQ, worker: Process) -> None:
    [port] = ports.free(1)
    unreachable = f"amqp://sluice:password@127.0.0.1:{port}//"
    wait_until(lambda: check_health(worker).returncode == 0, limit=120)
    Path(worker.environment["CELERY_BROKER_URL_FILE"]).write_text(f"{unreachable};{rabbitmq.url}\n")

    wait_until(lambda: check_health(worker).returncode == 0, limit=120)
    worker.kill()
    assert "seconds: " in check_health(worker).stderr


def test_the_compose_broker_check_passes_while_it_listens(rabbitmq: RabbitMQ) -> None:
    """Unchanged, except for the port and the node name."""
    kind, check = SERVICES["rabbitmq"]["healthcheck"]["test"]
    program = f"{scripts() / 'rabbitmq-diagnostics'} --node {rabbitmq.node}"
    script = check.replace("5672", str(rabbitmq.port)).replace("rabbitmq-diagnostics", program)

    def passes() -> bool:
        return subprocess.run(["sh", "-c", script], check=False, env=rabbitmq.environment()).returncode == 0

    assert kind == "CMD-SHELL"
    assert script.count(program) == 2
    assert passes()
    rabbitmq.started().stop()
    assert not passes()
