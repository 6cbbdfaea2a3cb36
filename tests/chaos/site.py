"""A complete installation for fault injection: web, workers, and beat, in separate processes behind proxies."""

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psycopg
from django.db import OperationalError, connection
from knox.models import AuthToken
from psycopg.conninfo import make_conninfo

from config.dev.stack import process_tree, processes
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import Process
from config.dev.stack.servers import Servers
from exports.core.states import JOB_ENDED
from exports.models import Dataset, Job, Webhook
from tests import process_diagnostics
from tests.chaos.points import FOLDER, Points
from tests.chaos.proxy import Proxy
from tests.chaos.source import Source
from tests.integration import faulty_s3
from tests.integration.factories import FIRST_DAY
from tests.integration.receiver import Receiver
from tests.waiting import wait_until

LEASE_SECONDS, REAPER_SECONDS, SLOTS = 3, 1, 4
QUEUES = "exports,bundles,webhooks,maintenance"
READER = "etl.providers.local"  # in the command line of the process that parses documents
MEASUREMENTS = PROJECT / ".local" / "chaos.jsonl"


@dataclass
class DeliberateChanges:
    """Deliberate actions of a test, which the invariants accept.

    `retried` and `retried_tasks`: IDs of jobs and document tasks that a user retried. `redone`: jobs export to the same
    paths, so that chunks whose files are missing return to the queue before their job ends. `absences`: usernames, each
    with the times at which the user was deactivated and activated. `undelivered`: IDs of jobs whose events the test
    marked as announced.
    """

    retried: set[str] = field(default_factory=set)
    retried_tasks: set[str] = field(default_factory=set)
    redone: bool = False
    absences: list[tuple[str, float, float]] = field(default_factory=list)
    undelivered: set[str] = field(default_factory=set)


