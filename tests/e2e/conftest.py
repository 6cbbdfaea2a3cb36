"""Sluice processes on the test database: real prefork workers and a real beat."""

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from config.dev.stack import process_tree, processes
from config.dev.stack.process import Process
from config.dev.stack.processes import Web
from tests import process_diagnostics
from tests.broker import lose_messages
from tests.serving import serving, variables

# Short, so that tests can wait for recovery, which takes at most one lease and one reaper interval. Long enough for a
# machine that stalls for seconds: a lease is renewed after each third of its duration.
LEASE_SECONDS, REAPER_SECONDS = 9, 1
SHORT_LEASES = {
    "EXPORT_LEASE_SECONDS": str(LEASE_SECONDS),
    "EXPORT_REAPER_SECONDS": str(REAPER_SECONDS),
    "ETL_LEASE_SECONDS": str(LEASE_SECONDS),
    "ETL_RECOVERY_SECONDS": str(REAPER_SECONDS),
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.failed and isinstance(running := getattr(item, "funcargs", {}).get("workers"), Workers):
        report.sections.append(("Processes", running.described()))
    return report


@dataclass
class Workers:
    """Workers and beat, stopped at the end of the test."""

    root: Path
    started: list[Process] = field(default_factory=list)

    def start(self, queues: str = "exports,bundles,webhooks,maintenance", *, concurrency: int = 2) -> Process:
        name = f"worker{len(self.started)}"
        worker = processes.worker(
            name, queues=queues, concurrency=concurrency, root=self.root, environment=self.environment()
        )
        worker.grace_seconds = 40
        return self._run(worker)

    def start_beat(self) -> Process:
        return self._run(processes.beat(root=self.root, environment=self.environment()))

    def environment(self) -> dict[str, str]:
        """Return the environment variables of these processes. Leases are short, so that other workers soon take over
        the work of a killed one.
        """
        return variables(self.root, **SHORT_LEASES)

    def _run(self, process: Process) -> Process:
        process.start()
        self.started.append(process)
        return process

    def described(self) -> str:
        """Return the logs, for failed tests."""
        return process_diagnostics.describe(self.started)

    def logs(self) -> str:
        return "\n".join(process.log.read_text() for process in self.started)


@pytest.fixture
def workers(transactional_db: None, tmp_path: Path) -> Iterator[Workers]:
    lose_messages()
    running = Workers(tmp_path)
    yield running
    for process in running.started:
        process.kill()  # on SIGTERM, Celery sleeps for 20 s if a task is ending at that moment


@pytest.fixture
def own_web(workers: Workers, tmp_path: Path) -> Iterator[Web]:
    """A web process for one test, which may stop it or cut its database connection."""
    with serving_alone(tmp_path) as running:
        yield running


def serving_alone(root: Path, **changes: str) -> AbstractContextManager[Web]:
    """Start a web process with its own metrics."""
    return serving(root, variables(root, **SHORT_LEASES, PROMETHEUS_MULTIPROC_DIR=str(root / "metrics"), **changes))


@contextmanager
def suspended(process: Process) -> Iterator[None]:
    """Suspend a process and its children."""
    pids = process_tree.members(process.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
