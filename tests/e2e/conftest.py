"""Sluice's own processes beside the test, on the test's database: real prefork workers and a real beat."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo

from config.stack import processes
from config.stack.process import Process
from tests.broker import lose_messages

# Short, so that recovery can be waited for; the promise is lease + reaper interval.
LEASE_SECONDS, REAPER_SECONDS = 3, 1


@dataclass
class Workers:
    """Starts workers and beat, and stops them at the end of the test."""

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
        """This process' own variables, but for the database: workers must see what the test wrote."""
        return {
            **os.environ,
            "DATABASE_URL": make_conninfo(os.environ["DATABASE_URL"], dbname=connection.settings_dict["NAME"]),
            "TMPDIR": str(self.root),  # killed workers leave what billiard put there
            "EXPORT_LEASE_SECONDS": str(LEASE_SECONDS),
            "EXPORT_REAPER_SECONDS": str(REAPER_SECONDS),
            "ETL_LEASE_SECONDS": str(LEASE_SECONDS),
            "ETL_RECOVERY_SECONDS": str(REAPER_SECONDS),
        }

    def _run(self, process: Process) -> Process:
        process.start()
        self.started.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(process.log.read_text() for process in self.started)


@pytest.fixture
def workers(transactional_db: None, tmp_path: Path) -> Iterator[Workers]:
    lose_messages()
    running = Workers(tmp_path)
    yield running
    for process in running.started:
        process.kill()  # asked to stop, Celery would sleep for 20 s when a task is just ending