class Site:
    """A site with its processes, proxies, and clients.

    `random` is the only source of randomness in a test: its seed, printed at the start, reproduces the run. `slots`
    limits the concurrent calls of the source. `variables` are environment variables of all processes, such as another
    server's URL. Change both before a process is started.
    """

    def __init__(self, folder: Path, servers: Servers, random: Random, owner: Any) -> None:
        self.folder, self.servers, self.random, self.owner = folder, servers, random, owner
        self.slots = SLOTS
        self.variables: dict[str, str] = {}
        self.points = Points(folder / "points")
        self.postgres = proxy_of(servers.postgres.url("sluice"))
        self.source_proxy = proxy_of(servers.postgres.url("source"))
        self.broker = proxy_of(servers.valkey.url())
        self.storage = proxy_of(servers.seaweedfs.url)
        self.proxies = (self.postgres, self.source_proxy, self.broker, self.storage)
        self.object_proxy: faulty_s3.Proxy | None = None  # between workers and object storage, if a test uses one
        self.source = Source(servers.postgres.url("source"))
        self.workers: list[Process] = []
        self.beats: list[Process] = []
        self.web: processes.Web | None = None
        self.allowed = DeliberateChanges()
        self.receivers: list[Receiver] = []  # of webhooks
        self.client = httpx2.Client(trust_env=False, timeout=30)

    # ---- Processes --------------------------------------------------------------------------------------------------

    def environment(self, **changes: object) -> dict[str, str]:
        """Return the environment of a Sluice process, which connects to all servers through the proxies."""
        database = make_conninfo(
            os.environ["DATABASE_URL"], dbname=connection.settings_dict["NAME"], port=self.postgres.port
        )
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "DATABASE_URL": database,
            "SOURCE_DATABASE_URL": through(self.source_proxy, os.environ["SOURCE_DATABASE_URL"]),
            "REDIS_URL": through(self.broker, os.environ["REDIS_URL"]),
            "S3_ENDPOINT_URL": through(self.storage, os.environ["S3_ENDPOINT_URL"]),
            "TMPDIR": str(self.folder),
            FOLDER: str(self.points.folder),
            "EXPORT_DB_SLOTS": str(self.slots),
            "EXPORT_LEASE_SECONDS": str(LEASE_SECONDS),
            "EXPORT_REAPER_SECONDS": str(REAPER_SECONDS),
            "EXPORT_BACKOFF_BASE_SECONDS": "0.3",
            "EXPORT_RATE": "1000/min",
            "EXPORT_DAILY_JOBS": "100000",
            "EXPORT_DAILY_CHUNKS": "1000000",
            "ETL_DAILY_DOCUMENTS": "100000",
            "ETL_DAILY_BYTES": "100000000000",
            "ETL_DAILY_RULE_VERSIONS": "100000",
            "ETL_DAILY_RULE_TESTS": "100000",
            "EXPORT_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
            "ETL_LEASE_SECONDS": str(LEASE_SECONDS),
            "ETL_RECOVERY_SECONDS": str(REAPER_SECONDS),
            "ETL_OCR_PROVIDER": "tests.scripted_stages.Provider",
            "ETL_RETRY_BACKOFF_BASE_SECONDS": "0.3",
            **self.variables,
            **{name: str(value) for name, value in changes.items()},
        }

    def start_web(self, **changes: object) -> str:
        """Start the web process; return its address."""
        self.web = processes.Web(self.folder, KeptSettings(self.folder), self.environment(**changes))
        self.web.start()
        _, token = AuthToken.objects.create(self.owner)
        self.client.base_url = self.web.url
        self.client.headers["Authorization"] = f"Bearer {token}"
        return self.web.url

    def start_worker(self, queues: str = QUEUES, *, children: int = 2, **changes: object) -> Process:
        worker = processes.worker(
            f"worker{len(self.workers)}",
            queues=queues,
            concurrency=children,
            root=self.folder,
            environment=self.environment(**changes),
        )
        worker.grace_seconds = 40
        worker.start()
        self.workers.append(worker)
        return worker

    def start_beat(self, **changes: object) -> Process:
        root = self.folder / f"beat{len(self.beats)}"
        root.mkdir()
        beat = processes.beat(root=root, environment=self.environment(**changes))
        beat.start()
        self.beats.append(beat)
        return beat

    def children(self) -> list[int]:
        """Return the prefork children of all running workers."""
        return [pid for pid in self.descendants() if READER not in process_tree.command_line(pid)]

    def readers(self) -> list[int]:
        """Return the processes that parse documents, which may use more memory."""
        return [pid for pid in self.descendants() if READER in process_tree.command_line(pid)]

    def descendants(self) -> list[int]:
        alive = [worker for worker in self.workers if worker.alive]
        return [pid for worker in alive for pid in process_tree.members(worker.pid)[1:]]

    def logs(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.rglob("*.log")))

    def describe_processes(self) -> str:
        """Return the logs of all processes, for the report of a failed test."""
        web = [self.web.process] if self.web and self.web.process else []
        return process_diagnostics.describe((*web, *self.workers, *self.beats))

    def record_duration(self, promise: str, seconds: float, **facts: object) -> None:
        """Record a duration for docs/reliability.md: `-s` prints it, and .local/chaos.jsonl collects it."""
        figures = " ".join([f"{seconds:.2f} s", *(f"{name}={value}" for name, value in facts.items())])
        sys.stdout.write(f"\n{promise}: {figures}\n")
        MEASUREMENTS.parent.mkdir(exist_ok=True)
        with MEASUREMENTS.open("a") as file:
            file.write(json.dumps({"promise": promise, "seconds": round(seconds, 3), **facts}) + "\n")

    def stop(self) -> None:
        """Kill all processes, because a graceful shutdown of Celery takes long. Idempotent."""
        for process in (*self.workers, *self.beats):
            process.kill()
        if self.web:
            self.web.kill()
        self.client.close()
        for proxy in self.proxies:
            proxy.close()

    def restart_broker_empty(self) -> None:
        """Kill Valkey, and restart it without data."""
        server = self.servers.valkey
        server.kill()
        shutil.rmtree(server.data / "appendonlydir", ignore_errors=True)
        server.start()

    def end_sessions(self) -> int:
        """Terminate all connections to Postgres, including that of the test. Return their number."""
        with psycopg.connect(self.servers.postgres.url("postgres"), autocommit=True) as admin:
            row = admin.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchone()
        assert row
        return int(row[0])

    # ---- Work -------------------------------------------------------------------------------------------------------

    def dataset(self, name: str = "things") -> Dataset:
        return Dataset.objects.get_or_create(
            name=name,
            function="data.rows_for",
            base_path=name,
            defaults={"allow_writes": True},  # the function counts its calls
        )[0]

    def submit(self, *keys: str, days: int = 1, **changes: Any) -> Job:
        """Submit an export over HTTP, with each key on each day."""
        last = FIRST_DAY + timedelta(days=days - 1)
        filters = {"keys": keys, "dateFrom": FIRST_DAY.isoformat(), "dateTo": last.isoformat()}
        response = self.client.post("/exports", json={"dataset": "things", "filters": filters, **changes})
        assert response.status_code == 202, response.text
        return Job.objects.get(pk=response.json()["jobId"])

    def subscribe(self, url: str) -> Webhook:
        """Subscribe a URL to successful exports over HTTP."""
        response = self.client.post("/exports/webhooks", json={"url": url, "events": ["export.succeeded"]})
        assert response.status_code == 201, response.text
        return Webhook.objects.get(pk=response.json()["id"])

    def settle(self, *jobs: Job, limit: float = 60) -> None:
        """Wait until all jobs have ended."""
        wait_until(lambda: all(has_ended(job) for job in jobs), limit=limit, every=0.1)

    def wait_for_workers(self) -> None:
        """Wait until all workers consume messages, so that measurements exclude their startup."""
        wait_until(lambda: all("ready." in worker.log.read_text() for worker in self.workers if worker.alive), limit=60)

    def wait_for_call(self, *, limit: float = 30) -> None:
        wait_until(lambda: self.source.live_calls() > 0, limit=limit)


def has_ended(job: Job) -> bool:
    try:
        job.refresh_from_db()
    except OperationalError:
        connection.close()  # the server is being restarted by the test
        return False
    return job.status in JOB_ENDED


def proxy_of(url: str) -> Proxy:
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    return Proxy(address.hostname, address.port)


def through(proxy: Proxy, url: str) -> str:
    """Return the URL with the proxy's address as its host."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}127.0.0.1:{proxy.port}").geturl()
